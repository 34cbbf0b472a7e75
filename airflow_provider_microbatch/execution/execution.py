"""The state machine of a batch: plan → run → publish → commit. Every step can be repeated after a crash anywhere."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.entries import Attempt, AttemptEnd, CommitEntry, RunIdentity
from airflow_provider_microbatch.checkpoint.key import LIVE, BatchKey
from airflow_provider_microbatch.checkpoint.leases import LEASE_SECONDS
from airflow_provider_microbatch.exceptions import (
    AttemptCanceledError,
    AttemptFencedError,
    BatchInProgressError,
    EngineError,
    MicroBatchError,
    SinkError,
    TransformError,
)
from airflow_provider_microbatch.execution.engine import Code, Engine
from airflow_provider_microbatch.execution.liveness import EngineOf, Holder, no_engine, sign_of_life
from airflow_provider_microbatch.execution.pipeline import Pipeline
from airflow_provider_microbatch.execution.plan import FireDecision, PlannedBatch, Planner
from airflow_provider_microbatch.execution.position import read_position
from airflow_provider_microbatch.execution.replay import answers, request_replay
from airflow_provider_microbatch.execution.retention import apply_retention
from airflow_provider_microbatch.execution.status import begin_attempt, end_attempt
from airflow_provider_microbatch.execution.summary import BatchSummary, summarize
from airflow_provider_microbatch.runtime.job import Job, Transform
from airflow_provider_microbatch.sinks import Manifest

log = logging.getLogger(__name__)


def now_ms() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


class Execution:
    """Runs the batches of one pipeline against its checkpoint. Knows neither Airflow nor Spark.

    :param pipeline: the pipeline.
    :param checkpoint: its checkpoint.
    :param lane: the lane of the logs; ``live`` unless a backfill runs.
    :param clock_ms: the time, milliseconds since the epoch.
    :param lease_seconds: how long an attempt counts as alive after its holder's last sign; renewed at a third of it.
    """

    def __init__(
        self,
        *,
        pipeline: Pipeline,
        checkpoint: Checkpoint,
        lane: str = LIVE,
        clock_ms: Callable[[], int] = now_ms,
        lease_seconds: float = LEASE_SECONDS,
    ) -> None:
        self.pipeline = pipeline
        self.checkpoint = checkpoint
        self._lane = checkpoint.lane(lane)
        self._clock_ms = clock_ms
        self._lease_seconds = lease_seconds
        self._planner = Planner(pipeline=pipeline, checkpoint=checkpoint, lane=self._lane, clock_ms=clock_ms)

    def check(self) -> None:
        """Raise if sources, sink or checkpoint cannot be used. Writes nothing."""
        self._planner.check_identity()
        self._lane.tail()
        for name in self.pipeline.sources:
            self._planner.open_source(name).check()
        self.pipeline.sink.check()

    def should_fire(self, run: RunIdentity | None = None, *, engine_of: EngineOf = no_engine) -> FireDecision:
        """The sensor's question; see :meth:`Planner.should_fire`. A batch that another run is alive at does not fire:
        the operator behind the sensor would skip, and the next run's sensor fire again, as fast as Airflow makes runs.

        :param engine_of: asked whether an attempt whose lease has run out still runs.
        """
        return self._planner.should_fire(run, held=lambda key: self._held_by_another(key, run, engine_of))

    def plan(self, run: RunIdentity) -> PlannedBatch | None:
        """Plan the next batch or continue the planned one; see :meth:`Planner.plan`."""
        self.pipeline.sink.check()
        return self._planner.plan(run)

    def at_work(self, run: RunIdentity) -> BatchKey | None:
        """The batch that ``run`` is at, or would take up; None if it would plan the next one. Reads only."""
        number = self._planner.assigned(run, read_position(self._lane))
        return None if number is None else BatchKey(self._lane.name, number)

    def holder(self, key: BatchKey) -> RunIdentity | None:
        """The run that was at the batch last: that of its newest attempt, else the one that planned it."""
        attempt = self.checkpoint.attempts.latest(key)
        return attempt.run if attempt is not None else self.load(key).entry.run

    def load(self, key: BatchKey) -> PlannedBatch:
        """A planned batch by its key. :raises BrokenLogError: if it was never planned."""
        return self._planner.load(key.id)

    def wants_replay(self, planned: PlannedBatch, run: RunIdentity) -> bool:
        """Whether ``run`` has to replay the committed batch; if so the request for it is durable on return.

        :raises SourceError: if a source cannot read the range again; nothing is written then.
        """
        commit = self._lane.commit_log.get(planned.key.id)
        return commit is not None and request_replay(
            checkpoint=self.checkpoint,
            planner=self._planner,
            planned=planned,
            commit=commit,
            run=run,
            now_ms=self._clock_ms(),
        )

    def open_attempt(self, *, key: BatchKey, run: RunIdentity | None, code: Code, engine: Engine) -> Attempt:
        """Begin the batch's next attempt: take the epoch, record the handle, then stop whatever was before.

        The epoch is taken first: from then on an attempt that wakes up late finds itself fenced. Only its lease is
        older than the epoch, so that no attempt is ever without one and the leases name all unfinished attempts.
        """

        definition = self.checkpoint.definitions.put(self.pipeline.to_dict())

        def make(epoch: int) -> Attempt:
            handle = engine.handle(pipeline=self.pipeline.name, key=key, epoch=epoch)
            self.checkpoint.leases.renew(key, epoch, seconds=self._lease_seconds)
            return Attempt(
                key=key,
                epoch=epoch,
                handle=handle,
                run=run,
                code={
                    "transform": code.transform,
                    "code_hash": code.code_hash,
                    "bundle_name": code.bundle_name,
                    "bundle_version": code.bundle_version,
                },
                started_ms=self._clock_ms(),
                definition=definition,
            )

        attempt = self.checkpoint.attempts.take(key, make)
        for earlier in self.checkpoint.attempts.all(key):
            if earlier.epoch < attempt.epoch and self.checkpoint.attempts.ended(key, earlier.epoch) is None:
                self._supersede(earlier, by=attempt, engine=engine)
        log.info("Batch %s attempt %s opened, handle %s", key, attempt.epoch, dict(attempt.handle))
        return attempt

    def hold(self, attempt: Attempt, engine: Engine) -> Holder:
        """Keep the attempt alive while the ``with`` block runs, by renewing its lease."""
        return Holder(checkpoint=self.checkpoint, attempt=attempt, engine=engine, seconds=self._lease_seconds)

    def keep(self, attempt: Attempt, *, seconds: float) -> None:
        """Keep the finished stage from the janitor for ``seconds``, though nobody renews its lease: between submit and
        commit it belongs to the audits."""
        self.checkpoint.leases.renew(attempt.key, attempt.epoch, seconds=seconds, parked=True)

    def job(self, attempt: Attempt, transform: Transform | None) -> Job:
        """What the runtime has to do for this attempt: the planned ranges, from the log alone.

        :raises SourceChangedError: if the range is no longer as it was planned.
        """
        planned = self.load(attempt.key)
        reads = {}
        for name in self.pipeline.sources:
            source = self._planner.open_source(name)
            reads[name] = source.read(planned.starts.get(name), planned.entry.ends.get(name))
        return Job(
            pipeline=self.pipeline.name,
            lane=attempt.key.lane,
            batch_id=attempt.key.id,
            epoch=attempt.epoch,
            batch_timestamp_ms=planned.entry.batch_timestamp_ms,
            watermark_ms=planned.entry.watermark_ms,
            conf=planned.entry.conf,
            transform=transform,
            sources=reads,
            stage=self.pipeline.sink.stage(attempt.key, attempt.epoch),
        )

    def run_attempt(self, *, attempt: Attempt, job: Job, engine: Engine, code: Code) -> None:
        """Tell the hooks that the attempt is there, then run the job to its end.

        :raises HookError: if a hook refuses the attempt; nothing was started then.
        :raises TransformError: if the user's transform failed; its text is the transform's traceback.
        :raises EngineError: if anything else made the job fail.
        """
        begin_attempt(self.checkpoint, attempt, pipeline=self.pipeline.name, sink=self.pipeline.sink)
        try:
            engine.start(attempt.handle, job, code)
            engine.result(attempt.handle)
        except EngineError as error:
            raise self.explain(attempt, error) from None

    def explain(self, attempt: Attempt, error: Exception) -> Exception:
        """The error that a person should see: what the runtime wrote about its failure, where it wrote anything."""
        failure = self.pipeline.sink.failure(attempt.key, attempt.epoch)
        if failure is None:
            return error
        if failure.get("origin") == "transform":
            return TransformError(
                f"batch {attempt.key} attempt {attempt.epoch}: transform {self.pipeline.transform!r} failed. The batch "
                f"stays planned; mend the transform and run again.\n{failure.get('traceback') or failure.get('error')}"
            )
        return EngineError(
            f"batch {attempt.key} attempt {attempt.epoch} failed in Spark ({failure.get('origin')}): "
            f"{failure.get('error')}. The batch stays planned.\n{failure.get('traceback') or ''}"
        )

    def publish(self, attempt: Attempt, *, should_stop: Callable[[], bool] = lambda: False) -> Manifest:
        """Make the attempt's stage the batch's output. Idempotent.

        Asking the fence first spares work; the sink is what decides between two that both pass it.

        :raises AttemptFencedError: if a later attempt exists and the batch is not in the sink.
        :raises AttemptCanceledError: if ``should_stop`` says so before the sink was touched.
        :raises SourceChangedError: if the range changed while it was read.
        """
        key, sink = attempt.key, self.pipeline.sink
        planned = self.load(key)
        published = sink.contains(key)
        if published is None or (published.epoch < attempt.epoch and self._is_asked_for(attempt, planned)):
            newest = self.checkpoint.attempts.latest_epoch(key)
            if newest != attempt.epoch:
                raise AttemptFencedError(
                    f"batch {key}: attempt {attempt.epoch} is fenced by attempt {newest}, which alone may publish. "
                    "Nothing was published by this one."
                )
            staged = sink.manifest(key, attempt.epoch)
            if staged is None:
                raise SinkError(
                    f"batch {key} attempt {attempt.epoch}: there is no finished stage at "
                    f"{sink.stage(key, attempt.epoch).report}. Run the submit step again."
                )
            learned = staged.result.get("learned") or {}
            for name in self.pipeline.sources:
                source = self._planner.open_source(name)
                source.verify(planned.starts.get(name), planned.entry.ends.get(name))
                if name in learned:
                    source.learned(learned[name])
            if should_stop():
                raise AttemptCanceledError(f"batch {key} attempt {attempt.epoch} was stopped before publish.")
            replay = planned.committed
            published = sink.replace(key, attempt.epoch) if replay else sink.publish(key, attempt.epoch)
        if published.epoch != attempt.epoch:
            log.info("Batch %s is in the sink by attempt %s; attempt %s adopts it", key, published.epoch, attempt.epoch)
            if planned.committed:
                # The winner may have died in the middle of its replace; nobody would look for what it left.
                published = sink.replace(key, published.epoch)
            sink.drop_stage(key, attempt.epoch)
            end = AttemptEnd(
                state="superseded", error=f"attempt {published.epoch} published first", ended_ms=self._clock_ms()
            )
            self._end(attempt, end)
        return published

    def commit(self, *, key: BatchKey, manifest: Manifest, run: RunIdentity | None) -> CommitEntry:
        """Write the commit entry, then tell the sources. Idempotent: said again, it only tells the sources again."""
        planned = self.load(key)
        entry = CommitEntry(
            next_watermark_ms=planned.entry.watermark_ms,
            epoch=manifest.epoch,
            requires_another_batch=bool(manifest.result.get("requiresAnotherBatch", False)),
            progress=self._progress(planned, manifest),
            run=run,
            committed_ms=self._clock_ms(),
        )
        if not self._lane.commit_log.add(key.id, entry):
            entry = self._lane.commit_log.get(key.id) or entry
        log.info("Completed batch [%s]", key.id)
        attempt = self.checkpoint.attempts.get(key, manifest.epoch)
        for replay in self.checkpoint.replays.pending(key):
            if attempt is None or answers(attempt, replay):
                self.checkpoint.replays.complete(
                    key, replay.epoch, attempt=manifest.epoch, completed_ms=self._clock_ms()
                )  # fmt: skip
        if attempt is not None:
            self._end(attempt, AttemptEnd(state="succeeded", ended_ms=self._clock_ms()))
        newest = self._lane.commit_log.latest_id()
        if newest == key.id:
            self._planner.commit_sources(planned.entry.ends)
        for removed in apply_retention(
            self.checkpoint, kept=self.pipeline.min_batches_to_retain, lane=self._lane.name
        ):  # fmt: skip
            log.info("Retention removed %s", removed)
        return entry

    def abandon(self, attempt: Attempt, *, state: str, error: BaseException, engine: Engine | None) -> None:
        """End an attempt that will not publish: stop Spark, drop the stage, record how it ended. Never raises over
        the error that brought us here; what cannot be done now is left to the next attempt."""
        try:
            if engine is not None:
                engine.cancel(attempt.handle)
            if self.pipeline.sink.drop_stage(attempt.key, attempt.epoch):
                log.info("Dropped the stage of batch %s attempt %s", attempt.key, attempt.epoch)
            self._end(attempt, AttemptEnd(state=state, error=str(error), ended_ms=self._clock_ms()))
        except (MicroBatchError, OSError) as cleanup:
            log.warning("batch %s attempt %s could not be cleaned up: %s", attempt.key, attempt.epoch, cleanup)

    def run(
        self,
        *,
        run: RunIdentity,
        engine: Engine,
        code: Code,
        transform: Transform | None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> BatchSummary | None:
        """One micro-batch from plan to commit.

        :param run: the task run that does it.
        :param engine: what runs the job.
        :param code: what the job needs beside this package.
        :param transform: the user's function; None passes a single source through.
        :param should_stop: asked before publish; True means that the task was told to stop.
        :return: the committed batch; None if there was nothing new.
        :raises AttemptCanceledError: if the task was told to stop; nothing was published then.
        :raises BatchInProgressError: if another run is alive at the batch; nothing was written then.
        """
        planned = self.plan(run)
        if planned is None:
            return None
        key = planned.key
        if planned.committed and not self.wants_replay(planned, run):
            log.info("Batch %s is committed by this run already", key)
            return summarize(self.checkpoint, key)
        held = self._held_by_another(key, run, lambda name: engine if name == engine.name else None)
        if held is not None:
            raise BatchInProgressError(f"{held}. Nothing was done here; that run, or the next one, finishes the batch.")
        published = None if planned.committed else self.pipeline.sink.contains(key)
        if published is not None:
            log.info("Batch %s is in the sink by attempt %s; only the commit is missing", key, published.epoch)
            self.commit(key=key, manifest=published, run=run)
            return summarize(self.checkpoint, key)
        attempt = self.open_attempt(key=key, run=run, code=code, engine=engine)
        # Held until the commit entry is there: who finds the batch published before that would commit it too.
        with self.hold(attempt, engine):
            published = self._attempt(attempt, engine, code, transform, should_stop)
            self.commit(key=key, manifest=published, run=run)
        return summarize(self.checkpoint, key)

    def _attempt(
        self,
        attempt: Attempt,
        engine: Engine,
        code: Code,
        transform: Transform | None,
        should_stop: Callable[[], bool],
    ) -> Manifest:
        key = attempt.key
        try:
            self.run_attempt(attempt=attempt, job=self.job(attempt, transform), engine=engine, code=code)
            return self.publish(attempt, should_stop=should_stop)
        except BaseException as error:
            stopped = should_stop()
            self.abandon(attempt, state="canceled" if stopped else "failed", error=error, engine=engine)
            if stopped and not isinstance(error, AttemptCanceledError):
                raise AttemptCanceledError(
                    f"batch {key} attempt {attempt.epoch} was stopped; Spark was told to end and nothing was published."
                ) from error
            raise

    def _is_asked_for(self, attempt: Attempt, planned: PlannedBatch) -> bool:
        """Whether a replay that waits for its answer allows the attempt to replace what is published."""
        pending = self.checkpoint.replays.pending(attempt.key) if planned.committed else []
        return any(answers(attempt, request) for request in pending)

    def _held_by_another(self, key: BatchKey, run: RunIdentity | None, engine_of: EngineOf) -> str | None:
        """Which other run is alive at the batch, in words; None if there is none. A retry is the same run: it takes its
        own batch over at once, and stops the attempt before."""
        attempt = self.checkpoint.attempts.latest(key)
        if attempt is None or (run is not None and attempt.run is not None and attempt.run.same_work(run)):
            return None
        sign = sign_of_life(self.checkpoint, attempt, engine_of)
        if sign is None:
            return None
        who = f"run {attempt.run.run_id!r} of DAG {attempt.run.dag_id!r}" if attempt.run else "a run outside of Airflow"
        return f"batch {key} is in progress: attempt {attempt.epoch} of {who} is alive ({sign})"

    def _end(self, attempt: Attempt, end: AttemptEnd) -> None:
        end_attempt(self.checkpoint, attempt, end, pipeline=self.pipeline.name, sink=self.pipeline.sink)

    def _supersede(self, earlier: Attempt, *, by: Attempt, engine: Engine) -> None:
        error = AttemptFencedError(f"superseded by attempt {by.epoch}")
        # An engine is never given another one's handle: it could not read it.
        own = earlier.handle.get("engine") == engine.name
        if not own:
            log.warning(
                "Batch %s attempt %s ran on engine %s and cannot be stopped from %s; it is fenced and cannot publish",
                earlier.key, earlier.epoch, earlier.handle.get("engine"), engine.name,
            )  # fmt: skip
        log.info("Batch %s attempt %s has no end on record: stopping it", earlier.key, earlier.epoch)
        self.pipeline.sink.fence(earlier.key, earlier.epoch, by=str(error))
        self.abandon(earlier, state="superseded", error=error, engine=engine if own else None)

    def _progress(self, planned: PlannedBatch, manifest: Manifest) -> dict[str, Any]:
        described = {
            name: self._planner.open_source(name).describe(planned.starts.get(name), planned.entry.ends.get(name))
            for name in self.pipeline.sources
        }
        result = {key: value for key, value in manifest.result.items() if key != "learned"}
        return {
            **result,
            "sources": described,
            "numOutputFiles": len(manifest.files),
            "numOutputBytes": sum(manifest.files.values()),
        }
