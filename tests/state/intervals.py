"""A stateful pipeline that is planned by intervals."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from airflow_provider_microbatch.execution.backfill import IntervalWork
from tests.execution.intervals import DAY_MS, HOUR_MS, backfill_run, hour
from tests.state.stateful import StatefulWorld


class IntervalsWorld(StatefulWorld):
    """A stateful pipeline whose runs have an hour each, of a day that is over."""

    def __init__(self, root: Path, transform: str, **more: Any) -> None:
        super().__init__(root, transform, **{"plan": "interval", "schema": "id long, at timestamp", **more})
        self.clock = DAY_MS + 48 * HOUR_MS

    def land_at(self, when: float, *rows: tuple[int, str | None], source: str = "orders") -> None:
        """A file that was last changed at hour ``when``, of ids and times of that day, or of the day that is named, or
        of no time."""
        values = [{"id": id, "at": at and (at if "T" in at else f"2023-11-15T{at}") + "Z"} for id, at in rows]
        name = f"{len(list(self._landing(source).iterdir())):03}"
        self.land(name, *values, source=source)
        ns = (DAY_MS + int(when * HOUR_MS)) * 1_000_000
        os.utime(self._landing(source) / f"{name}.json", ns=(ns, ns))

    def work(self, number: float) -> IntervalWork:
        return IntervalWork(
            pipeline=self.pipeline, checkpoint=self.checkpoint, interval=hour(number), clock_ms=self._tick
        )

    def run_hour(self, number: int, **identity: Any) -> None:
        """The run of an hour, to its end."""
        code, called = self.code()
        self.work(number).run(
            run=backfill_run(number, **identity), engine=self.engine, code=code, transform=called
        )  # fmt: skip

    def hours(self) -> list[list[str]]:
        """Rows by interval, as text, sorted."""
        lanes = sorted(path.name.partition("=")[2] for path in (self.root / self.lake).glob("lane=interval-*"))
        rows = (self.table(lane)[0] for lane in lanes)
        return [sorted(" ".join(str(value) for value in row.values()) for row in of_hour) for of_hour in rows]

    def left(self) -> list[str]:
        """What is left of state and of folders that Spark was shown."""
        folders = (self.root / "checkpoint" / name for name in ("state", "streaming"))
        return [str(path) for folder in folders for path in folder.rglob("*")]


def minute(text: str, count: int) -> str:
    """The row of a minute of the day, as :meth:`IntervalsWorld.hours` has it."""
    return f"2023-11-15T{text}:00.000Z {count}"
