"""The state machine of a batch: plan → run → publish → commit. Every step can be repeated after a crash anywhere."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.entries import Attempt, AttemptEnd, CommitEntry, RunIdentity
from airflow_provider_microbatch.checkpoint.key import LIVE, BatchKey
from airflow_provider_microbatch.clock import now_ms
from airflow_provider_microbatch.exceptions import (
    AttemptCanceledError,
    AttemptFencedError,
    BatchSetAsideError,
    CheckpointError,
    EngineError,
    MicroBatchError,
    OutrunError,
    PublishConflictError,
    SinkError,
)
from airflow_provider_microbatch.execution.commit_entry import add_commit, check_published
from airflow_provider_microbatch.execution.ending import Ending
from airflow_provider_microbatch.execution.engine import Code, Engine
from airflow_provider_microbatch.execution.explain import check_staged
from airflow_provider_microbatch.execution.fire import FireDecision, should_fire
from airflow_provider_microbatch.execution.guard import (
    GoesOn,
    Look,
    check_not_fenced,
    look,
    named,
    no_run_goes_on,
    published_for,
)
from airflow_provider_microbatch.execution.identity import check_plan, check_still_planned, complete_replace, expected
from airflow_provider_microbatch.execution.job_of import job_of
from airflow_provider_microbatch.execution.late_ends import check_on_record, resolve
from airflow_provider_microbatch.execution.liveness import EngineOf, Holder, no_engine
from airflow_provider_microbatch.execution.plan import Planner
from airflow_provider_microbatch.execution.planned import PlannedBatch
from airflow_provider_microbatch.execution.progress import progress_of, told
from airflow_provider_microbatch.execution.read_again import (
    look_at_stage,
    replace_published,
    say_what_changed,
    say_where_from,
)
from airflow_provider_microbatch.execution.replay import (
    answer_replays,
    committer,
    is_asked_for,
    is_cleared,
    still_wanted,
)
from airflow_provider_microbatch.execution.retention import apply_retention
from airflow_provider_microbatch.execution.set_aside import set_aside_if_due
from airflow_provider_microbatch.execution.source_names import check_no_half_rename
from airflow_provider_microbatch.execution.stateful import check_answerable, keep_state_of_committed, next_watermark
from airflow_provider_microbatch.execution.status import begin_attempt
from airflow_provider_microbatch.execution.subtasks import check_ran_by_splits, drop_kept_if_over
from airflow_provider_microbatch.execution.summary import BatchSummary, RunSummary, summarize
from airflow_provider_microbatch.execution.table_place import make_ready
from airflow_provider_microbatch.pipeline import Pipeline
from airflow_provider_microbatch.runtime.job import Flow, Job, Transform
from airflow_provider_microbatch.sinks import Manifest
from airflow_provider_microbatch.stores.location import check_places

log = logging.getLogger(__name__)


class Execution:
    """Runs the batches of one pipeline against its checkpoint. Knows neither Airflow nor Spark.

    :param pipeline: the pipeline.
    :param checkpoint: its checkpoint.
    :param lane: the lane of the logs; ``live`` unless a backfill runs.
    :param clock_ms: the time, milliseconds since the epoch.
    :param lease_seconds: how long an attempt counts as alive after its holder's last sign, in place of the pipeline's.
    """

    def __init__(
        self,
        *,
        pipeline: Pipeline,
        checkpoint: Checkpoint,
        lane: str = LIVE,
        clock_ms: Callable[[], int] = now_ms,
        lease_seconds: float | None = None,
    ) -> None:
        self.pipeline = pipeline
        self.checkpoint = checkpoint
        self._lane = checkpoint.lane(lane)
        self._clock_ms = clock_ms
        self._lease_seconds = pipeline.lease_seconds if lease_seconds is None else lease_seconds
        self.planner = Planner(pipeline=pipeline, checkpoint=checkpoint, lane=self._lane, clock_ms=clock_ms)
        self.sink = self.planner.sink
        self._ending = Ending(pipeline=pipeline, checkpoint=checkpoint, sink=self.sink, clock_ms=clock_ms)

    def check(self) -> None:
        """Raise if sources, sink or checkpoint cannot be used. Writes nothing."""
        self.planner.check_identity()
        self._lane.tail()
        self.planner.sources.check()
        self.sink.check()

    def should_fire(
        self, run: RunIdentity | None = None, *, engine_of: EngineOf = no_engine, searched_ms: int | None = None
    ) -> FireDecision:
        """The sensor's question; see :func:`~airflow_provider_microbatch.execution.fire.should_fire`."""
        return should_fire(self.planner, run, engine_of=engine_of, searched_ms=searched_ms)

    def plan(self, run: RunIdentity) -> PlannedBatch | None:
        """Plan the next batch or continue the planned one; see :meth:`Planner.plan`."""
        planned = self.planner.plan(run)
        if planned is not None and not planned.resumed:
            say_where_from(self.checkpoint, self.planner.sources, planned.key)
        return planned

    def own_before(self, run: RunIdentity) -> list[int]:
        """Batches of a cleared run before the one that :meth:`plan` gives it."""
        return self.planner.own.before(run, self.planner.position()) if run.was_cleared else []

    def load(self, key: BatchKey) -> PlannedBatch:
        """A planned batch by its key; see :meth:`Planner.load`."""
        return self.planner.load(key.id)

    def look(
        self,
        key: BatchKey,
        run: RunIdentity,
        *,
        engine_of: EngineOf,
        code: Code | None = None,
        goes_on: GoesOn = no_run_goes_on,
        any_task: bool = False,
    ) -> Look:
        """See :func:`~airflow_provider_microbatch.execution.guard.look`."""
        return look(
            checkpoint=self.checkpoint,
            planner=self.planner,
            key=key,
            run=run,
            engine_of=engine_of,
            goes_on=goes_on,
            code=code,
            now_ms=self._clock_ms(),
            any_task=any_task,
        )

    def open_attempt(
        self,
        *,
        key: BatchKey,
        run: RunIdentity | None,
        code: Code,
        engine: Engine,
        look: Look | None = None,
    ) -> Attempt:
        """Begin the batch's next attempt: take the epoch, record the handle, then stop the attempts before.

        The epoch is taken first: from then on an attempt that wakes up late finds itself fenced. Only the lease is
        older, so that no attempt is ever without a lease and the leases name all unfinished attempts. The definition
        comes between: the janitor, which removes definitions that no attempt names, looks at the leases.

        :param look: what the run found at the batch. The epoch is exactly the one after the newest that the look saw:
            of two runs that both find the batch free, one gets it, and the other has to look again.
        :raises OutrunError: if another attempt has been opened since that look.
        :raises CheckpointError: if a rename was given up half way, or a replay of the batch before cannot be ended.
        :raises AttemptFencedError: if a later clear of another run has replayed the batch with other code.
        """
        defined = self.pipeline.to_dict()
        planned = self.load(key) if look is None else look.planned
        if look is not None and run is not None:
            look.check_code(self.checkpoint, run, code)
        epoch = (self.checkpoint.attempts.latest_epoch(key) if look is None else look.newest) + 1
        self.planner.say_sink(plans=False, begins=run is not None and not run.was_cleared)
        self.checkpoint.leases.begin(key, epoch, seconds=self._lease_seconds)
        attempt = Attempt(
            key=key,
            epoch=epoch,
            handle=engine.handle(pipeline=self.pipeline.name, key=key, epoch=epoch),
            run=run,
            code=code.on_record(),
            started_ms=self._clock_ms(),
            definition=self.checkpoint.definitions.put(defined),
            request=None if look is None else look.request,
            identity=planned.identity,
        )
        if not self.checkpoint.attempts.take_exactly(attempt):
            winner = self.checkpoint.attempts.get(key, epoch)
            raise OutrunError(f"batch {key}: {named(winner)} was opened at the same moment.")
        self.checkpoint.leases.confirm(key, epoch, seconds=self._lease_seconds)
        # Named by this attempt the definition stays; until then it may have been removed as unneeded.
        self.checkpoint.definitions.put(defined)
        # Held already: to stop the Spark of an earlier attempt, or to tell its hooks, may take longer than a lease.
        with self.hold(attempt, engine):
            try:
                # The lease is there: a command that begins from now on finds the attempt alive, one before is seen.
                self.planner.check_no_command()
                self._ending.end_replays_before(attempt, engine)
            except CheckpointError as error:
                self.abandon(attempt, state="canceled", error=error, engine=None)
                raise
            self._ending.end_earlier(attempt, engine)
        log.info("Batch %s attempt %s opened, handle %s", key, attempt.epoch, dict(attempt.handle))
        say_what_changed(self.checkpoint, self.planner.sources, planned, replayed=attempt.request is not None)
        return attempt

    def hold(self, attempt: Attempt, engine: Engine) -> Holder:
        """Keep the attempt alive while the ``with`` block runs, by renewing its lease."""
        return Holder(checkpoint=self.checkpoint, attempt=attempt, engine=engine, seconds=self._lease_seconds)

    def keep(self, attempt: Attempt, *, seconds: float) -> None:
        """Keep the finished stage from the janitor for ``seconds``, though no process renews its lease: between submit
        and commit the stage belongs to the audits."""
        self.checkpoint.leases.renew(attempt.key, attempt.epoch, seconds=seconds, parked=True)

    def open_next(self, look: Look, *, run: RunIdentity, code: Code, engine: Engine) -> Attempt | None:
        """Begin the attempt that a look at the batch asks for, unless the batch is set aside; raises as
        :meth:`set_aside_if_due` and :meth:`open_attempt` do.

        :return: the attempt; None if another run was faster: then the batch has to be looked at again.
        """
        key = look.planned.key
        try:
            self.set_aside_if_due(look.planned, newest=look.newest, run=run, engine=engine)
            return self.open_attempt(key=key, run=run, code=code, engine=engine, look=look)
        except OutrunError as outrun:
            log.info("%s Looking again", outrun)
            return None

    def job(self, attempt: Attempt, transform: Transform | Flow | None) -> Job:
        """The runtime's work for this attempt: the planned ranges, from the log alone. Splits of a split-wise pipeline
        that earlier attempts have finished are taken over into the attempt's stage, and are not to be done."""
        planned = self.load(attempt.key)
        check_plan(attempt, planned.identity)
        check_on_record(planned, self.planner.sources)
        return job_of(
            planned,
            attempt,
            pipeline=self.pipeline,
            checkpoint=self.checkpoint,
            sources=self.planner.sources,
            sink=self.sink,
            transform=transform,
        )

    def run_attempt(self, *, attempt: Attempt, job: Job, engine: Engine, code: Code) -> None:
        """Tell the hooks that the attempt is there, then run the job to its end.

        :raises DefinitionError: if connections name one bucket at two endpoints.
        :raises HookError: if a hook refuses the attempt; nothing was started then.
        :raises TransformError: if the user's transform failed, with its traceback.
        :raises CheckpointError: if the state that the batch goes on from is not there.
        :raises EngineError: if anything else made the job fail before its stage was whole.
        """
        make_ready(self.checkpoint, self.sink, attempt, shape_is_checked=self.planner.has_begun)
        begin_attempt(self.checkpoint, attempt, pipeline=self.pipeline.name, sink=self.sink, live=self.pipeline.hooks)
        secrets = self.planner.sources.secrets() | self.sink.secrets()
        check_places(secrets)
        code = replace(code, secrets=secrets)
        try:
            engine.start(attempt.handle, job, code)
            engine.result(attempt.handle)
        except EngineError as error:
            check_staged(self.pipeline, self.sink, attempt, error, checkpoint=self.checkpoint)
        check_ran_by_splits(job, attempt, self.sink)

    def publish(self, attempt: Attempt, *, should_stop: Callable[[], bool] = lambda: False) -> Manifest:
        """Make the attempt's stage the batch's output. Idempotent.

        Asking the fence first spares work; the sink decides between two attempts that both pass it.

        :raises AttemptFencedError: if a later attempt exists and the batch is not in the sink.
        :raises AttemptCanceledError: if ``should_stop`` says so before the sink was touched.
        :raises SourceChangedError: if the range changed while it was read.
        :raises ForeignBatchError: if the output in the sink under the batch's number is not this batch.
        """
        key, sink = attempt.key, self.sink
        check_no_half_rename(self.checkpoint, again=True)
        planned = self.load(key)
        check_plan(attempt, planned.identity)
        batch = expected(self.checkpoint, planned.identity, attempt)
        published = self.planner.finished(batch, committed=planned.committed)
        asked = is_asked_for(self.checkpoint, attempt, planned)
        if published is None and planned.set_aside and not asked:
            raise AttemptFencedError(
                f"batch {key} was set aside, and attempt {attempt.epoch} was made for no replay of it. Nothing was "
                "published. Clear the batch's task to run it."
            )
        if published is None or (published.epoch < attempt.epoch and asked):
            check_not_fenced(self.checkpoint, attempt)
            staged = sink.manifest(attempt.batch, attempt.epoch)
            if staged is None:
                raise SinkError(
                    f"batch {key} attempt {attempt.epoch}: there is no finished stage at "
                    f"{sink.stage(attempt.batch, attempt.epoch).report}. Run the submit step again."
                )
            planned = resolve(self.checkpoint, self.planner.sources, planned, staged)
            read, learned = (told(self.checkpoint, staged.result, part) for part in ("read", "learned"))
            self.planner.sources.verify(planned.ranges, read=read, learned=learned)
            look_at_stage(self.checkpoint, self.planner, planned, attempt, staged, first=published is None)
            if should_stop():
                raise AttemptCanceledError(f"batch {key} attempt {attempt.epoch} was stopped before publish.")
            if planned.committed and not (planned.set_aside and published is None):
                # A batch behind it may be planned by now.
                check_answerable(self.checkpoint, attempt, staged.result, sink=sink)
                published = replace_published(
                    self.checkpoint, self.planner.sources, sink, planned, batch, staged=staged, published=published
                )
            else:
                published = sink.publish(batch, attempt.epoch)
        if published.epoch != attempt.epoch:
            log.info("Batch %s is in the sink by attempt %s; attempt %s adopts it", key, published.epoch, attempt.epoch)
            if planned.committed:
                published = complete_replace(self.checkpoint, sink, planned.identity, published)
            self._ending.outrun(attempt, by=self.checkpoint.attempts.get(key, published.epoch))
        return published

    def commit(self, *, key: BatchKey, manifest: Manifest, run: RunIdentity | None) -> CommitEntry:
        """Write the commit entry, then tell the sources. Idempotent: called again, it only tells the sources again.

        :raises AttemptFencedError: if the batch is no longer in the sink: a command took it out to have it run again.
        """
        check_no_half_rename(self.checkpoint)
        planned = self.load(key)
        manifest = check_published(self.checkpoint, self.sink, planned, manifest)
        if not planned.committed:  # a restored backup may lack the resolution
            planned = resolve(self.checkpoint, self.planner.sources, planned, manifest)
        sources, ranges = self.planner.sources, planned.ranges
        lag = None if planned.committed else sources.lag(ranges.ends)
        progress = progress_of(manifest, sources.describe(ranges), lag)
        attempt = self.checkpoint.attempts.made(key, manifest.epoch)
        entry = CommitEntry(
            next_watermark_ms=next_watermark(manifest, planned.entry),
            epoch=manifest.epoch,
            requires_another_batch=bool(manifest.result.get("requiresAnotherBatch", False)),
            complete=self.planner.is_last(planned, manifest),
            progress=progress,
            run=committer(attempt, run, planned),
            committed_ms=self._clock_ms(),
            plan=planned.identity.digest,
        )
        if not planned.committed or planned.set_aside:
            # Before the entry, or the answer to a replay, is there: no run would release the ranges after that.
            self.planner.sources.release(planned.ranges)
        entry = add_commit(checkpoint=self.checkpoint, sources=self.planner.sources, planned=planned, entry=entry)
        log.info("Completed batch [%s]", key.id)
        now = self._clock_ms()
        answer_replays(self.checkpoint, key, attempt, epoch=manifest.epoch, progress=progress, now_ms=now)
        if attempt is not None:
            self._ending.end(attempt, AttemptEnd(state="succeeded", ended_ms=now))
        if self.pipeline.split_wise:
            drop_kept_if_over(self.checkpoint, self.sink, planned.identity)
        newest = self._lane.commit_log.latest_id()
        check_still_planned(self.checkpoint, planned.identity)  # no run could plan again what a source gives up now
        if newest == key.id:
            self.planner.sources.commit(planned.entry.ends)
            kept = self.pipeline.min_batches_to_retain
            for removed in apply_retention(self.checkpoint, kept=kept, lane=self._lane.name):
                log.info("Retention removed %s", removed)
            keep_state_of_committed(self.checkpoint, key, manifest, kept=kept)
        elif newest is not None and entry.set_aside:  # its range was passed over when later ones were committed
            self.planner.sources.commit(self.planner.load(newest).entry.ends)
        return entry

    def abandon(self, attempt: Attempt, *, state: str, error: BaseException, engine: Engine | None) -> None:
        """See :meth:`Ending.abandon`."""
        self._ending.abandon(attempt, state=state, error=error, engine=engine)

    def run(
        self,
        *,
        run: RunIdentity,
        engine: Engine,
        code: Code,
        transform: Transform | Flow | None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> BatchSummary | RunSummary | None:
        """Run one micro-batch from plan to commit. A cleared run replays all batches that it has committed.

        :param run: the task run.
        :param engine: runs the job.
        :param code: the code that the job needs beside this package.
        :param transform: the user's function; None passes a single source through.
        :param should_stop: asked before publish; True if the task was told to stop.
        :return: the committed batch, or several; None if there was nothing new.
        :raises AttemptCanceledError: if the task was told to stop; nothing was published then.
        :raises BatchInProgressError: if another run is alive at the batch; nothing was written then.
        :raises BatchSetAsideError: if the batch has failed as often as the pipeline allows.
        """

        def run_one(planned: PlannedBatch) -> BatchSummary | None:
            return self.run_planned(
                planned, run=run, engine=engine, code=code, transform=transform, should_stop=should_stop
            )

        before = [run_one(self.planner.load(batch_id)) for batch_id in self.own_before(run)]
        while (planned := self.plan(run)) is not None:
            summary = run_one(planned)
            if summary is not None:
                done = [batch for batch in (*before, summary) if batch is not None]
                return RunSummary(done) if before else summary
        return None

    def run_planned(
        self,
        planned: PlannedBatch,
        *,
        run: RunIdentity,
        engine: Engine,
        code: Code,
        transform: Transform | Flow | None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> BatchSummary | None:
        """Run a planned batch to its commit: done already, continued or replayed, as the logs say. See :meth:`run`.

        :return: the committed batch; None if another run has committed it meanwhile.
        """
        key = planned.key
        while True:
            found = self.look(key, run, engine_of=lambda name: engine if name == engine.name else None, code=code)
            if found.is_done:
                if not planned.committed:
                    return None
                log.info("Batch %s is committed by this run already", key)
                return summarize(self.checkpoint, key)
            published = published_for(found, checkpoint=self.checkpoint, planner=self.planner)
            if published is not None:
                log.info("Batch %s is in the sink by attempt %s; only the commit is missing", key, published.epoch)
                entry = self.commit(key=key, manifest=published, run=run)
                if is_cleared(self.checkpoint, published, run, planned):
                    continue
                return summarize(self.checkpoint, key) if entry.run is None or run.is_of(entry.run) else None
            attempt = self.open_next(found, run=run, code=code, engine=engine)
            if attempt is None:
                continue
            # Held until the commit entry is there: a run that finds the batch published earlier would commit it too.
            with self.hold(attempt, engine):
                published = self._attempt(attempt, engine, code, transform, should_stop)
                self.commit(key=key, manifest=published, run=run)
            why_again = still_wanted(self.checkpoint, attempt, published, run=run, planned=planned)
            if why_again is None:
                return summarize(self.checkpoint, key)
            log.info("%s Running it again", why_again)

    def _attempt(
        self,
        attempt: Attempt,
        engine: Engine,
        code: Code,
        transform: Transform | Flow | None,
        should_stop: Callable[[], bool],
    ) -> Manifest:
        key = attempt.key
        try:
            self.run_attempt(attempt=attempt, job=self.job(attempt, transform), engine=engine, code=code)
            return self.publish(attempt, should_stop=should_stop)
        except BaseException as error:
            stopped = should_stop()
            outrun = isinstance(error, (AttemptFencedError, PublishConflictError))
            state = "canceled" if stopped else "superseded" if outrun else "failed"
            self.abandon(attempt, state=state, error=error, engine=engine)
            if isinstance(error, Exception):
                self.alarm_if_due(attempt, engine=engine, error=error)
            if stopped and not isinstance(error, AttemptCanceledError):
                raise AttemptCanceledError(
                    f"batch {key} attempt {attempt.epoch} was stopped; Spark was told to end and nothing was published."
                ) from error
            raise

    def alarm_if_due(self, attempt: Attempt, *, engine: Engine, error: Exception) -> None:
        """Set the batch aside if this failure was one too many; else the error stands. :raises BatchSetAsideError: if
        the batch is set aside now."""
        try:
            self.set_aside_if_due(self.load(attempt.key), newest=attempt.epoch, run=attempt.run, engine=engine)
        except BatchSetAsideError as alarm:
            raise alarm from error
        except (MicroBatchError, OSError) as reason:
            log.warning("Batch %s is not set aside by this run: %s", attempt.key, reason)

    def set_aside_if_due(self, planned: PlannedBatch, *, newest: int, run: RunIdentity | None, engine: Engine) -> None:
        """See :func:`~airflow_provider_microbatch.execution.set_aside.set_aside_if_due`."""
        set_aside_if_due(
            pipeline=self.pipeline,
            checkpoint=self.checkpoint,
            sources=self.planner.sources,
            sink=self.sink,
            planned=planned,
            newest=newest,
            run=run,
            now_ms=self._clock_ms(),
            engine=engine,
            end_earlier=lambda fence: self._ending.end_earlier(fence, engine),
        )
