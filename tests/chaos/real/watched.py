"""One pipeline of the real world, watched from outside: by the files of its checkpoint and table, and by processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from airflow_provider_microbatch.checkpoint.entries import Attempt
from airflow_provider_microbatch.engines import processes
from airflow_provider_microbatch.runtime.layout import MANIFEST
from airflow_provider_microbatch.sinks import SinkContext
from tests.chaos.checks import published
from tests.chaos.setting import Setting
from tests.support.whose import published as published_as_asked

SPARK = "Spark starts"
BEGUN = "stage begun"
WRITTEN = "stage written"
BETWEEN = "between batches"


@dataclass(kw_only=True)
class Watched:
    """:param setting: what lies where.
    :param landed: how many rows were landed.
    :param newest: batch → version of its newest replay.
    """

    setting: Setting
    landed: int = 0
    newest: dict[int, int] = field(default_factory=dict)

    @property
    def root(self) -> Path:
        return Path(self.setting.root)

    @property
    def dag_id(self) -> str:
        return self.root.name

    def land(self, rows: int) -> None:
        """One file."""
        self.setting.land("orders", range(self.landed, self.landed + rows))
        self.landed += rows

    def committed(self) -> dict[int, str]:
        """Committed batches, and the DAG runs that planned them."""
        checkpoint = self.setting.checkpoint()
        entries = {batch: checkpoint.offset_log.get(batch) for batch in checkpoint.commit_log.ids()}
        return {batch: entry.run.run_id for batch, entry in entries.items() if entry is not None and entry.run}

    def renew(self, batch: int) -> None:
        """From now on whoever runs the batch gives its rows the next version."""
        self.newest[batch] = self.newest.get(batch, 0) + 1
        told = self.root / "versions" / str(batch)
        told.parent.mkdir(exist_ok=True)
        told.write_text(str(self.newest[batch]))

    def is_through(self) -> bool:
        """Whether everything that has landed is in the table, and every replay that was asked for."""
        try:
            tables = published(self.setting)
        except FileNotFoundError:
            return False  # replaced while it was read
        checkpoint = self.setting.checkpoint()
        done = checkpoint.offset_log.ids() == checkpoint.commit_log.ids()
        return done and all(self._is_whole(table) for table in tables)

    def _is_whole(self, table: Mapping[int, list[tuple[int, int]]]) -> bool:
        rows = {row for batch in table.values() for row, _ in batch}
        return len(rows) >= self.landed and all(
            {seen for _, seen in table.get(batch, [])} == {version} for batch, version in self.newest.items()
        )

    def moment(self) -> str:
        """Where the newest attempt that has no end on record stands; without one, the newest batch."""
        checkpoint, attempt = self.setting.checkpoint(), self.attempt()
        if attempt is None:
            newest = checkpoint.offset_log.latest_id()
            if newest is None:
                return "no batch yet"
            return BETWEEN if checkpoint.commit_log.get(newest) is not None else "planned"
        output = published_as_asked(self.setting.pipeline().sink, checkpoint, attempt.key)
        if output is not None and output.epoch == attempt.epoch:
            return "published, no end on record"
        stage = self.stage(attempt)
        if list((stage / MANIFEST).glob("part-*")):
            return WRITTEN
        if stage.exists():
            return BEGUN
        return SPARK if self.spark() else "attempt opened"

    def attempt(self) -> Attempt | None:
        """The newest attempt that runs a Spark and has no end on record."""
        checkpoint = self.setting.checkpoint()
        found = [checkpoint.attempts.get(*one) for one in checkpoint.leases.unfinished()]
        open_ones = [
            attempt
            for attempt in found
            if attempt is not None
            and "tag" in attempt.handle
            and checkpoint.attempts.ended(attempt.key, attempt.epoch) is None
        ]
        return max(open_ones, key=lambda attempt: attempt.started_ms, default=None)

    def stage(self, attempt: Attempt) -> Path:
        """Where the attempt writes."""
        stage = self.setting.pipeline().sink.open(SinkContext()).stage(attempt.batch, attempt.epoch)
        return Path(stage.report.removeprefix("file://"))

    def spark(self) -> psutil.Process | None:
        """The driver of the newest attempt. Before it, a launcher with the same arguments runs below a shell."""
        attempt = self.attempt()
        for process in processes.find(attempt.handle["tag"]) if attempt is not None else []:
            try:
                if process.name() == "java" and "org.apache.spark.launcher.Main" not in process.cmdline():
                    return process
            except psutil.Error:
                continue
        return None
