"""One world of a stateful pipeline: its table is that of an uninterrupted run, whoever died."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import psutil

from airflow_provider_microbatch.checkpoint.key import LIVE, BatchKey
from airflow_provider_microbatch.engines import processes
from tests.chaos.checks import check_checkpoint
from tests.chaos.state.setting import SOURCES, StateSetting
from tests.chaos.state.state_job import BESIDE, NAP_POINTS, NAP_SECONDS, POINTS
from tests.chaos.state.task import UNINTERRUPTED, run
from tests.chaos.task import Task
from tests.chaos.world import World

LEASE_SECONDS = 2.0


class StateWorld(World):
    """See :class:`World`; drivers are real, and die at points of their own."""

    engine_points: ClassVar[Sequence[str]] = POINTS
    victims: ClassVar[Sequence[str]] = ("driver", "task", "both")
    faults: ClassVar[Sequence[str]] = ("point", "engine", "engine", "engine", "random", "sleep", "beside")
    moments: ClassVar[float] = 8.0
    patience: ClassVar[float] = 600.0
    rest_seconds: ClassVar[float] = NAP_SECONDS + 60.0

    setting: StateSetting

    def chosen(self, system: str) -> StateSetting:
        kind = self.random.choice(sorted(SOURCES))
        return StateSetting(root=str(self.root), sources=SOURCES[kind], kind=kind, lease_seconds=LEASE_SECONDS)

    def land(self) -> None:
        """One unit: a file of each source."""
        self.setting.land_unit(self.landed, self.random)
        self.landed += 1

    def land_last(self) -> None:
        self.setting.land_last(self.landed)
        self.landed += 1

    def to_be_cleared(self, batches: dict[int, int]) -> int | None:
        """The run of the newest batch, for others are refused: later ones have gone on from their state."""
        newest = self.setting.checkpoint().offset_log.latest_id()
        return next((number for number, batch in batches.items() if batch == newest), None)

    def is_refused(self, result: dict[str, Any]) -> bool:
        """A run beside has gone on from the batch meanwhile."""
        return (
            result.get("type") == "CheckpointError" and "run again by itself it would contradict" in result["message"]
        )

    def task(self, order: dict[str, Any], report: Path) -> Task:
        return Task(order, report=report, live=run)

    def one_try(self, number: int, *, clear: int, version: int, faulty: bool) -> list[dict[str, Any]]:
        """Besides, of two attempts whose drivers are alive at once: the first one's task is dead."""
        if not faulty or self.random.random() < 0.8:
            return super().one_try(number, clear=clear, version=version, faulty=faulty)
        return self.two_drivers({"root": str(self.root), "number": number, "clear": clear, "version": version})

    def two_drivers(self, order: dict[str, Any]) -> list[dict[str, Any]]:
        """The second attempt begins when the first one's task counts as dead, while its driver naps in the middle."""
        self.doubled = True
        nap = {"point": self.random.choice(NAP_POINTS), "victim": BESIDE}
        first = self.wait(self.start(order, engine=nap), expected=True)
        if first:
            return first  # there was nothing to do, or somebody was in its way
        self.wait_for_leases()
        self.tally.counts["two drivers at once"] += bool(self.engines())
        return self.wait(self.start({**order, "blind": True}), expected=True)

    def engines(self) -> list[psutil.Process]:
        """Drivers of the world's attempts. Not those of older batches, which were looked for when theirs ended."""
        checkpoint = self.setting.checkpoint()
        found: dict[int, psutil.Process] = {}
        for number in checkpoint.offset_log.ids()[-2:]:
            for attempt in checkpoint.attempts.all(BatchKey(LIVE, number)):
                tag = attempt.handle.get("tag")
                found.update((one.pid, one) for one in (processes.find(tag) if tag else ()))
        return list(found.values())

    def check(self) -> None:
        """The rows of the table are, byte for byte, those of a run that nobody disturbed."""
        report = self.root / "uninterrupted.json"
        ended = self.wait(self.task({"root": str(self.root), UNINTERRUPTED: True}, report), expected=False)
        if not ended:
            # Killed by whomever, such as a kernel without memory: nobody has looked at the table, and it may be wrong.
            self.tally.blame("wrong states", 1, "the uninterrupted run did not end: the table is compared with nothing")
            return
        wanted = StateSetting(**{**vars(self.setting), "folder": UNINTERRUPTED}).lines()
        found = self.setting.lines()
        lost, doubled = Counter(wanted) - Counter(found), Counter(found) - Counter(wanted)
        self.tally.blame("rows lost", lost.total(), f"{sorted(lost)[:5]}")
        self.tally.blame("rows doubled", doubled.total(), f"{sorted(doubled)[:5]}")
        check_checkpoint(self.setting, self.tally)
        self.tally.counts["rows in the table"] += len(found)
        self.tally.counts[f"worlds: {self.setting.kind}"] += 1
