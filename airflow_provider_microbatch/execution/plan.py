"""Plan: decide what a batch reads, and write that down before anything reads a row."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint, Lane
from airflow_provider_microbatch.checkpoint.entries import SKEW_MS, OffsetEntry, RunIdentity
from airflow_provider_microbatch.checkpoint.identity import BatchIdentity
from airflow_provider_microbatch.checkpoint.key import LIVE, BatchKey
from airflow_provider_microbatch.exceptions import (
    BatchPurgedError,
    BrokenLogError,
    ConcurrentPlanError,
    ForeignBatchError,
    ForeignCheckpointError,
    SourceCountError,
    SourceError,
)
from airflow_provider_microbatch.execution.decide import should_construct_next_batch
from airflow_provider_microbatch.execution.identity import expected_next
from airflow_provider_microbatch.execution.opened_sources import OpenedSources, Ranges
from airflow_provider_microbatch.execution.pace import limits
from airflow_provider_microbatch.execution.position import (
    Offsets,
    Position,
    late_commit,
    metadata_text,
    read_position,
    render,
    starts_of,
    take_back_if_late,
    take_back_late_commit,
)
from airflow_provider_microbatch.execution.source_names import check_names, check_no_half_rename
from airflow_provider_microbatch.execution.table_place import check_there
from airflow_provider_microbatch.execution.table_shape import check_shape
from airflow_provider_microbatch.pipeline import Pipeline, sql_settings
from airflow_provider_microbatch.runtime.masking import refusal
from airflow_provider_microbatch.runtime.session import loses_rows
from airflow_provider_microbatch.sinks import ExpectedBatch, Manifest, SinkContext

log = logging.getLogger(__name__)

PINNED_BY_DEFAULT = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "200",
    "spark.sql.ansi.enabled": "true",
}
"""Settings that change results, pinned with Spark's own defaults so that a replay on another machine sees the same."""


_DAY_MS = 24 * 60 * 60 * 1000


