"""A stateful pipeline without Spark: each batch counts on from the state that it is told of."""

from __future__ import annotations

import uuid
import zipfile
from pathlib import Path
from typing import Any

from acme_microbatch.counter import CounterSource

from airflow_provider_microbatch.runtime.job import Job, Subtask
from airflow_provider_microbatch.runtime.streaming import SNAPSHOT_EVERY
from airflow_provider_microbatch.runtime.subtasks import Done
from tests.execution.world import World
from tests.support.inline_engine import InlineEngine

CONF = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    )
}


class CountingEngine(InlineEngine):
    """The numbers so far, as one row, and the state that a batch tells of.

    :param kept: the numbers so far by id of the state; engines of one pipeline share it.
    :param times: how often each number counts.
    :param watermark_ms: of the next batch.
    :param another: whether it asks for a batch without data.
    """

    def __init__(
        self, kept: dict[str, int], *, times: int = 1, watermark_ms: int = 0, another: bool = False, **more: Any
    ) -> None:
        super().__init__(**more)
        self._another = another
        self._watermark_ms = watermark_ms
        self._kept = kept
        self._times = times

    def _run(self, job: Job, subtask: Subtask | None = None) -> Done:
        assert job.streaming is not None
        before, own = job.streaming.before, str(uuid.uuid4())
        base = None if before is None else before["ids"]
        so_far = 0 if base is None else self._kept[base["0"][0][0]]

        def counted(sources: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
            self._kept[own] = so_far + self._times * len(sources["orders"])
            return [{"id": self._kept[own]}]

        self._leave_file(Path(job.streaming.state), version=job.batch_id + 1, id=own)
        self.transform = counted
        kept = {"ids": {"0": [[own]]}, "base": base, "conf": CONF, "nextWatermarkMs": self._watermark_ms}
        self.told = {"state": kept, "requiresAnotherBatch": self._another}
        return super()._run(job, subtask)

    @staticmethod
    def _leave_file(state: Path, *, version: int, id: str) -> None:
        """One of the names that Spark gives."""
        folder = state / "0" / "0"
        folder.mkdir(parents=True, exist_ok=True)
        if version % SNAPSHOT_EVERY:
            (folder / f"{version}_{id}.changelog").write_text("")
            return
        with zipfile.ZipFile(folder / f"{version}_{id}.zip", "w") as snapshot:
            snapshot.writestr("metadata", "v1\n{}")


class CountingWorld(World):
    """One stateful pipeline below ``root``, whose table has by batch the numbers so far."""

    def __init__(self, root: Path, **pipeline: Any) -> None:
        super().__init__(root, stateful=True, **pipeline)
        self.sources: dict[str, Any] = {"orders": CounterSource(str(root / "head"))}
        self.kept: dict[str, int] = {}

    def engine(self, **more: Any) -> CountingEngine:
        return CountingEngine(self.kept, **more)

    def come(self, head: int) -> None:
        """The counter is here now."""
        (self.root / "head").write_text(str(head))

    def batch(self, number: int, *, head: int, times: int = 1, **identity: int) -> None:
        """The task run ``number``, to its end."""
        self.come(head)
        self.run(number, self.engine(times=times), **identity)
