"""A work folder that a streaming query and this package take turns in: two landing folders, a checkpoint, an output."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.entries import CommitEntry, Offset, OffsetEntry, RunIdentity
from airflow_provider_microbatch.checkpoint.key import LIVE
from airflow_provider_microbatch.sources import OpenSource, SourceContext
from airflow_provider_microbatch.sources.file import FileSource
from airflow_provider_microbatch.sources.intervals import Interval
from airflow_provider_microbatch.stores.location import open_store
from tests.environments import spark_environment, spark_script

SOURCES = ("orders", "refunds")
RUN = RunIdentity(dag_id="orders", run_id="run-1", task_id="micro_batch", ti_id="ti-1")


class Spark(NamedTuple):
    """A session of a real Spark, which runs a streaming query wherever it is told to.

    :param version: the format of the checkpoints that it begins.
    :param ask: gives it a line, and returns its answer.
    """

    version: str
    ask: Callable[[str], str]


@contextmanager
def running(version: str) -> Iterator[Spark]:
    """A Spark whose checkpoints have this format: ``v1`` of the locked pyspark, ``v2`` of 4.2.0."""
    python = Path(sys.executable) if version == "v1" else spark_environment("4.2.0")
    with spark_script(python, Path(__file__).with_name("query.py"), version) as ask:
        yield Spark(version, ask)


class Lake:
    """:param root: the work folder.
    :param spark: the other side.
    """

    def __init__(self, root: Path, spark: Spark) -> None:
        self.root = root
        self._spark = spark
        self.version = spark.version
        for name in SOURCES:
            (root / name).mkdir()

    @property
    def checkpoint(self) -> Checkpoint:
        return Checkpoint(open_store(str(self.root / "checkpoint")), sources=SOURCES)

    def land(self, source: str, name: str, number: int) -> None:
        """A file with one row, the id ``number``."""
        (self.root / source / name).write_text(json.dumps({"id": number}))

    def plan(self, batch_id: int) -> None:
        """Plan a batch of what has landed, as the planner does."""
        checkpoint = self.checkpoint
        checkpoint.claim(pipeline="orders", sources=SOURCES, format=self.version)
        before = checkpoint.offset_log.get(batch_id - 1) if batch_id else None
        starts: dict[str, Offset | None] = {name: before.ends.get(name) if before else None for name in SOURCES}
        ends: dict[str, Offset | None] = {}
        for name in SOURCES:
            ends[name] = self._source(name).latest_offset(starts[name])
        entry = OffsetEntry(
            ends=ends,
            starts=starts,
            batch_timestamp_ms=1_795_238_703_293 + batch_id,
            conf={"spark.sql.shuffle.partitions": "1"},
            run=RUN,
            pipeline="orders",
        )
        assert checkpoint.offset_log.add(batch_id, entry)

    def backfill(self, source: str) -> None:
        """Have the lane of a data interval take what has landed and no batch has read."""
        self.checkpoint.claim(pipeline="orders", sources=SOURCES, format=self.version)
        start, end = self._source(source, lane="interval-all").plan_interval(Interval(start_ms=0, end_ms=2**45), {})
        assert start != end

    def _source(self, name: str, *, lane: str = LIVE) -> OpenSource:
        checkpoint = self.checkpoint
        context = SourceContext(
            name=name,
            log=checkpoint.source_log(name),
            state=checkpoint.source_state(name),
            clock_ms=lambda: 0,
            lane=lane,
        )
        return FileSource(str(self.root / name), format="json", schema="id long").open(context)

    def commit(self, batch_id: int) -> None:
        """Commit a batch as the execution does."""
        assert self.checkpoint.commit_log.add(batch_id, CommitEntry(epoch=1, run=RUN, committed_ms=1))

    def set_aside(self, batch_id: int) -> None:
        """Set a batch aside as the execution does."""
        failure = {"error": "no such column\n  in two lines", "attempts": 3, "epoch": 4, "starts": {}, "ends": {}}
        entry = CommitEntry(set_aside=True, failure=failure, run=RUN, committed_ms=1)
        assert self.checkpoint.commit_log.add(batch_id, entry)

    def stream(self, *, files: int = 1000) -> dict[int, list[int]]:
        """Run the streaming query until it has caught up; the ids of each batch that it ran, in this call alone.

        :param files: at most so many of each source in a batch.
        """
        out = self.root / "out"
        before = set(out.glob("*.json"))
        assert self._spark.ask(json.dumps({"work": str(self.root), "files": files})) == "done"
        ran: dict[int, list[int]] = {}
        for path in set(out.glob("*.json")) - before:
            batch_id = int(path.name.partition("-")[0])
            assert batch_id not in ran, f"batch {batch_id} ran twice"
            ran[batch_id] = json.loads(path.read_text())
        return ran
