"""Plan: decide what a batch reads, and write that down before anything reads a row."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint, Lane
from airflow_provider_microbatch.checkpoint.entries import Offset, OffsetEntry, RunIdentity
from airflow_provider_microbatch.checkpoint.key import LIVE, BatchKey
from airflow_provider_microbatch.exceptions import (
    BrokenLogError,
    ConcurrentPlanError,
    ForeignCheckpointError,
    SourceCountError,
    SourceError,
)
from airflow_provider_microbatch.execution.decide import should_construct_next_batch
from airflow_provider_microbatch.execution.pace import limits
from airflow_provider_microbatch.execution.pipeline import Pipeline
from airflow_provider_microbatch.execution.position import (
    Offsets,
    Position,
    metadata_text,
    read_position,
    render,
    starts_of,
)
from airflow_provider_microbatch.sources import UNLIMITED, OpenSource, SourceContext

log = logging.getLogger(__name__)

PINNED_BY_DEFAULT = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "200",
    "spark.sql.ansi.enabled": "true",
}
"""Settings that change results, pinned with Spark's own defaults so that a replay on another machine sees the same."""


@dataclass(frozen=True, kw_only=True)
class PlannedBatch:
    """A batch that is in the offset log.

    :param key: the batch.
    :param entry: what it reads.
    :param starts: where each source's range begins.
    :param resumed: it was planned before this call.
    :param committed: it is in the commit log already: this run has done its work.
    :param set_aside: its commit entry says that it was set aside.
    """

    key: BatchKey
    entry: OffsetEntry
    starts: Offsets
    resumed: bool = False
    committed: bool = False
    set_aside: bool = False


@dataclass(frozen=True, kw_only=True)
class FireDecision:
    """A sensor's answer, with the reason for people."""

    fire: bool
    reason: str


