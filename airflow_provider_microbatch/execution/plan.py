"""Plan: decide what a batch reads, and write that down before anything reads a row."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from shlex import quote
from typing import TypeVar

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint, Lane
from airflow_provider_microbatch.checkpoint.entries import SKEW_MS, OffsetEntry, RunIdentity
from airflow_provider_microbatch.checkpoint.identity import BatchIdentity
from airflow_provider_microbatch.checkpoint.key import LETTERS, LIVE, BatchKey
from airflow_provider_microbatch.exceptions import (
    BatchPurgedError,
    BrokenLogError,
    CheckpointError,
    ConcurrentPlanError,
    ForeignBatchError,
    ForeignCheckpointError,
    SinkError,
    SourceCountError,
    SourceError,
)
from airflow_provider_microbatch.execution.came_back import check_none_came_back
from airflow_provider_microbatch.execution.decide import should_construct_next_batch
from airflow_provider_microbatch.execution.identity import expected_next, found_in, is_of_one_attempt
from airflow_provider_microbatch.execution.made_before import made_before
from airflow_provider_microbatch.execution.opened_sources import OpenedSources, Ranges
from airflow_provider_microbatch.execution.own_batches import OwnBatches, ms_of
from airflow_provider_microbatch.execution.pace import limits
from airflow_provider_microbatch.execution.planned import PlannedBatch, load_batch
from airflow_provider_microbatch.execution.position import (
    Offsets,
    Position,
    metadata_text,
    read_position,
    render,
    take_back_if_late,
    take_back_late_commit,
)
from airflow_provider_microbatch.execution.refused_plan import record_refused
from airflow_provider_microbatch.execution.rewind_named import rewind_named
from airflow_provider_microbatch.execution.source_names import check_names, check_no_half_rename
from airflow_provider_microbatch.execution.standing_state import standing_commit
from airflow_provider_microbatch.execution.stateful import check_goes_on
from airflow_provider_microbatch.execution.table_place import check_none_lost, check_there
from airflow_provider_microbatch.execution.table_shape import check_shape
from airflow_provider_microbatch.execution.unknown_batches import check_none_unknown
from airflow_provider_microbatch.flow import PipelineFlow
from airflow_provider_microbatch.pipeline import Pipeline, sql_settings
from airflow_provider_microbatch.runtime.masking import refusal
from airflow_provider_microbatch.runtime.session import loses_rows
from airflow_provider_microbatch.sinks import ExpectedBatch, Manifest, SinkContext
from airflow_provider_microbatch.sinks.several import check_adopted_in_all

log = logging.getLogger(__name__)

Asked = TypeVar("Asked")
Found = TypeVar("Found")

PINNED_BY_DEFAULT = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "200",
    "spark.sql.ansi.enabled": "true",
}
"""Settings that change results, pinned with Spark's own defaults so that a replay on another machine sees the same."""


