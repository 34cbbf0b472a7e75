"""The janitor finishes, in bounded time, the work that listeners and dying processes left undone, whichever process was
killed at which moment.

The janitor works from the checkpoint alone. Its list of work is the leases, which name every unfinished attempt, and
the stages in the sinks; so the cost of a run depends on the work that is left, not on the history.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.entries import DEAD, Attempt, AttemptEnd
from airflow_provider_microbatch.checkpoint.fences import FencedBy, fence, is_fence_by
from airflow_provider_microbatch.checkpoint.identity import BatchIdentity
from airflow_provider_microbatch.checkpoint.key import LETTERS, LIVE, BatchKey
from airflow_provider_microbatch.clock import now_ms
from airflow_provider_microbatch.exceptions import (
    BrokenLogError,
    HandleError,
    MicroBatchError,
    PartlyRemovedError,
    SinkError,
    UnconnectedError,
    UntrustedError,
)
from airflow_provider_microbatch.execution.came_back import is_left
from airflow_provider_microbatch.execution.dropping import drop_stage
from airflow_provider_microbatch.execution.identity import expected_on_record, published_in
from airflow_provider_microbatch.execution.liveness import EngineOf, no_engine, sign_of_life
from airflow_provider_microbatch.execution.opened_sources import OpenedSources
from airflow_provider_microbatch.execution.planned import load_batch
from airflow_provider_microbatch.execution.replay import finish_replay
from airflow_provider_microbatch.execution.retention import (
    apply_retention,
    compact_logs,
    purge_definitions,
    purge_marks,
    retained,
    that_grow,
)
from airflow_provider_microbatch.execution.stateful import drop_own_folder
from airflow_provider_microbatch.execution.status import (
    definition_if_there,
    end_attempt,
    hooks_of,
    is_committed,
)
from airflow_provider_microbatch.execution.subtasks import drop_kept, is_over
from airflow_provider_microbatch.job_status import JobStatusHook, Telling
from airflow_provider_microbatch.sinks import Manifest, OpenSink, Sink, SinkContext
from airflow_provider_microbatch.upkeep.commands.gone import Answering, not_reached
from airflow_provider_microbatch.upkeep.commands.site import Recorded
from airflow_provider_microbatch.upkeep.janitor_report import JanitorReport

log = logging.getLogger(__name__)

GRACE_SECONDS = 60 * 60.0
"""Seconds for which output that a replay replaced is kept, for readers that opened it earlier."""

_TABLE_LEFT = "table left alone"


class Janitor:
    """Cleans up after dead attempts of one checkpoint. Never touches a live attempt, nor published data.

    Every step can be repeated: if the janitor is killed anywhere, its next run continues. The steps for a dead attempt
    are: take the next epoch, so that the attempt loses should it wake up; stop its Spark; drop its stage; record its
    end; call the hooks. A published and uncommitted batch is left to the pipeline's next run, which commits it. The
    clears that a published replay was made for are answered here.

    :param checkpoint: the checkpoint to clean up.
    :param sinks: sinks at hand, as in a DAG that has the pipeline: searched for stages beside the sinks that the
        checkpoint has on record, and used in place of those on record that have the same form.
    :param hooks: job status hooks at hand, used in the same way.
    :param engine_of: finds an engine, to ask whether an attempt runs and to stop it.
    :param grace_seconds: how long replaced output is kept.
    :param dry_run: report the actions, and write nothing.
    :param clock_ms: the time, milliseconds since the epoch.
    """

    def __init__(
        self,
        *,
        checkpoint: Checkpoint,
        sinks: Sequence[Sink] = (),
        hooks: Sequence[JobStatusHook] = (),
        engine_of: EngineOf = no_engine,
        grace_seconds: float = GRACE_SECONDS,
        dry_run: bool = False,
        clock_ms: Callable[[], int] = now_ms,
    ) -> None:
        self._checkpoint = checkpoint
        self._given_sinks = sinks
        self._given_hooks = hooks
        self._engine_of = engine_of
        self._grace_seconds = grace_seconds
        self._dry_run = dry_run
        self._clock_ms = clock_ms
        self._own = ""
        self._answering = Answering(checkpoint.tables.following_moves)

    def run(self) -> JanitorReport:
        """Do all outstanding work. An attempt that cannot be cleaned up is reported, and the other attempts are cleaned
        up.

        :raises CheckpointError: if the checkpoint cannot be read at all, or a command is changing it.
        """
        self._checkpoint.maintenance.check_none()
        identity = self._checkpoint.identity()
        name = identity.pipeline if identity is not None else None
        report = JanitorReport(location=self._checkpoint.location, pipeline=name or "", dry_run=self._dry_run)
        if name is None:
            return report  # this package has never planned a batch here
        own = self._own = identity.query_id if identity is not None else ""
        self._answering = Answering(self._checkpoint.tables.following_moves)
        sinks = self._sinks(report)
        work, sinks = self._work(sinks, report)
        for key, epoch in work:
            try:
                self._attempt(key, epoch, sinks, report)
            except UntrustedError as error:
                report.add("refused", f"{key} attempt {epoch}", str(error))
            except Exception as error:
                self._failed(f"{key} attempt {epoch}", error, report)
        for sink in sinks:
            for what, drop in (("replaced output removed", sink.drop_replaced), ("fence removed", sink.drop_fences)):
                try:
                    removed = drop(own, older_seconds=self._grace_seconds, dry_run=self._dry_run)
                except Exception as error:
                    self._failed(sink.location(), error, report)
                    removed = list(error.removed) if isinstance(error, PartlyRemovedError) else []
                for path in removed:
                    report.add(what, path, f"older than {self._grace_seconds:.0f} s")
        self._drop_kept(sinks, report)
        self._retain(report)
        try:
            for what in compact_logs(self._checkpoint, dry_run=self._dry_run):
                report.add("log compacted", what, "old entries, a thousand in one file")
        except Exception as error:
            self._failed("compaction", error, report)
        return report

    def _drop_kept(self, sinks: Sequence[OpenSink], report: JanitorReport) -> None:
        """Drop finished subtasks that are kept for a later attempt, once there will be no later attempt."""
        try:
            kept = {key for sink in sinks if sink.subtasks is not None for key in sink.subtasks.kept(self._own)}
            for key in sorted(kept.union(self._checkpoint.subtasks.batches())):
                if not is_over(self._checkpoint, key):
                    continue
                if not self._dry_run:
                    drop_kept(self._checkpoint, sinks, BatchIdentity.at(key, checkpoint=self._own))
                report.add("finished splits removed", str(key), "no attempt at the batch will be made")
        except Exception as error:
            self._failed("finished splits", error, report)

    def _failed(self, what: str, error: Exception, report: JanitorReport) -> None:
        """Report one thing that cannot be cleaned up, whatever error its record raises here, so that the rest is
        cleaned up all the same: another program may have written the record, and a sink's library may raise any
        error."""
        if isinstance(error, (MicroBatchError, OSError)):
            report.add("failed", what, str(error))
            return
        log.warning("the janitor does not understand %s", what, exc_info=error)
        report.add("failed", what, f"{type(error).__name__}: {error}")

    def _work(
        self, sinks: Sequence[OpenSink], report: JanitorReport
    ) -> tuple[list[tuple[BatchKey, int]], list[OpenSink]]:
        """Batch and epoch of all attempts that may need work; and the sinks in which it can be done. In place of one
        with a table that cannot be asked, its other tables."""
        found, within_reach, waiting = set(self._checkpoint.leases.unfinished()), list[OpenSink](), [*sinks]
        while waiting:
            sink = waiting.pop(0)
            try:
                found.update(*map(sink.stages, self._owners()))
            except SinkError as error:
                if len(sink.tables) > 1:
                    waiting = [*sink.tables, *waiting]
                    continue
                if self._is_beyond_reach(sink, error, report):
                    continue
            except Exception as error:
                self._failed(sink.location(), error, report)
            within_reach.append(sink)
        return sorted(found), within_reach

    def _is_beyond_reach(self, table: OpenSink, error: SinkError, report: JanitorReport) -> bool:
        """Report a table that cannot be asked: no failure where the pipeline writes to it no more, since its
        connection, or its server, may never come back. Returns whether nothing else is to be tried there."""
        if not is_left(self._checkpoint, table, LIVE):
            self._failed(table.location(), error, report)
            return isinstance(error, UnconnectedError)
        if table.location() not in report.of(_TABLE_LEFT):
            report.add(_TABLE_LEFT, table.location(), f"the pipeline does not write to it any more, and {error}")
        return True

    def _is_left_alone(self, table: OpenSink, report: JanitorReport) -> bool:
        """Whether it is such a table; that of which the stages are elsewhere is asked first for an attempt."""
        if table.location() in report.of(_TABLE_LEFT):
            return True
        why = not_reached(self._checkpoint, table, LIVE, answering=self._answering)
        return why is not None and self._is_beyond_reach(table, why, report)

    def _attempt(self, key: BatchKey, epoch: int, sinks: Sequence[OpenSink], report: JanitorReport) -> None:
        what = f"{key} attempt {epoch}"
        attempt = self._checkpoint.attempts.get(key, epoch)
        if attempt is None:
            self._without_entry(key, epoch, sinks, report)
            return
        sign = sign_of_life(self._checkpoint, attempt, self._engine_of, parked=True)
        if sign is not None:
            report.add("alive", what, sign)
            return
        if attempt.batch.checkpoint not in self._owners():
            where = self._checkpoint.attempts.epochs.where(key, epoch)
            raise UntrustedError(
                f"{where} says that its batch is of checkpoint {attempt.batch.checkpoint!r:.100}. This one is "
                f"{self._own!r}, and what is the other's is not touched. Look who wrote it there; if nobody needs it, "
                "remove it and its lease."
            )
        own = self._sink_of(attempt)
        wrote = () if own is None else own.tables
        left = [table.location() for table in wrote if self._is_left_alone(table, report)]
        if left:
            # Only that table tells whether the batch is in. Its lease stays, so the work is done once it answers.
            report.add("attempt left alone", what, f"it was made for {' and '.join(left)}, which cannot be asked")
            return
        candidates = [own] if own is not None else list(sinks)
        if not candidates:
            report.add("failed", what, "no pipeline is on record, so nobody knows its sink; name it to the operator")
            return
        done = is_committed(self._checkpoint, attempt)
        end = self._succeeded() if done else self._checkpoint.attempts.ended(key, epoch)
        is_open = end is None
        if end is None:
            if self._waits_for_commit(attempt, candidates, report):
                return
            if not self._dry_run and not self._fence(attempt):
                report.add("alive", what, "a later attempt was opened at this moment and deals with it")
                return
            end = self._answer(attempt, candidates, report) or self._found_dead(attempt)
        self._clear_away(attempt, end, candidates, report)
        if is_open and end.state != "succeeded" and not self._dry_run:
            # A process that only slept may have published until its stage was dropped; from now on it cannot.
            if self._waits_for_commit(attempt, candidates, report):
                return
            end = self._answer(attempt, candidates, report) or end
        self._tell(attempt, end, candidates, report)

    def _waits_for_commit(self, attempt: Attempt, sinks: Sequence[OpenSink], report: JanitorReport) -> bool:
        if self._is_over(attempt.key) or self._published_in(attempt, sinks, partly=True) is None:
            return False
        what, why = f"{attempt.key} attempt {attempt.epoch}", "published; the next run of the pipeline commits it"
        report.add("waits for its commit", what, why)
        return True

    def _answer(self, attempt: Attempt, sinks: Sequence[OpenSink], report: JanitorReport) -> AttemptEnd | None:
        """The end of the attempt if it was a replay that died after its publish: the clears that the replay was made
        for are answered here, since nothing else would answer them if their runs had been deleted. None if it was no
        such replay."""
        checkpoint, key = self._checkpoint, attempt.key
        found = self._published_in(attempt, sinks, partly=True) if self._is_over(key) else None
        if found is not None and not self._dry_run:
            # The replay died between two tables: nothing else continues a replay, and its stage is dropped after this.
            found[0].finish(expected_on_record(checkpoint, key, tables=checkpoint.tables.following_moves))
            found = self._published_in(attempt, sinks)
        if found is None:
            return None
        sink, published = found
        if not self._dry_run and not self._is_removed(key):
            arguments = definition_if_there(checkpoint, attempt)
            if arguments is None:
                # It may have been removed: the sources of the newest one let go of what the batch kept.
                arguments = Recorded(checkpoint).arguments(of_letters=key.lane == LETTERS)
            finish_replay(
                checkpoint=checkpoint,
                sources=OpenedSources.on_record(
                    arguments, checkpoint=checkpoint, lane=key.lane, clock_ms=self._clock_ms
                ),
                sink=sink,
                planned=load_batch(checkpoint, key),
                attempt=attempt,
                published=published,
                now_ms=self._clock_ms(),
            )
        report.add("clear answered", f"{key} attempt {attempt.epoch}", "its output is the batch's")
        return self._succeeded()

    def _published_in(
        self, attempt: Attempt, sinks: Sequence[OpenSink], *, partly: bool = False
    ) -> tuple[OpenSink, Manifest] | None:
        tables = self._checkpoint.tables.following_moves
        return published_in(self._checkpoint, attempt, sinks, tables=tables, partly=partly)

    def _is_over(self, key: BatchKey) -> bool:
        """Whether no run will commit the batch: it is committed, or was committed and removed by retention."""
        return self._is_removed(key) or self._checkpoint.lane(key.lane).commit_of(key.id) is not None

    def _is_removed(self, key: BatchKey) -> bool:
        kept = self._checkpoint.lane(key.lane).offset_log.ids()
        return bool(kept) and key.id < kept[0]

    def _succeeded(self) -> AttemptEnd:
        return AttemptEnd(state="succeeded", ended_ms=self._clock_ms())

    def _clear_away(self, attempt: Attempt, end: AttemptEnd, sinks: Sequence[OpenSink], report: JanitorReport) -> None:
        """Stop what may still run of the attempt, and drop its stage."""
        key, epoch = attempt.key, attempt.epoch
        what = f"{key} attempt {epoch}"
        staged = [sink for sink in sinks if (key, epoch) in sink.stages(attempt.batch.checkpoint)]
        told = end.error or end.state
        if self._dry_run:
            report.add("stage dropped" if staged else "attempt ended", what, told)
            return
        if end.state != "succeeded":
            try:
                sinks[0].fence(attempt.batch, epoch, by=told)
            except Exception as error:
                # The mark only spares Spark work: the epoch fences the attempt.
                self._failed(f"the fence mark of {what}", error, report)
            engine = self._engine_of(str(attempt.handle.get("engine")))
            try:
                if engine is not None and engine.cancel(attempt.handle):
                    report.add("Spark stopped", what, str(attempt.handle.get("tag")))
            except HandleError as error:
                # The handle will never become valid. The attempt is fenced; the rest of it is cleared away all the
                # same.
                report.add("refused", what, str(error))
        drop_own_folder(self._checkpoint, attempt)
        for sink in staged:
            dropped = drop_stage(self._checkpoint, sink, attempt)
            if dropped.any:
                report.add("stage dropped", what, told)
            if dropped.behind is not None:
                report.add("stage kept", what, f"it is in {dropped.behind} for good, and not in all tables yet")

    def _tell(self, attempt: Attempt, end: AttemptEnd, sinks: Sequence[OpenSink], report: JanitorReport) -> None:
        """Record the attempt's end, and tell its hooks."""
        if self._dry_run:
            return
        what = f"{attempt.key} attempt {attempt.epoch}"
        try:
            hooks_of(self._checkpoint, attempt, live=self._given_hooks)
        except UntrustedError as error:
            report.add("refused", f"a hook of {what}", str(error))
        except BrokenLogError as error:
            # The definition may be gone for good: its hooks are given up, as those are that cannot be imported.
            report.add("refused", f"the hooks of {what}", str(error))
        telling = end_attempt(
            self._checkpoint, attempt, end, pipeline=report.pipeline, sink=sinks[0], live=self._given_hooks
        )
        if telling is Telling.DONE:
            report.add("attempt ended", what, end.error or end.state)
        elif telling is Telling.WAITS:
            report.add("waits for its hook", what, "a job status hook has failed, and is called again later")
        else:
            report.add("failed", what, "a job status hook failed, or cannot be called from here; see the log")

    def _fence(self, attempt: Attempt) -> bool:
        """Make sure that there is a later epoch than the dead attempt's: the attempt may only seem dead, and loses
        then.

        Only the epoch right after the attempt's is taken: a later epoch could fence a run that has just begun.

        :return: False if such a run was faster.
        """
        attempts, key = self._checkpoint.attempts, attempt.key
        if attempts.latest_epoch(key) == attempt.epoch:
            after = fence(key, attempt.epoch + 1, by=FencedBy.JANITOR, started_ms=self._clock_ms())
            if not attempts.take_exactly(after):
                return False
        for later in attempts.all(key):
            if is_fence_by(later, FencedBy.JANITOR) and attempts.ended(key, later.epoch) is None:
                end = AttemptEnd(
                    state="canceled", error=f"the janitor gave up attempt {attempt.epoch}", ended_ms=self._clock_ms()
                )
                attempts.end(key, later.epoch, end)
        return True

    def _found_dead(self, attempt: Attempt) -> AttemptEnd:
        """The end of an attempt whose process could not record it. Airflow's observation of its task comes first,
        Airflow's observation of its run second."""
        name = attempt.handle.get("engine")
        says = "does not say that it runs" if self._engine_of(str(name)) else "cannot be asked from here"
        error = f"found dead by the janitor: its lease has run out, and the engine {name} {says}"
        chosen = self._checkpoint.marks.of(attempt)
        if chosen is not None:
            error = f"{error}; Airflow: {chosen.reason}"
        state = "failed" if chosen is None else chosen.status
        return AttemptEnd(
            state=state, error=error, ended_ms=self._clock_ms(), cause=DEAD if state == "failed" else None
        )  # fmt: skip

    def _without_entry(self, key: BatchKey, epoch: int, sinks: Sequence[OpenSink], report: JanitorReport) -> None:
        """Clean up a lease whose epoch was never taken, or a stage of an attempt that retention has removed."""
        what = f"{key} attempt {epoch}"
        leases = self._checkpoint.leases
        if leases.remaining_seconds(key, epoch, parked=True) > 0:
            report.add("alive", what, "its attempt is being opened")
            return
        stale = self._is_removed(key)
        for sink, owner in ((sink, owner) for sink in sinks for owner in self._owners()):
            if (key, epoch) not in sink.stages(owner):
                continue
            if not stale:
                report.add(
                    "unknown stage left alone", what, f"no attempt of this checkpoint wrote it: {sink.location()}"
                )
            elif self._dry_run or sink.drop_stage(BatchIdentity.at(key, checkpoint=owner), epoch):
                report.add("stage dropped", what, "its batch is older than the logs")
        if not self._dry_run:
            leases.forget(key, epoch)
            if epoch in self._checkpoint.attempts.epochs.all(key):
                # A process that slept has taken the epoch meanwhile: without a lease, the attempt would never be found,
                # nor its hooks called again.
                leases.renew(key, epoch)

    def _owners(self) -> tuple[str, str]:
        """The checkpoint ids whose stages are looked for: this checkpoint's, and the empty id of stages from versions
        that recorded none."""
        return (self._own, "")

    def _sink_of(self, attempt: Attempt) -> OpenSink | None:
        arguments = definition_if_there(self._checkpoint, attempt)
        return None if arguments is None else self._open(arguments.get("sink", {}))

    def _open(self, sink: Mapping[str, Any]) -> OpenSink:
        return Sink.from_dict(sink, live=self._given_sinks).open(SinkContext(clock_ms=self._clock_ms))

    def _sinks(self, report: JanitorReport) -> list[OpenSink]:
        """All sinks that attempts of this checkpoint have written to, each once."""
        found = {str(given): self._open(given) for given in (sink.to_dict() for sink in self._given_sinks)}
        for name in self._checkpoint.definitions.names():
            try:
                recorded = self._checkpoint.definitions.sink(name)
                if recorded is not None and str(recorded) not in found:
                    found[str(recorded)] = self._open(recorded)
            except UntrustedError as error:
                report.add("refused", f"the sink of pipeline definition {name}", str(error))
            except MicroBatchError as error:
                report.add("failed", f"the sink of pipeline definition {name}", str(error))
        return list(found.values())

    def _retain(self, report: JanitorReport) -> None:
        checkpoint, dry_run = self._checkpoint, self._dry_run
        for lane in that_grow(checkpoint.lanes()):
            try:
                for what in apply_retention(checkpoint, kept=retained(checkpoint, lane), lane=lane, dry_run=dry_run):
                    report.add("retention applied", what, "")
            except Exception as error:
                self._failed(f"retention of lane {lane}", error, report)
        for purge in (purge_definitions, purge_marks):
            try:
                for what in purge(checkpoint, dry_run=dry_run):
                    report.add("retention applied", what, "no attempt needs them")
            except Exception as error:
                self._failed("retention", error, report)