class Planner:
    """Plans batches of one lane of a pipeline's checkpoint.

    :param pipeline: the pipeline.
    :param checkpoint: its checkpoint.
    :param lane: the lane.
    :param clock_ms: the time, milliseconds since the epoch.
    """

    def __init__(self, *, pipeline: Pipeline, checkpoint: Checkpoint, lane: Lane, clock_ms: Callable[[], int]) -> None:
        self._pipeline = pipeline
        self._checkpoint = checkpoint
        self._lane = lane
        self._clock_ms = clock_ms

    def check_identity(self) -> None:
        """Raise if the checkpoint is another pipeline's or has another number of v1 sources. Writes nothing."""
        identity = self._checkpoint.identity()
        if identity is None:
            return
        if identity.pipeline not in (None, self._pipeline.name):
            raise ForeignCheckpointError(
                f"checkpoint {self._checkpoint.location} belongs to pipeline {identity.pipeline!r}, not to "
                f"{self._pipeline.name!r}. Give each pipeline a checkpoint of its own, or keep the old name."
            )
        names = list(self._pipeline.sources)
        if identity.format == "v1" and identity.sources and sorted(identity.sources) != sorted(names):
            raise SourceCountError(
                f"There are [{len(identity.sources)}] sources in the checkpoint offsets and now there are "
                f"[{len(names)}] sources requested by the query. Cannot continue. A v1 checkpoint "
                f"({self._checkpoint.location}) keeps offsets by position and was made for {list(identity.sources)}, "
                f"the pipeline names {names}: name the same sources (any order), or start a v2 checkpoint."
            )

    def open_source(self, name: str) -> OpenSource:
        """The named source beside this checkpoint."""
        context = SourceContext(
            name=name,
            log=self._checkpoint.source_log(name),
            state=self._checkpoint.source_state(name),
            clock_ms=self._clock_ms,
            lane=self._lane.name,
        )
        return self._pipeline.sources[name].open(context)

    def should_fire(
        self, run: RunIdentity | None = None, *, held: Callable[[BatchKey], str | None] = lambda key: None
    ) -> FireDecision:
        """The sensor's question: is there a batch to finish, or anything newer than the offset log? Writes nothing.

        :param run: the asking run; a run that has planned a batch already must reach its operator again.
        :param held: which other run is alive at a batch, in words, or None.
        """
        changed_by = self._checkpoint.maintenance.in_progress()
        if changed_by is not None:
            return FireDecision(fire=False, reason=f"the checkpoint is being changed by `microbatch {changed_by}`")
        self.check_identity()
        position = read_position(self._lane)
        if position.planned is not None:
            by_another = held(BatchKey(self._lane.name, position.batch_id))
            if by_another is None:
                return FireDecision(fire=True, reason=f"batch {position.batch_id} is planned and not committed")
        if run is not None:
            own = self.planned_by(run, position)
            if own is not None:
                return FireDecision(fire=True, reason=f"this run planned batch {own}")
        if position.planned is not None:
            return FireDecision(fire=False, reason=str(by_another))
        ahead = [name for name in self._pipeline.sources if self._has_new(name, position.committed.get(name))]
        if should_construct_next_batch(
            is_new_data_available=bool(ahead),
            last_commit=position.last_commit,
            no_data_batches=self._pipeline.no_data_batches,
        ):
            reason = f"new data in {', '.join(ahead)}" if ahead else "the last batch asked for another one"
            return FireDecision(fire=True, reason=reason)
        return FireDecision(fire=False, reason=f"nothing after {render(position.committed)}")

    def planned_by(self, run: RunIdentity, position: Position) -> int | None:
        """Id of the newest committed batch that ``run`` planned or brought to its commit, or None.

        A retry follows its batch at once, so only the newest can be its own. A cleared run may be any: then the log is
        searched backwards, which is paid by clears alone.
        """
        newest = position.batch_id - 1
        if newest < 0:
            return None
        candidates = [newest] if run.clear_number == 0 else reversed(self._lane.commit_log.ids())
        for batch_id in candidates:
            entries = (self._lane.offset_log.get(batch_id), self._lane.commit_log.get(batch_id))
            if any(entry is not None and entry.run is not None and entry.run.same_work(run) for entry in entries):
                return batch_id
        return None

    def assigned(self, run: RunIdentity, position: Position) -> int | None:
        """Id of the batch that ``run`` has to work on before anything new: its own, else the one that is planned and
        not committed; None if there is neither."""
        planned_by = position.planned.run if position.planned else None
        own = None if planned_by is not None and planned_by.same_work(run) else self.planned_by(run, position)
        return position.batch_id if own is None and position.planned else own

    def plan(self, run: RunIdentity) -> PlannedBatch | None:
        """Continue the batch that the run is at or that is planned, or plan the next one.

        :param run: recorded in the entry.
        :return: the batch, durable in the offset log; None if there is nothing to do.
        :raises CheckpointError: if the checkpoint is not this pipeline's, is broken, or was planned concurrently.
        :raises SourceError: if a source cannot be used; nothing is written then.
        :raises SinkError: if the sink could only refuse the batch; nothing is written then.
        """
        self._checkpoint.maintenance.check_none()
        self.check_identity()
        position = read_position(self._lane)
        log.info("%s", position.describe())
        assigned = self.assigned(run, position)
        resumes = position.planned is not None and assigned == position.batch_id
        if assigned is None or resumes:
            key = BatchKey(self._lane.name, position.batch_id)
            if not self._pipeline.sink.admits(key):
                log.info("The sink %s takes no batch: nothing to do", self._pipeline.sink.location())
                return None
        if position.planned is not None and resumes:
            return self._resume(position.batch_id, position.planned)
        if assigned is not None:
            return self.load(assigned)
        for name in self._pipeline.sources:
            self.open_source(name).check()
        self.say_commit_again(position)
        self.claim()
        return self._plan_next(position, run)

    def claim(self) -> None:
        """Make the checkpoint this pipeline's, or raise if it is another's."""
        self._checkpoint.claim(
            pipeline=self._pipeline.name,
            sources=list(self._pipeline.sources),
            format=self._pipeline.checkpoint_format,
        )

    def load(self, batch_id: int) -> PlannedBatch:
        """A batch that is in the offset log.

        :raises BrokenLogError: if it is not.
        """
        entry = self._lane.offset_log.get(batch_id)
        if entry is None:
            raise BrokenLogError(
                f"batch {batch_id} is not in the offset log of {self._checkpoint.location}: it was never planned, or "
                "retention removed it."
            )
        commit = self._lane.commit_log.get(batch_id)
        return PlannedBatch(
            key=BatchKey(self._lane.name, batch_id),
            entry=entry,
            starts=starts_of(self._lane, batch_id, entry),
            resumed=True,
            committed=commit is not None,
            set_aside=commit is not None and commit.set_aside,
        )

    def check_replayable(self, planned: PlannedBatch) -> None:
        """:raises SourceError: if a source cannot read the batch's range again, with its reason."""
        for name in self._pipeline.sources:
            reason = self.open_source(name).not_replayable(planned.starts.get(name), planned.entry.ends.get(name))
            if reason is not None:
                raise SourceError(
                    f"batch {planned.key} cannot be replayed, source {name!r} cannot be read again: {reason}"
                )

    def say_commit_again(self, position: Position) -> None:
        """Tell every source again what is committed: a crash between commit entry and ``source.commit`` may have
        swallowed it. A failure is logged and never fails a batch."""
        if position.last_commit is not None:
            self.commit_sources(position.committed)

    def commit_sources(self, ends: Offsets) -> None:
        """``source.commit(end)`` for every source of the pipeline that has an end."""
        for name in self._pipeline.sources:
            end = ends.get(name)
            if end is None:
                continue
            try:
                self.open_source(name).commit(end)
            except SourceError as error:
                log.warning("source %s did not take commit(%s), it will be said again: %s", name, end, error)

    def keep_sources(self, planned: PlannedBatch) -> None:
        """Have every source keep the batch's range, whatever is committed after it.

        :raises SourceError: if one cannot.
        """
        for name in self._pipeline.sources:
            self.open_source(name).keep(planned.starts.get(name), planned.entry.ends.get(name))

    def release_sources(self, planned: PlannedBatch) -> None:
        """The batch is in the sink: what was kept for it is like any other range that is committed."""
        for name in self._pipeline.sources:
            self.open_source(name).release(planned.starts.get(name), planned.entry.ends.get(name))

    def _has_new(self, name: str, position: Offset | None) -> bool:
        source = self.open_source(name)
        return not source.finished(position) and source.has_new(position)

    def _resume(self, batch_id: int, entry: OffsetEntry) -> PlannedBatch:
        starts = starts_of(self._lane, batch_id, entry)
        # A removed source is carried forward with an empty range; only one that has rows in this batch is needed.
        needed = [name for name, end in entry.ends.items() if end != starts.get(name)]
        missing = [name for name in needed if name not in self._pipeline.sources]
        if missing:
            raise SourceError(
                f"batch {batch_id} of {self._checkpoint.location} was planned with rows of source "
                f"{', '.join(missing)}, which the pipeline no longer names. "
                "Put it back until the batch is committed, then remove it."
            )
        return PlannedBatch(key=BatchKey(self._lane.name, batch_id), entry=entry, starts=starts, resumed=True)

    def _plan_next(self, position: Position, run: RunIdentity) -> PlannedBatch | None:
        starts: dict[str, Offset | None] = {}
        ends: dict[str, Offset | None] = {}
        target = self._pipeline.target_seconds
        limited = {} if target is None else limits(self._lane, target_seconds=target)
        for name in self._pipeline.sources:
            source = self.open_source(name)
            start = position.committed.get(name)
            starts[name] = start
            if source.finished(start):
                ends[name] = start
            else:
                ends[name] = source.latest_offset(start, limited.get(name, UNLIMITED))
        # A removed source keeps its position in every entry: absent from two, Spark would read it again from the start.
        for name, offset in position.committed.items():
            if name not in ends:
                starts[name] = ends[name] = offset
        if not should_construct_next_batch(
            is_new_data_available=any(ends[name] != starts[name] for name in ends),
            last_commit=position.last_commit,
            no_data_batches=self._pipeline.no_data_batches,
        ):
            return None
        return self.write_entry(position, run, starts=starts, ends=ends)

    def write_entry(self, position: Position, run: RunIdentity, *, starts: Offsets, ends: Offsets) -> PlannedBatch:
        """Make the ranges the lane's next batch, durable in the offset log.

        :raises ConcurrentPlanError: if another run was faster.
        """
        for name in self._pipeline.sources:
            self.open_source(name).read(starts[name], ends[name])
        entry = OffsetEntry(
            ends=ends,
            starts=starts,
            batch_timestamp_ms=self._clock_ms(),
            watermark_ms=position.last_commit.next_watermark_ms if position.last_commit else 0,
            conf={**self._previous_conf(position), **self._pipeline.conf},
            run=run,
            pipeline=self._pipeline.name,
        )
        if not self._lane.offset_log.add(position.batch_id, entry):
            return self._planned_by_another(position.batch_id, run)
        log.info("Committed offsets for batch %s. Metadata %s", position.batch_id, metadata_text(entry))
        return PlannedBatch(key=BatchKey(self._lane.name, position.batch_id), entry=entry, starts=starts)

    def _previous_conf(self, position: Position) -> Mapping[str, str]:
        """What is pinned already: a lane goes on with its own settings, and begins with those of the live lane."""
        latest = position.latest
        if latest is None and self._lane.name != LIVE:
            newest = self._checkpoint.offset_log.latest()
            latest = None if newest is None else newest[1]
        return PINNED_BY_DEFAULT if latest is None else latest.conf

    def _planned_by_another(self, batch_id: int, run: RunIdentity) -> PlannedBatch:
        winner = self._lane.offset_log.get(batch_id)
        if winner is not None and winner.run is not None and winner.run.same_work(run):
            return self._resume(batch_id, winner)
        who = f"run {winner.run.run_id!r} of DAG {winner.run.dag_id!r}" if winner and winner.run else "another writer"
        raise ConcurrentPlanError(
            f"batch {batch_id} of {self._checkpoint.location} was planned by {who} at the same moment. Let that run "
            "finish it; set max_active_runs=1 on the DAG and do not share a checkpoint between DAGs."
        )
