"""Two sides of a ratio, measured in turn, so that a drift of the machine's speed hits both."""

from __future__ import annotations

import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table.

    :param name: such as ``P2``.
    :param what: what is divided by what.
    :param reach: the ratio to reach; lower is better.
    :param ours: figures of our side, a run each.
    :param peer: figures of the peer.
    :param note: what else a person should know of the measurement.
    :param unit: what the figures are, ``s`` (seconds) or ``bytes``.
    """

    name: str
    what: str
    reach: float
    ours: list[float] = field(default_factory=list)
    peer: list[float] = field(default_factory=list)
    note: str = ""
    unit: str = "s"

    @property
    def ratio(self) -> float:
        """Median of the ratios, pair by pair."""
        return statistics.median(a / b for a, b in zip(self.ours, self.peer, strict=True))

    def line(self) -> str:
        """For the table."""
        ours, peer = statistics.median(self.ours), statistics.median(self.peer)
        verdict = "reached" if self.ratio <= self.reach else "MISSED"
        factor, shown = {"s": (1000.0, "ms"), "bytes": (0.001, "kB")}[self.unit]
        return (
            f"{self.name:4} {self.what:74} {ours * factor:9.1f} {shown} {peer * factor:9.1f} {shown} "
            f"{self.ratio:6.3g} (reach {self.reach:.3g}) {verdict}" + (f"; {self.note}" if self.note else "")
        )

    def to_dict(self) -> dict[str, object]:
        """For the stored results."""
        return {**asdict(self), "ratio": self.ratio}


def paired(row: Row, *, ours: Callable[[], float], peer: Callable[[], float], runs: int) -> Row:
    """Measure ``runs`` pairs after one of each that does not count.

    :param ours: does our side once and returns its seconds.
    :param peer: does the peer's.
    """
    ours()
    peer()
    for number in range(runs):
        # Who goes first changes, so that neither always finds the caches warm.
        sides = [(row.ours, ours), (row.peer, peer)]
        for seconds, side in sides if number % 2 else reversed(sides):
            seconds.append(side())
    return row


def python_seconds(source: str, *arguments: str, **environment: str) -> float:
    """Run Python source in a process of its own; it prints seconds as its last line.

    :raises RuntimeError: with what the process said, if it failed.
    """
    return float(python_result(source, *arguments, **environment))


def python_result(source: str, *arguments: str, **environment: str) -> Any:
    """Run Python source in a process of its own; it prints JSON as its last line.

    :raises RuntimeError: with what the process said, if it failed.
    """
    done = subprocess.run(
        [sys.executable, "-c", source, *arguments],
        cwd=ROOT,
        env={**os.environ, "PATH": _path(), **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"a side of the benchmark failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def _path() -> str:
    """Where this Python's programs are found first: spark-submit looks there for the Python that has PySpark."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])


def cpu_of_submit(
    script: Path,
    given: Sequence[str],
    *,
    packages: Sequence[Path] = (),
    conf: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
) -> float:
    """CPU seconds of spark-submit of a script, and of all that it starts.

    :param given: arguments of the script.
    :param packages: jars.
    :param environment: beside this process's own.
    :raises RuntimeError: with what Spark said, if it failed.
    """
    submit = shutil.which("spark-submit", path=_path())
    settings = {"spark.ui.enabled": "false", "spark.jars": ",".join(map(str, packages)), **(conf or {})}
    options = [part for key, value in settings.items() if value for part in ("--conf", f"{key}={value}")]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [str(submit), "--master", "local[2]", *options, str(script), *given],
        env={**os.environ, "PATH": _path(), **(environment or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"Spark's side of the benchmark failed:\n{done.stderr[-4000:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
