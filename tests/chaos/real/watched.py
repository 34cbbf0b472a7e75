"""One pipeline of the real world, watched from outside: by the files of its checkpoint and table, and by processes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import psutil

from airflow_provider_microbatch.checkpoint.entries import Attempt
from airflow_provider_microbatch.checkpoint.key import LIVE, BatchKey
from airflow_provider_microbatch.engines import processes
from airflow_provider_microbatch.runtime.layout import MANIFEST
from tests.chaos.setting import Setting

SPARK = "Spark starts"
BEGUN = "stage begun"
WRITTEN = "stage written"


@dataclass(kw_only=True)
class Watched:
    """:param setting: what lies where.
    :param landed: how many rows were landed.
    """

    setting: Setting
    landed: int = 0

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

    def moment(self) -> str:
        """Where the newest batch stands."""
        checkpoint = self.setting.checkpoint()
        newest = checkpoint.offset_log.latest_id()
        if newest is None:
            return "no batch yet"
        if checkpoint.commit_log.get(newest) is not None:
            return "between batches"
        if (self.root / "lake" / f"lane={LIVE}" / f"batch_id={newest}").exists():
            return "published, not committed"
        attempt = self.attempt()
        if attempt is None:
            return "planned"
        stage = self.stage(attempt)
        if list((stage / MANIFEST).glob("part-*")):
            return WRITTEN
        if stage.exists():
            return BEGUN
        return SPARK if self.spark() else "attempt opened"

    def attempt(self) -> Attempt | None:
        """The newest attempt of the newest batch, if it has no end on record."""
        checkpoint = self.setting.checkpoint()
        newest = checkpoint.offset_log.latest_id()
        if newest is None:
            return None
        attempt = checkpoint.attempts.latest(BatchKey(LIVE, newest))
        if attempt is None or checkpoint.attempts.ended(attempt.key, attempt.epoch) is not None:
            return None
        return attempt

    def stage(self, attempt: Attempt) -> Path:
        """Where the attempt writes."""
        key = attempt.key
        staging = self.root / "lake" / "_staging" / f"lane={key.lane}" / f"batch_id={key.id}"
        return staging / f"attempt={attempt.epoch}"

    def spark(self) -> psutil.Process | None:
        """The driver of the newest attempt. Before it, a launcher with the same arguments runs below a shell."""
        attempt = self.attempt()
        for process in processes.find(attempt.handle["tag"]) if attempt is not None and "tag" in attempt.handle else []:
            try:
                if process.name() == "java" and "org.apache.spark.launcher.Main" not in process.cmdline():
                    return process
            except psutil.Error:
                continue
        return None