@dataclass(frozen=True, kw_only=True)
class PlannedBatch:
    """A batch that is in the offset log.

    :param key: the batch.
    :param entry: what it reads.
    :param starts: where each source's range begins.
    :param identity: by which a sink knows the batch.
    :param resumed: it was planned before this call.
    :param committed: it is in the commit log already: this run has done its work.
    :param set_aside: its commit entry says that it was set aside.
    """

    key: BatchKey
    entry: OffsetEntry
    starts: Offsets
    identity: BatchIdentity
    resumed: bool = False
    committed: bool = False
    set_aside: bool = False

    @property
    def ranges(self) -> Ranges:
        """What the batch reads of each source."""
        return Ranges(self.starts, self.entry.ends, frozenset(self.entry.unresolved))


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
        self._newest_command = 0
        self.sink = pipeline.sink.open(SinkContext(clock_ms=clock_ms))
        """Where the batches go."""
        self.sources = OpenedSources(pipeline.sources, checkpoint=checkpoint, lane=lane.name, clock_ms=clock_ms)

    def begin(self) -> None:
        """Look who is at the checkpoint, before anything is looked at that a batch is planned from.

        :raises MaintenanceError: if a command is.
        :raises CheckpointError: as :meth:`check_identity`.
        :raises SinkError: if readers could not read what is written now together with what is there.
        """
        newest = self._checkpoint.maintenance.check_none()
        if newest != self._newest_command:
            self._newest_command = newest
            self._checkpoint.names.forget()
        self.check_identity()
        check_shape(self._checkpoint, self.sink, lane=self._lane.name)

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
        names = self.sources.names
        if identity.format == "v1" and identity.sources and sorted(identity.sources) != sorted(names):
            raise SourceCountError(
                f"There are [{len(identity.sources)}] sources in the checkpoint offsets and now there are "
                f"[{len(names)}] sources requested by the query. Cannot continue. A v1 checkpoint "
                f"({self._checkpoint.location}) keeps offsets by position and was made for {list(identity.sources)}, "
                f"the pipeline names {names}: name the same sources (any order), or start a v2 checkpoint. If one of "
                f"them only has a new name: `microbatch rename-source {self._checkpoint.location} OLD NEW`."
            )

    def check_names(self, ends: Offsets) -> None:
        """Raise if a renamed source would be taken for a new one; see
        :func:`~airflow_provider_microbatch.execution.source_names.check_names`."""
        check_names(self._checkpoint, self.sources.names, ends)

    def check_no_command(self) -> None:
        """Raise if a command is at the checkpoint, or a rename was given up half way. What this process knows of names
        stands as long as no command has begun since it planned: then this costs no look at them.

        :raises MaintenanceError: if a command is.
        :raises SourceRenamedError: if a rename was.
        """
        newest = self._checkpoint.maintenance.check_none()
        check_no_half_rename(self._checkpoint, again=newest != self._newest_command)

    def should_fire(
        self,
        run: RunIdentity | None = None,
        *,
        held: Callable[[BatchKey], str | None] = lambda key: None,
        searched_ms: int | None = None,
    ) -> FireDecision:
        """The sensor's question: is there a batch to finish, or anything newer than the offset log? Writes nothing.

        :param run: the asking run; a run that has planned a batch already must reach its operator again.
        :param held: which other run is alive at a batch, in words, or None.
        :param searched_ms: when the run has asked before, milliseconds since the epoch. The answer was no, so no batch
            of before is its own, and a look costs the same however long the log is.
        """
        changed_by = self._checkpoint.maintenance.in_progress()
        if changed_by is not None:
            return FireDecision(fire=False, reason=f"the checkpoint is being changed by `microbatch {changed_by}`")
        self.check_identity()
        try:
            position = read_position(self._lane)
        except BrokenLogError:
            late = late_commit(self._checkpoint, self._lane)
            if late is None:
                raise
            return FireDecision(
                fire=True, reason=f"batch {late[0]} was rewound and committed after that: a run mends it"
            )
        self.check_names(position.latest.ends if position.latest else {})
        if position.planned is not None:
            by_another = held(BatchKey(self._lane.name, position.batch_id))
            if by_another is None:
                return FireDecision(fire=True, reason=f"batch {position.batch_id} is planned and not committed")
        if run is not None:
            own = self.own(run, position, newest_only=self.was_searched(searched_ms))
            if own:
                return FireDecision(fire=True, reason=f"this run planned batch {own[-1]}")
        if position.planned is not None:
            return FireDecision(fire=False, reason=str(by_another))
        ahead = self.sources.with_new(position.committed)
        if should_construct_next_batch(
            is_new_data_available=bool(ahead),
            last_commit=position.last_commit,
            no_data_batches=self._pipeline.no_data_batches,
        ):
            reason = f"new data in {', '.join(ahead)}" if ahead else "the last batch asked for another one"
            return FireDecision(fire=True, reason=reason)
        return FireDecision(fire=False, reason=f"nothing after {render(position.committed)}")

    def was_searched(self, searched_ms: int | None) -> bool:
        """Whether what was found in the log at that time still stands: no command has changed it since."""
        if searched_ms is None:
            return False
        changed_ms = self._checkpoint.maintenance.changed_ms()
        # Within the skew a log counts as changed, which costs a search.
        return changed_ms is None or changed_ms < searched_ms - SKEW_MS

    def own(self, run: RunIdentity, position: Position, *, newest_only: bool = False) -> list[int]:
        """Ids of the committed batches that ``run`` planned or brought to their commit, ascending.

        A retry follows its batch at once, so only the newest can be its own. A cleared run may have had any, and
        several: then the log is searched back to where the run began, which is paid by clears alone.
        """
        newest = position.batch_id - 1
        if newest < 0:
            return []
        if newest_only or not run.was_cleared:
            return [newest] if self._is_own(run, newest) else []
        began_ms = _ms(run.run_after)  # by another host's clock: a day is far more than these differ
        found = []
        for batch_id in reversed(self._lane.commit_log.ids()):
            commit = self._lane.commit_log.get(batch_id)
            if commit is not None and (commit.committed_ms or began_ms) < began_ms - _DAY_MS:
                break
            if self._is_own(run, batch_id):
                found.append(batch_id)
        return found[::-1]

    def own_before(self, run: RunIdentity) -> list[int]:
        """Of the batches that are the run's :meth:`own` those before the one that :meth:`plan` gives it."""
        if not run.was_cleared:
            return []
        position = self.position()
        assigned = self.assigned(run, position)
        return [batch_id for batch_id in self.own(run, position) if batch_id != assigned]

    def position(self) -> Position:
        """Where the lane stands. A commit entry that came after its batch was rewound is taken back.

        :raises BrokenLogError: if the two logs contradict each other.
        """
        try:
            return read_position(self._lane)
        except BrokenLogError:
            if not take_back_late_commit(self._checkpoint, self._lane):
                raise
        return read_position(self._lane)

    def _is_own(self, run: RunIdentity, batch_id: int) -> bool:
        entries = (self._lane.offset_log.get(batch_id), self._lane.commit_log.get(batch_id))
        return any(entry is not None and entry.run is not None and run.is_of(entry.run) for entry in entries)

    def assigned(self, run: RunIdentity, position: Position) -> int | None:
        """Id of the batch that ``run`` has to work on before anything new: the newest of its own, else the one that is
        planned and not committed; None if there is neither."""
        planned_by = position.planned.run if position.planned else None
        if planned_by is not None and run.is_of(planned_by):
            return position.batch_id
        own = self.own(run, position)
        return own[-1] if own else position.batch_id if position.planned else None

    def plan(self, run: RunIdentity) -> PlannedBatch | None:
        """Continue the batch that the run is at or that is planned, or plan the next one.

        :param run: recorded in the entry.
        :return: the batch, durable in the offset log; None if there is nothing to do.
        :raises CheckpointError: if the checkpoint is not this pipeline's, is broken, or was planned concurrently.
        :raises BatchPurgedError: if the run was cleared and retention may have removed its batch.
        :raises SourceError: if a source cannot be used; nothing is written then.
        :raises SinkError: if the sink could only refuse the batch; nothing is written then.
        """
        self.begin()
        position = self.position()
        self.check_names(position.latest.ends if position.latest else {})
        log.info("%s", position.describe())
        self._lane.check_gaps()
        assigned = self.assigned(run, position)
        resumes = position.planned is not None and assigned == position.batch_id
        if assigned is None or resumes:
            key = BatchKey(self._lane.name, position.batch_id)
            if not self.admits(key):
                log.info("The sink %s takes no batch: nothing to do", self.sink.location())
                return None
        if position.planned is not None and resumes:
            self.claim()
            # Not committed when this run came. Should it be by now, another run has done that, and this one goes on.
            return replace(self._resume(position.batch_id), committed=False, set_aside=False)
        if assigned is not None:
            return self.load(assigned)
        self._check_kept(run)
        self.sources.check()
        self.say_commit_again(position)
        self.claim()
        self.check_place(BatchKey(self._lane.name, position.batch_id))
        return self._plan_next(position, run)

    def _check_kept(self, run: RunIdentity) -> None:
        """A clear is about the past: a run that may have had a batch which is no longer known makes no new one.

        :raises BatchPurgedError: if the log begins later than the run.
        """
        oldest = min(self._lane.commit_log.ids(), default=0) if run.was_cleared else 0
        entry = self._lane.offset_log.get(oldest) if oldest > 0 else None
        if entry is not None and _ms(run.run_after) < entry.batch_timestamp_ms:
            raise BatchPurgedError(
                f"run {run.run_id!r} was cleared, and no batch of it is in {self._lane.offset_log.location}, which "
                f"begins with batch {oldest}. If it had one, retention (min_batches_to_retain) has removed it, and its "
                "range cannot be run again. What is new is left to the next run."
            )

    def claim(self) -> None:
        """Make the checkpoint this pipeline's, or raise if it is another's."""
        self._checkpoint.claim(
            pipeline=self._pipeline.name,
            sources=self.sources.names,
            format=self._pipeline.checkpoint_format,
        )

    def check_place(self, key: BatchKey) -> None:
        """See that nobody else has published under the number of a batch that is to be planned: two pipelines may write
        one table, it may have been kept under a new checkpoint, or be younger than the backup of this one. And that the
        table is there, if it ever was.

        :raises ForeignBatchError: if somebody has.
        :raises SinkError: if the table seems to be away.
        """
        check_there(self._checkpoint, self.sink)
        try:
            self.published(expected_next(self._checkpoint, key))
        except ForeignBatchError:
            if not self._checkpoint.lane(key.lane).offset_log.has(key.id):
                raise
            # Another run has planned and published it since this one looked: nobody else's, and whoever writes the
            # entry finds that out.

    def published(self, batch: ExpectedBatch) -> Manifest | None:
        """What the sink has of the batch.

        :raises ForeignBatchError: if it has something else; the pipeline is on record then, so that commands know its
            sink.
        """
        return self._asked(self.sink.contains, batch)

    def finished(self, batch: ExpectedBatch) -> Manifest | None:
        """The same, after what was cut off between two tables has been finished; see :meth:`OpenSink.finish`."""
        return self._asked(self.sink.finish, batch)

    def _asked(self, question: Callable[[ExpectedBatch], Manifest | None], batch: ExpectedBatch) -> Manifest | None:
        try:
            return question(batch)
        except ForeignBatchError:
            self._checkpoint.definitions.put(self._pipeline.to_dict())
            raise

    def load(self, batch_id: int) -> PlannedBatch:
        """A batch of the lane; see :func:`load_batch`."""
        return load_batch(self._checkpoint, BatchKey(self._lane.name, batch_id))

    def say_commit_again(self, position: Position) -> None:
        """Tell every source again what is committed: a crash between commit entry and ``source.commit`` may have
        swallowed it. A failure is logged and never fails a batch."""
        if position.last_commit is not None:
            self.sources.commit(position.committed)

    def admits(self, key: BatchKey) -> bool:
        """Whether the sink takes the batch; see :meth:`~airflow_provider_microbatch.sinks.Sink.admits`."""
        identity = self._checkpoint.identity()
        owned = identity is not None and identity.pipeline is not None
        return self.sink.admits(self._checkpoint.batch(key) if owned else BatchIdentity.at(key))

    def _resume(self, batch_id: int) -> PlannedBatch:
        planned = self.load(batch_id)
        missing = self.sources.missing(planned.ranges)
        if missing is not None:
            raise SourceError(f"batch {batch_id} of {self._checkpoint.location} was planned with {missing}")
        return planned

    def _plan_next(self, position: Position, run: RunIdentity) -> PlannedBatch | None:
        target = self._pipeline.target_seconds
        paced = {} if target is None else limits(self._lane, splits=self.sources.splits(), target_seconds=target)
        ranges = self.sources.next_ranges(position.committed, paced)
        if not should_construct_next_batch(
            is_new_data_available=not ranges.are_empty,
            last_commit=position.last_commit,
            no_data_batches=self._pipeline.no_data_batches,
        ):
            return None
        return self.write_entry(position, run, ranges)

    def write_entry(self, position: Position, run: RunIdentity, ranges: Ranges) -> PlannedBatch:
        """Make the ranges the lane's next batch, durable in the offset log. :meth:`begin` was before.

        :raises ConcurrentPlanError: if another run was faster.
        """
        self.sources.reads(ranges)
        if ranges.late and self.sink.definition.names:
            # Each sink's frame is computed by a job of its own, and each would end where it comes to an end.
            raise SourceError(
                f"source {', '.join(sorted(ranges.late))} has an end that is known only after reading, and pipeline "
                f"{self._pipeline.name!r} has several sinks, for each of which it would be read once more. Nothing was "
                "planned. Give the pipeline one sink, and let another pipeline read that."
            )
        entry = OffsetEntry(
            ends=ranges.ends,
            starts=ranges.starts,
            late=tuple(sorted(ranges.late)),
            batch_timestamp_ms=self._clock_ms(),
            watermark_ms=position.last_commit.next_watermark_ms if position.last_commit else 0,
            conf={**self._previous_conf(position), **self._pipeline.conf},
            run=run,
            pipeline=self._pipeline.name,
        )
        if not self._lane.offset_log.add(position.batch_id, entry):
            return self._planned_by_another(position.batch_id, run)
        take_back_if_late(self._checkpoint, self._lane, position.batch_id, entry, newest=self._newest_command)
        if self._lane.offset_log.latest_id() != position.batch_id:
            raise self._concurrent(position.batch_id, "whoever went on from it")
        # Settings by name: more people read a task's log than the offset log.
        shown = replace(entry, conf=dict.fromkeys(entry.conf, "…"))
        log.info("Committed offsets for batch %s. Metadata %s", position.batch_id, metadata_text(shown))
        key = BatchKey(self._lane.name, position.batch_id)
        batch = self._checkpoint.batch(key, entry, self._lane.offset_log.encoded(entry))
        return PlannedBatch(key=key, entry=entry, starts=ranges.starts, identity=batch)

    def _previous_conf(self, position: Position) -> Mapping[str, str]:
        """What is pinned already: a lane goes on with its own settings, and begins with those of the live lane."""
        latest = position.latest
        if latest is None and self._lane.name != LIVE:
            newest = self._checkpoint.offset_log.latest()
            latest = None if newest is None else newest[1]
        conf = PINNED_BY_DEFAULT if latest is None else latest.conf
        # Older versions pinned whatever they were given.
        kept = sql_settings(conf).items()
        return {key: value for key, value in kept if refusal(key, value) is None and loses_rows(key, value) is None}

    def _planned_by_another(self, batch_id: int, run: RunIdentity) -> PlannedBatch:
        winner = self._lane.offset_log.get(batch_id)
        if winner is not None and winner.run is not None and run.is_of(winner.run):
            return self._resume(batch_id)
        who = f"run {winner.run.run_id!r} of DAG {winner.run.dag_id!r}" if winner and winner.run else "another writer"
        raise self._concurrent(batch_id, who)

    def _concurrent(self, batch_id: int, who: str) -> ConcurrentPlanError:
        return ConcurrentPlanError(
            f"batch {batch_id} of {self._checkpoint.location} was planned by {who} at the same moment. Nothing was "
            "done here; that run, or the next one, finishes the batch."
        )


def load_batch(checkpoint: Checkpoint, key: BatchKey) -> PlannedBatch:
    """A batch that is in the offset log.

    :raises BrokenLogError: if it is not.
    """
    lane = checkpoint.lane(key.lane)
    read = lane.offset_log.read(key.id)
    if read is None:
        raise BrokenLogError(
            f"batch {key.id} is not in the offset log of {checkpoint.location}: it was never planned, or retention "
            "removed it."
        )
    commit = lane.commit_of(key.id)
    return PlannedBatch(
        key=key,
        entry=read[0],
        starts=starts_of(lane, key.id, read[0]),
        identity=checkpoint.batch(key, *read),
        resumed=True,
        committed=commit is not None,
        set_aside=commit is not None and commit.set_aside,
    )


def _ms(moment: str | None) -> int:
    """A moment in ISO 8601 as milliseconds since the epoch; 0, before everything, for None."""
    return 0 if moment is None else int(datetime.fromisoformat(moment).timestamp() * 1000)
