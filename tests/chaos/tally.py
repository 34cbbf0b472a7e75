"""The figures of a chaos run, which add up over worlds and over runs."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

WRONG = ("rows lost", "rows doubled", "stages orphaned", "processes left", "wrong states")
_WIDTH = 64


@dataclass
class Tally:
    """:param kills: on the small engine, by point.
    :param real: of and below a real scheduler that runs a real spark-submit, by point.
    :param counts: worlds, tries, rows landed, batches, zombies, replays.
    :param wrong: figures that must be zero.
    :param failures: what was wrong, with the world's seed.
    """

    kills: Counter[str] = field(default_factory=Counter)
    real: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    wrong: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    @property
    def total(self) -> int:
        return self.kills.total() + self.real.total()

    @property
    def bad(self) -> bool:
        return any(self.wrong.values())

    def blame(self, kind: str, count: int, what: str) -> None:
        """Count something that must not be."""
        if count:
            self.wrong[kind] += count
            self.failures.append(f"{kind}: {what}")

    def add(self, other: Tally) -> None:
        self.kills += other.kills
        self.real += other.real
        self.counts += other.counts
        self.wrong += other.wrong
        self.failures += other.failures

    def to_dict(self) -> dict[str, Any]:
        return {
            "kills": dict(self.kills),
            "real": dict(self.real),
            "counts": dict(self.counts),
            "wrong": dict(self.wrong),
            "failures": self.failures,
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Tally:
        return cls(
            kills=Counter(values["kills"]),
            real=Counter(values["real"]),
            counts=Counter(values["counts"]),
            wrong=Counter(values["wrong"]),
            failures=list(values["failures"]),
        )

    def text(self) -> str:
        """The table."""
        rows: list[tuple[str, object]] = []
        for title, kills in (("real scheduler and spark-submit", self.real), ("small engine", self.kills)):
            rows.append((f"kills, {title}", kills.total()))
            rows += [(f"  {point}", count) for point, count in sorted(kills.items())]
        rows += [("kills", self.total), ("  of which real", f"{self.real.total() / max(1, self.total):.1%}")]
        rows += sorted(self.counts.items())
        rows += [(name, self.wrong[name]) for name in WRONG]
        return "\n".join([*(f"{name:{_WIDTH}} {value:>7}" for name, value in rows), *self.failures])


def append(path: Path, seed: int, tally: Tally) -> None:
    """Add a run to a file of JSON lines."""
    with path.open("a") as file:
        file.write(json.dumps({"seed": seed, **tally.to_dict()}) + "\n")


def total(*paths: Path) -> Tally:
    """All runs of the files."""
    added = Tally()
    for path in paths:
        for line in path.read_text().splitlines():
            added.add(Tally.from_dict(json.loads(line)))
    return added