class Planner:
    """Plans batches of one lane of a pipeline's checkpoint.

    :param pipeline: the pipeline.
    :param checkpoint: its checkpoint.
    :param lane: the lane.
    :param clock_ms: the time, milliseconds since the epoch.
    """

    def __init__(self, *, pipeline: Pipeline, checkpoint: Checkpoint, lane: Lane, clock_ms: Callable[[], int]) -> None:
        self.pipeline = pipeline
        self.checkpoint = checkpoint
        self.lane = lane
        self._clock_ms = clock_ms
        self._newest_command = 0
        self.sink = pipeline.sink.open(SinkContext(clock_ms=clock_ms))
        """The sink of the batches."""
        self.own = OwnBatches(checkpoint=checkpoint, lane=lane)
        """Which batches of the lane are a run's."""
        self.has_begun = False
        """Whether :meth:`begin` has checked what it checks."""
        self.sources = OpenedSources(
            pipeline.sources,
            checkpoint=checkpoint,
            lane=lane.name,
            clock_ms=clock_ms,
            moves_alone=pipeline.sink.keeps_batches,
        )

    def begin(self, run: RunIdentity) -> None:
        """Check for a command at the checkpoint, before anything is read that a batch is planned from, and say to which
        tables the pipeline writes by now: also a run that is refused by then, or finds nothing new, tells that.

        :raises MaintenanceError: if a command is at the checkpoint.
        :raises CheckpointError: as :meth:`check_identity`.
        :raises SinkError: if readers could not read the next batch together with those that are there.
        """
        newest = self.checkpoint.maintenance.check_none()
        if newest != self._newest_command:
            self._newest_command = newest
            self.checkpoint.names.forget()
        self.sources.forget()
        self.check_identity()
        self.say_sink(plans=not run.was_cleared)
        check_shape(self.checkpoint, self.sink, lane=self.lane.name)
        self.has_begun = True

    def say_sink(self, *, plans: bool, begins: bool = False) -> None:
        """Say which sink the pipeline has, for a rewind: it is to take nothing out of a table that does not come back.

        :param plans: whether it is the sink of a plan; else that of a clear, which may be of the code of long ago, or
            of an attempt, which may have slept since its plan.
        :param begins: whether it may be the first that is said all the same.
        """
        if self.lane.name == LETTERS:
            return  # whoever runs letters again has the pipeline on record, which may be older than that of now
        identity = self.checkpoint.identity()
        if identity is None or identity.pipeline is None:
            return  # there is no batch yet
        said, sink = self.checkpoint.sinks_in_force, self.pipeline.sink.to_dict()
        if plans:
            said.planned(sink)
        else:
            said.ran(sink, begins=begins)

    def check_identity(self) -> None:
        """Raise if the checkpoint is another pipeline's or has another number of v1 sources. Writes nothing."""
        identity = self.checkpoint.identity()
        if identity is None:
            return
        if identity.pipeline not in (None, self.pipeline.name):
            raise ForeignCheckpointError(
                f"checkpoint {self.checkpoint.location} belongs to pipeline {identity.pipeline!r}, not to "
                f"{self.pipeline.name!r}. Give each pipeline a checkpoint of its own, or keep the old name."
            )
        names = self.sources.names
        if identity.format == "v1" and identity.sources and sorted(identity.sources) != sorted(names):
            raise SourceCountError(
                f"There are [{len(identity.sources)}] sources in the checkpoint offsets and now there are "
                f"[{len(names)}] sources requested by the query. Cannot continue. A v1 checkpoint "
                f"({self.checkpoint.location}) keeps offsets by position and was made for {list(identity.sources)}, "
                f"the pipeline names {names}: name the same sources (any order), or start a v2 checkpoint. If one of "
                f"them only has a new name: `microbatch rename-source {quote(self.checkpoint.location)} OLD NEW`."
            )

    def check_names(self, ends: Offsets) -> None:
        """Raise if a renamed source would be taken for a new one; see
        :func:`~airflow_provider_microbatch.execution.source_names.check_names`."""
        check_names(self.checkpoint, self.sources.names, ends)

    def check_no_command(self) -> None:
        """Raise if a command is at the checkpoint, or a rename was given up half way. The source names that this
        process knows stand as long as no command has begun since it planned: then the check costs no look at them.

        :raises MaintenanceError: if a command is at the checkpoint.
        :raises SourceRenamedError: if a rename was given up half way.
        """
        newest = self.checkpoint.maintenance.check_none()
        check_no_half_rename(self.checkpoint, again=newest != self._newest_command)

    def is_last(self, planned: PlannedBatch, manifest: Manifest) -> bool:
        """Whether a batch of the live lane that is about to be committed is the pipeline's last one.

        :param manifest: of its output.
        """
        asks_for_another = bool(manifest.result.get("requiresAnotherBatch", False))
        if self.lane.name != LIVE or asks_for_another or planned.committed:
            return False
        return self.sources.are_finished(planned.entry.ends)

    def complete(self, position: Position | None = None) -> str | None:
        """The statement, in words, that no data will ever come and the lane has no batch to make; None otherwise. The
        statement follows from durable records: the committed ends, and the bound of each bounded source.

        :param position: where the lane stands, if the caller knows.
        """
        position = position or self.position()
        if position.planned is not None or not self.sources.are_finished(position.committed):
            return None
        return f"complete: all its sources are finished, and there is nothing after {render(position.committed)}"

    def position(self) -> Position:
        """Where the lane stands. A commit entry that came after its batch was rewound is taken back.

        :raises BrokenLogError: if the two logs contradict each other.
        """
        try:
            return read_position(self.lane)
        except BrokenLogError:
            if not take_back_late_commit(self.checkpoint, self.lane):
                raise
        return read_position(self.lane)

    def plan(self, run: RunIdentity) -> PlannedBatch | None:
        """Continue the batch that the run is at or that is planned, or plan the next one.

        :param run: recorded in the entry.
        :return: the batch, durable in the offset log; None if there is nothing to do.
        :raises CheckpointError: if the checkpoint is not this pipeline's, is broken, or was planned concurrently.
        :raises BatchPurgedError: if the run was cleared and retention may have removed its batch.
        :raises SourceError: if a source cannot be used; no batch is written then. The pipeline is on record, so that
            commands know its sources.
        :raises SinkError: if the sink could only refuse the batch; no batch is written then, and the pipeline is on
            record.
        """
        self.begin(run)
        self.sink.check()
        position = self.position()
        self.check_names(position.latest.ends if position.latest else {})
        check_goes_on(self.pipeline, self.checkpoint, position.last_commit)
        log.info("%s", position.describe())
        self.lane.check_gaps()
        assigned = self.own.assigned(run, position)
        resumes = position.planned is not None and assigned == position.batch_id
        if assigned is None or resumes:
            key = BatchKey(self.lane.name, position.batch_id)
            if not self.admits(key):
                log.info("The sink %s takes no batch: nothing to do", self.sink.location())
                return None
        if position.planned is not None and resumes:
            check_none_came_back(self.checkpoint, self.sink, self.lane.name)
            self.claim()
            # Not committed when this run came. If the batch is committed by now, another run has done that, and this
            # run goes on.
            return replace(self._resume(position.batch_id), committed=False, set_aside=False)
        if assigned is not None:
            self._say_what_is_kept(run)
            return self.load(assigned)
        self._check_kept(run)
        position = self.standing(position)
        try:
            self.sources.check(position.committed)
            self.say_commit_again(position)
            self.claim()
            self.check_place(BatchKey(self.lane.name, position.batch_id))
            return self._plan_next(position, run)
        except (SourceError, SinkError):
            # No attempt tells of a source that refuses: commands that say where to go on ask it as this plan did (a
            # table that was renamed is only found under its new name), and so does `check`. Nor does one tell to which
            # tables the pipeline writes by now: a rewind is not to take out of the others what does not come back.
            with suppress(CheckpointError):  # what the source says is to be read, not what the store does
                key = BatchKey(self.lane.name, position.batch_id)
                record_refused(self.checkpoint, key, self.pipeline.to_dict())
            raise

    def _check_kept(self, run: RunIdentity) -> None:
        """Check that a cleared run makes no new batch if its own may be gone: a clear is about the past, and the run
        may have had a batch which is no longer known.

        :raises BatchPurgedError: if the log begins later than the run.
        """
        oldest = self._begins_behind(run)
        if oldest is not None:
            raise BatchPurgedError(
                f"run {run.run_id!r} was cleared, and no batch of it is in {self.lane.offset_log.location}, which "
                f"begins with batch {oldest}. If it had one, retention (min_batches_to_retain) has removed it, and its "
                "range cannot be run again. What is new is left to the next run."
            )

    def _say_what_is_kept(self, run: RunIdentity) -> None:
        """Warn if a cleared run replays its batches, and some may be gone: as many as it had once stay as they are."""
        oldest = self._begins_behind(run)
        if oldest is not None:
            log.warning(
                "Run %r was cleared, and %s begins with batch %s. If it had batches before that, retention "
                "(min_batches_to_retain) has removed them from the log: they are not replayed, and stay as they are",
                run.run_id, self.lane.offset_log.location, oldest,
            )  # fmt: skip

    def _begins_behind(self, run: RunIdentity) -> int | None:
        """The oldest batch of the log, if the run was cleared and may have had batches before it; else None. The run
        began by the scheduler's clock, and the batch was planned by a worker's."""
        oldest = min(self.lane.commit_log.ids(), default=0) if run.was_cleared else 0
        entry = self.lane.offset_log.get(oldest) if oldest > 0 else None
        if entry is None or ms_of(run.run_after) - SKEW_MS >= entry.batch_timestamp_ms:
            return None
        return oldest

    def standing(self, position: Position, *, by_record: bool = False) -> Position:
        """The position, with the last commit as the next batch goes on from it; raises as
        :func:`~airflow_provider_microbatch.execution.standing_state.standing_commit`.

        :param position: nothing is planned there.
        :param by_record: as there.
        """
        if not self.pipeline.stateful or position.last_commit is None:
            return position
        key = BatchKey(self.lane.name, position.batch_id)
        commit = standing_commit(self.checkpoint, self.sink, key, position.last_commit, by_record=by_record)
        return replace(position, last_commit=commit)

    def claim(self) -> None:
        """Make the checkpoint this pipeline's, or raise if it is another's."""
        self.checkpoint.claim(
            pipeline=self.pipeline.name,
            sources=self.sources.names,
            format=self.pipeline.checkpoint_format,
        )

    def check_place(self, key: BatchKey) -> None:
        """Check that no other pipeline or checkpoint has published a batch under the number that is about to be
        planned, or a later one: two pipelines may write one table, and the table may have been kept under a new
        checkpoint, or be younger than the backup of this one. Also check that the table is there, if it ever was.

        :raises ForeignBatchError: if another pipeline or checkpoint has published one.
        :raises SinkError: if the table seems to be away.
        """
        check_there(self.checkpoint, self.sink)
        check_none_lost(self.checkpoint, self.sink, key)
        try:
            self.published(expected_next(self.checkpoint, key))
        except ForeignBatchError:
            if not self.checkpoint.lane(key.lane).offset_log.has(key.id):
                raise
            # Another run has planned and published the batch since this one looked: it is not foreign, and the write of
            # the entry finds that out.
        self._asked(partial(check_none_unknown, self.checkpoint, self.sink), key)

    def published(self, batch: ExpectedBatch) -> Manifest | None:
        """The manifest of the batch in the sink; None if the batch is not there.

        :raises ForeignBatchError: if the sink has another batch there; the pipeline is on record then, if the store
            takes it, so that commands know its sink.
        """
        return self._asked(self.sink.contains, batch)

    def seen(self, batch: ExpectedBatch) -> Manifest | None:
        """What readers find of the batch, see :meth:`OpenSink.seen`; raises as :meth:`published`."""
        return self._asked(self.sink.seen, batch)

    def finished(self, batch: ExpectedBatch, *, committed: bool) -> Manifest | None:
        """As :meth:`published`, after a publish or replace that was cut off between two tables has been finished; see
        :meth:`OpenSink.finish`.

        :param committed: whether the batch is committed. If it is, the output of a replay that was begun and not ended
            counts as the batch's. If it is not, of two attempts' output, neither of which can be brought to its end,
            none counts.
        :raises SinkError: if it is not, and only some of the tables have output that was adopted.
        """
        found = self._asked(self.sink.finish, batch)
        if not committed and len(self.sink.tables) > 1 and self.checkpoint.adoptions.get(batch.key) is not None:
            check_adopted_in_all(batch.key, [(table, found_in(table, batch)) for table in self.sink.tables])
        return found if found is None or committed or is_of_one_attempt(self.sink, batch, found) else None

    def _asked(self, question: Callable[[Asked], Found], batch: Asked) -> Found:
        try:
            return question(batch)
        except ForeignBatchError:
            with suppress(CheckpointError):  # whose the batch is is to be read, not what the store does
                self.checkpoint.definitions.put(self.pipeline.to_dict())
            raise

    def load(self, batch_id: int) -> PlannedBatch:
        """A batch of the lane; see :func:`load_batch`."""
        return load_batch(self.checkpoint, BatchKey(self.lane.name, batch_id))

    def say_commit_again(self, position: Position) -> None:
        """Tell every source again which offsets are committed: a crash between commit entry and ``source.commit`` may
        have swallowed that. A failure is logged and never fails a batch."""
        if position.last_commit is not None:
            self.sources.commit(position.committed)

    def admits(self, key: BatchKey) -> bool:
        """Whether the sink takes the batch; see :meth:`~airflow_provider_microbatch.sinks.Sink.admits`."""
        identity = self.checkpoint.identity()
        owned = identity is not None and identity.pipeline is not None
        return self.sink.admits(self.checkpoint.batch(key) if owned else BatchIdentity.at(key))

    def _resume(self, batch_id: int) -> PlannedBatch:
        planned = self.load(batch_id)
        missing = self.sources.missing(planned.ranges)
        if missing is not None:
            back = rewind_named(self.checkpoint, self.sink, self.lane.name, batch_id - 1)
            way = (
                f" Or take the batch back: {back}; it is planned anew then, without these rows, which nothing reads "
                "until the source is put back."
            )
            raise SourceError(
                f"batch {batch_id} of {self.checkpoint.location} was planned with {missing}{way if back else ''}"
            )
        # Before an attempt is opened, which would be on record as made for the present tables.
        self._check_read_once(planned.ranges)
        return planned

    def _plan_next(self, position: Position, run: RunIdentity) -> PlannedBatch | None:
        before = None
        if self.pipeline.stateful:
            before = made_before(
                self.checkpoint,
                self.sources,
                position,
                lane=self.lane.name,
                no_data_batches=self.pipeline.no_data_batches,
            )
        ranges = self._new_ranges(position) if before is None else before
        if not should_construct_next_batch(
            is_new_data_available=not ranges.are_empty,
            last_commit=position.last_commit,
            no_data_batches=self.pipeline.no_data_batches,
        ):
            if (complete := self.complete(position)) is not None:
                log.info("Pipeline %s is %s", self.pipeline.name, complete)
            return None
        return self.write_entry(position, run, ranges)

    def _new_ranges(self, position: Position) -> Ranges:
        target = self.pipeline.target_seconds
        paced = {} if target is None else limits(self.lane, splits=self.sources.splits(), target_seconds=target)
        return self.sources.next_ranges(position.committed, paced)

    def write_entry(self, position: Position, run: RunIdentity, ranges: Ranges) -> PlannedBatch:
        """Make the ranges the lane's next batch, durable in the offset log. Callers have called :meth:`begin` before.

        :raises ConcurrentPlanError: if another run was faster.
        """
        self._check_read_once(ranges)
        self.sources.reads(ranges)
        flow = self.pipeline.transform
        entry = OffsetEntry(
            ends=ranges.ends,
            starts=ranges.starts,
            late=tuple(sorted(ranges.late)),
            batch_timestamp_ms=self._clock_ms(),
            watermark_ms=position.last_commit.next_watermark_ms if position.last_commit else 0,
            conf={**self._previous_conf(position), **self.pipeline.conf},
            run=run,
            pipeline=self.pipeline.name,
            read_as=self.sources.read_as(ranges),
            parallelism=flow.parallelism if isinstance(flow, PipelineFlow) else {},
        )
        if not self.lane.offset_log.add(position.batch_id, entry):
            return self._planned_by_another(position.batch_id, run)
        take_back_if_late(self.checkpoint, self.lane, position.batch_id, entry, newest=self._newest_command)
        if self.lane.offset_log.latest_id() != position.batch_id:
            raise self._concurrent(position.batch_id, "whoever went on from it")
        # Only the names of the settings: more people read a task's log than the offset log.
        shown = replace(entry, conf=dict.fromkeys(entry.conf, "…"))
        log.info("Committed offsets for batch %s. Metadata %s", position.batch_id, metadata_text(shown))
        key = BatchKey(self.lane.name, position.batch_id)
        batch = self.checkpoint.batch(key, entry, self.lane.offset_log.encoded(entry))
        return PlannedBatch(key=key, entry=entry, starts=ranges.starts, identity=batch)

    def _check_read_once(self, ranges: Ranges) -> None:
        if ranges.late and len(self.sink.tables) > 1:
            # Each sink's frame is computed by a job of its own, and each job would end where its own reading ends.
            raise SourceError(
                f"source {', '.join(sorted(ranges.late))} has an end that is known only after reading, and pipeline "
                f"{self.pipeline.name!r} has several sinks (dead letters are one), for each of which it would be read "
                "once more. Nothing was read. Give the pipeline one sink, and let another pipeline read that."
            )

    def _previous_conf(self, position: Position) -> Mapping[str, str]:
        """The settings pinned already: a lane goes on with its own, and begins with those of the live lane."""
        latest = position.latest
        if latest is None and self.lane.name != LIVE:
            newest = self.checkpoint.offset_log.latest()
            latest = None if newest is None else newest[1]
        conf = PINNED_BY_DEFAULT if latest is None else latest.conf
        # Older versions pinned every setting that they were given.
        kept = sql_settings(conf).items()
        return {key: value for key, value in kept if refusal(key, value) is None and loses_rows(key, value) is None}

    def _planned_by_another(self, batch_id: int, run: RunIdentity) -> PlannedBatch:
        winner = self.lane.offset_log.get(batch_id)
        if winner is not None and winner.run is not None and run.is_of(winner.run):
            return self._resume(batch_id)
        who = f"run {winner.run.run_id!r} of DAG {winner.run.dag_id!r}" if winner and winner.run else "another writer"
        raise self._concurrent(batch_id, who)

    def _concurrent(self, batch_id: int, who: str) -> ConcurrentPlanError:
        return ConcurrentPlanError(
            f"batch {batch_id} of {self.checkpoint.location} was planned by {who} at the same moment. Nothing was "
            "done here; that run, or the next one, finishes the batch."
        )
