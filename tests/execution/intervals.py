"""Words for tests of data intervals: hours of a day, files with an mtime, runs that Airflow's backfill makes."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from airflow_provider_microbatch.checkpoint.entries import RunIdentity
from airflow_provider_microbatch.execution.backfill import IntervalWork
from airflow_provider_microbatch.execution.summary import BatchSummary
from airflow_provider_microbatch.sources.intervals import Interval
from tests.execution.world import CODE, World, run_identity
from tests.support.inline_engine import InlineEngine

DAY_MS = 1_700_006_400_000
"""2023-11-15T00:00:00Z, some hours before the clock of the tests."""

HOUR_MS = 3_600_000


def hour(number: float, *, hours: float = 1) -> Interval:
    """The data interval that begins with hour ``number`` of the day."""
    start = DAY_MS + int(number * HOUR_MS)
    return Interval(start_ms=start, end_ms=start + int(hours * HOUR_MS))


def backfill_run(
    number: int, *, partition: str | None = None, clear_number: int = 0, try_number: int = 1
) -> RunIdentity:
    """A run of Airflow's backfill."""
    run = run_identity(number, clear_number=clear_number, try_number=try_number)
    return dataclasses.replace(run, partition_key=partition, partition_date=partition)


class IntervalWorld(World):
    """A pipeline whose files land at hours of a day that is over."""

    def __init__(self, root: Path, **pipeline: Any) -> None:
        super().__init__(root, **pipeline)
        self.clock = DAY_MS + 48 * HOUR_MS

    def land_at(self, when: float, *ids: int, source: str = "orders") -> Path:
        """One file that was last changed at hour ``when``."""
        path = self.land(*ids, source=source)
        ns = (DAY_MS + int(when * HOUR_MS)) * 1_000_000
        os.utime(path, ns=(ns, ns))
        return path

    def work(self, interval: Interval, **airflow: Any) -> IntervalWork:
        given = {"taken_seconds": 0, **airflow}
        return IntervalWork(
            pipeline=self.pipeline, checkpoint=self.checkpoint, interval=interval, clock_ms=self._tick, **given
        )

    def backfill(
        self, interval: Interval, run: RunIdentity | int, engine: InlineEngine | None = None
    ) -> Sequence[BatchSummary]:
        """The task run of a backfill, to its end."""
        return self.finish(self.work(interval), run, engine)

    def finish(
        self, work: IntervalWork, run: RunIdentity | int, engine: InlineEngine | None = None
    ) -> Sequence[BatchSummary]:
        """What a task run has to do, to its end."""
        identity = backfill_run(run) if isinstance(run, int) else run
        return work.run(run=identity, engine=engine or InlineEngine(), code=CODE, transform=None).batches

    def rows(self) -> dict[str, list[int]]:
        """Published ids by batch, of all lanes."""
        found: dict[str, list[int]] = {}
        for folder in sorted(self.lake.glob("lane=*/batch_id=*")):
            lines = [line for path in folder.glob("*.json") for line in path.read_text().splitlines()]
            key = f"{folder.parent.name.partition('=')[2]}/{folder.name.partition('=')[2]}"
            found[key] = sorted(json.loads(line)["id"] for line in lines)
        return found

    def ids(self) -> list[int]:
        """All ids of the table, as often as they are in it."""
        return sorted(number for ids in self.rows().values() for number in ids)
