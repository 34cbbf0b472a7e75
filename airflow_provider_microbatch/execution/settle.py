"""The end of a task's own attempts, put on record by the task's process if ``execute`` has ended without doing so."""

from __future__ import annotations

import logging

from airflow_provider_microbatch.checkpoint.entries import AttemptEnd
from airflow_provider_microbatch.clock import now_ms
from airflow_provider_microbatch.exceptions import AttemptCanceledError
from airflow_provider_microbatch.execution.execution import Execution
from airflow_provider_microbatch.execution.identity import published_in
from airflow_provider_microbatch.execution.liveness import EngineOf
from airflow_provider_microbatch.execution.status import end_attempt, is_committed

log = logging.getLogger(__name__)


def settle(execution: Execution, *, ti_id: str, error: BaseException | None, engine_of: EngineOf) -> None:
    """Tell the hooks how the attempts of one try of a task ended, if no process has told them.

    Nothing is published or committed here. A committed attempt is FINISHED, whatever Airflow says of the task. An
    attempt that a later one has fenced is left to the later one to clean up, whose process may be at it now, as this
    one may be late. A published attempt waits for its commit. Only the attempts that remain are dead, and only their
    own stages are dropped.

    :param execution: the task's pipeline and checkpoint.
    :param ti_id: Airflow's id of the try.
    :param error: the error that ended the try; None if the try succeeded: an attempt may then wait for audits, so none
        is dead.
    :param engine_of: finds the engine that an attempt runs on, to stop it.
    """
    checkpoint = execution.checkpoint
    for key, epoch in checkpoint.leases.unfinished():
        attempt = checkpoint.attempts.get(key, epoch)
        if attempt is None or attempt.run is None or attempt.run.ti_id != ti_id:
            continue
        sink, pipeline = execution.sink, execution.pipeline.name
        if is_committed(checkpoint, attempt):
            log.info("Batch %s attempt %s is committed: telling its job status hooks", key, epoch)
            end = AttemptEnd(state="succeeded", ended_ms=now_ms())
            end_attempt(checkpoint, attempt, end, pipeline=pipeline, sink=sink, live=execution.pipeline.hooks)
            continue
        if (
            error is None
            or checkpoint.attempts.ended(key, epoch) is not None
            or published_in(checkpoint, attempt, [sink], tables=checkpoint.tables, partly=True) is not None
        ):
            continue
        newest = checkpoint.attempts.latest_epoch(key)
        if newest != epoch:
            log.info("Batch %s attempt %s is fenced by attempt %s, which cleans up after it", key, epoch, newest)
            continue
        log.info("Batch %s attempt %s has no end on record: ending it", key, epoch)
        state = "canceled" if isinstance(error, AttemptCanceledError) else "failed"
        execution.abandon(attempt, state=state, error=error, engine=engine_of(str(attempt.handle.get("engine"))))
