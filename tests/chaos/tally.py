"""The figures of a chaos run, which add up over worlds and over runs."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

WRONG = ("rows lost", "rows doubled", "stages orphaned", "processes left", "wrong states")


@dataclass
class Tally:
    """:param kills: by point.
    :param counts: worlds, tries, rows landed, batches, zombies, replays.
    :param wrong: figures that must be zero.
    :param janitor: stages that no later attempt could know of; the janitor's to drop.
    :param failures: what was wrong, with the world's seed.
    """

    kills: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    wrong: Counter[str] = field(default_factory=Counter)
    janitor: int = 0
    failures: list[str] = field(default_factory=list)

    @property
    def total(self) -> int:
        return self.kills.total()

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
        self.counts += other.counts
        self.wrong += other.wrong
        self.janitor += other.janitor
        self.failures += other.failures

    def to_dict(self) -> dict[str, Any]:
        return {
            "kills": dict(self.kills),
            "counts": dict(self.counts),
            "wrong": dict(self.wrong),
            "janitor": self.janitor,
            "failures": self.failures,
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Tally:
        return cls(
            kills=Counter(values["kills"]),
            counts=Counter(values["counts"]),
            wrong=Counter(values["wrong"]),
            janitor=values["janitor"],
            failures=list(values["failures"]),
        )

    def text(self) -> str:
        lines = [f"{'kills by point':48} {self.total:6}"]
        lines += [f"  {point:46} {count:6}" for point, count in sorted(self.kills.items())]
        lines += [f"{name:48} {count:6}" for name, count in sorted(self.counts.items())]
        lines += [f"{'stages left to the janitor':48} {self.janitor:6}"]
        lines += [f"{name:48} {self.wrong[name]:6}" for name in WRONG]
        return "\n".join([*lines, *self.failures])


def append(path: Path, seed: int, tally: Tally) -> None:
    """Add a run to a file of JSON lines."""
    with path.open("a") as file:
        file.write(json.dumps({"seed": seed, **tally.to_dict()}) + "\n")


def total(path: Path) -> Tally:
    """All runs of the file."""
    added = Tally()
    for line in path.read_text().splitlines():
        added.add(Tally.from_dict(json.loads(line)))
    return added
