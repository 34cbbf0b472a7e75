"""How attempts that will not publish are ended: their Spark stopped, their stage dropped, their hooks told."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.entries import DEAD, Attempt, AttemptEnd
from airflow_provider_microbatch.checkpoint.marks import Mark
from airflow_provider_microbatch.exceptions import (
    AttemptFencedError,
    CheckpointError,
    DefinitionError,
    HandleError,
    MicroBatchError,
)
from airflow_provider_microbatch.execution.dropping import drop_stage
from airflow_provider_microbatch.execution.engine import Engine
from airflow_provider_microbatch.execution.guard import named
from airflow_provider_microbatch.execution.recorded_sinks import check_may_be_asked, recorded_sink
from airflow_provider_microbatch.execution.set_aside import FOUND_DEAD, FOUND_STOPPED, cause_of, is_dead, was_stopped
from airflow_provider_microbatch.execution.standing_state import have_stand
from airflow_provider_microbatch.execution.stateful import drop_own_folder
from airflow_provider_microbatch.execution.status import end_attempt, is_committed
from airflow_provider_microbatch.pipeline import Pipeline
from airflow_provider_microbatch.sinks import OpenSink, SinkContext

log = logging.getLogger(__name__)


class Ending:
    """Puts an end to attempts of one pipeline.

    :param pipeline: the pipeline.
    :param checkpoint: its checkpoint.
    :param sink: its sink.
    :param clock_ms: the time, milliseconds since the epoch.
    """

    def __init__(
        self, *, pipeline: Pipeline, checkpoint: Checkpoint, sink: OpenSink, clock_ms: Callable[[], int]
    ) -> None:
        self._pipeline = pipeline
        self._checkpoint = checkpoint
        self._sink = sink
        self._clock_ms = clock_ms

    def abandon(
        self,
        attempt: Attempt,
        *,
        state: str,
        error: BaseException,
        engine: Engine | None,
        cause: str | None = None,
        sink: OpenSink | None = None,
    ) -> str | None:
        """End an attempt that will not publish: stop Spark, drop the stage, record how the attempt ended. Never raises
        over the error that led here; work that cannot be done now is left to the next attempt.

        If the attempt's output is in a table that has it for good, and not in all, the stages of the others stay and no
        end is recorded: the next try publishes them there. No other attempt's output could follow.

        :param cause: the cause of the failure; None takes the cause from ``error``.
        :param sink: the sink that the attempt wrote to; None: the pipeline's of now.
        :return: why no end was recorded, in words; None if one was.
        """
        try:
            if engine is not None:
                self._cancel(attempt, engine)
            dropped = drop_stage(self._checkpoint, sink or self._sink, attempt)
            if dropped.behind is not None:
                log.warning(
                    "Batch %s attempt %s is in %s for good: its other stages stay, and the next try publishes them",
                    attempt.key, attempt.epoch, dropped.behind,
                )  # fmt: skip
                return f"it is in {dropped.behind} for good, and its other stages wait for the next try"
            if dropped.any:
                log.info("Dropped the stage of batch %s attempt %s", attempt.key, attempt.epoch)
            if state == "failed":
                cause = cause or cause_of(error)
            drop_own_folder(self._checkpoint, attempt)
            self.end(attempt, AttemptEnd(state=state, error=str(error), ended_ms=self._clock_ms(), cause=cause))
        except (MicroBatchError, OSError) as cleanup:
            log.warning("batch %s attempt %s could not be cleaned up: %s", attempt.key, attempt.epoch, cleanup)
            if state == "canceled":
                self._note_stop(attempt, sink or self._sink, error=error)
            return str(cleanup)
        return None

    def _note_stop(self, attempt: Attempt, sink: OpenSink, *, error: BaseException) -> None:
        """Put on record that an attempt was stopped which could not be cleaned up: its Spark, which could not be asked,
        ends by the fence mark, and whoever cleans up after it does not take it for one that died."""
        try:
            if attempt.run is not None:
                self._checkpoint.marks.put(Mark.of_stop(attempt.run, reason=str(error), marked_ms=self._clock_ms()))
        except (MicroBatchError, OSError) as failed:
            log.warning("batch %s attempt %s: its stop is not on record: %s", attempt.key, attempt.epoch, failed)
        # By itself: the fence is where the stages are, whose storage may be what has failed.
        try:
            sink.fence(attempt.batch, attempt.epoch, by=str(error))
        except (MicroBatchError, OSError) as failed:
            log.warning("batch %s attempt %s: its Spark sees no fence: %s", attempt.key, attempt.epoch, failed)

    def outrun(self, attempt: Attempt, *, by: Attempt | None) -> None:
        """End an attempt whose batch is in by another one."""
        drop_stage(self._checkpoint, self._sink, attempt)
        error = f"{named(by)} published first"
        self.end(attempt, AttemptEnd(state="superseded", error=error, ended_ms=self._clock_ms()))

    @staticmethod
    def _cancel(attempt: Attempt, engine: Engine) -> None:
        try:
            engine.cancel(attempt.handle)
        except HandleError as error:
            # Asking again would change nothing, and a handle that was written by hand is no reason to keep a stage.
            log.warning("Batch %s attempt %s: %s", attempt.key, attempt.epoch, error)

    def end(self, attempt: Attempt, end: AttemptEnd) -> None:
        """Record the end and tell the hooks; see :func:`end_attempt`."""
        end_attempt(
            self._checkpoint,
            attempt,
            end,
            pipeline=self._pipeline.name,
            sink=self._sink,
            live=self._pipeline.hooks,
        )

    def end_earlier(self, attempt: Attempt, engine: Engine, *, after: int = 0) -> Mapping[int, str]:
        """Put an end to all earlier attempts of the batch that have no end on record.

        :param attempt: took its epoch, so no earlier attempt can publish any more.
        :param engine: stops the Spark of the attempts that ran on this engine.
        :param after: attempts up to this epoch are left as they are.
        :return: by epoch, why an attempt could not be ended now, in words.
        """
        left = dict[int, str]()
        for earlier in self._checkpoint.attempts.all(attempt.key):
            if not after < earlier.epoch < attempt.epoch:
                continue
            if self._checkpoint.attempts.ended(attempt.key, earlier.epoch) is None:
                why = self._supersede(earlier, by=attempt, engine=engine)
                left |= {} if why is None else {earlier.epoch: why}
        return left

    def end_replays_before(self, attempt: Attempt, engine: Engine) -> None:
        """Have the state that the attempt's batch goes on from stand still; see
        :func:`~airflow_provider_microbatch.execution.standing_state.have_stand`."""
        if self._pipeline.stateful:
            have_stand(
                self._checkpoint,
                self._sink,
                attempt,
                end_earlier=lambda fence, after: self.end_earlier(fence, engine, after=after),
                now_ms=self._clock_ms(),
            )

    def _supersede(self, earlier: Attempt, *, by: Attempt, engine: Engine) -> str | None:
        if is_committed(self._checkpoint, earlier):
            # The attempt died between commit entry and end, and is cleared now: its hooks have to hear that it
            # finished.
            self.end(earlier, AttemptEnd(state="succeeded", ended_ms=self._clock_ms()))
            return None
        dead = is_dead(self._checkpoint, earlier, lambda name: engine if name == engine.name else None)
        state, error = "superseded", AttemptFencedError(f"superseded by {named(by)}")
        if dead:
            stopped = was_stopped(self._checkpoint, earlier)
            state, what = ("canceled", FOUND_STOPPED) if stopped else ("failed", FOUND_DEAD)
            error = AttemptFencedError(f"{what}. {named(by)} found it so.")
        # An engine is never given a handle of another engine, which it could not read.
        own = earlier.handle.get("engine") == engine.name
        if not own:
            log.warning(
                "Batch %s attempt %s ran on engine %s and cannot be stopped from %s; it is fenced and cannot publish",
                earlier.key, earlier.epoch, earlier.handle.get("engine"), engine.name,
            )  # fmt: skip
        log.info("Batch %s attempt %s has no end on record: stopping it", earlier.key, earlier.epoch)
        sink = self._sink_of(earlier)
        try:
            sink.fence(earlier.batch, earlier.epoch, by=str(error))
        except (MicroBatchError, OSError) as fence:
            log.warning("batch %s attempt %s is fenced, but its Spark sees none: %s", earlier.key, earlier.epoch, fence)
        cause = DEAD if state == "failed" else None
        return self.abandon(earlier, state=state, error=error, engine=engine if own else None, cause=cause, sink=sink)

    def _sink_of(self, attempt: Attempt) -> OpenSink:
        """The sink that an attempt wrote to, where its stage is and its publisher may sleep: the pipeline may write to
        another table since, or to another branch of it, which would take files that the attempt's own has for those of
        an attempt that was never published."""
        try:
            identity, name = self._checkpoint.identity(), attempt.definition
            if identity is None or attempt.batch.checkpoint not in (identity.query_id, ""):
                return self._sink  # a stranger's entry leads to no other place
            sink = None if name is None else recorded_sink(self._checkpoint, name, beside=self._sink)
            if sink is None or sink is self._sink.definition:
                return self._sink
            check_may_be_asked(sink, beside=self._sink)
            return sink.open(SinkContext(clock_ms=self._clock_ms))
        except (CheckpointError, DefinitionError) as error:
            log.warning(
                "Batch %s attempt %s: what it has left is looked for in the sink of now, since its own is of no "
                "use here: %s", attempt.key, attempt.epoch, error,
            )  # fmt: skip
            return self._sink
