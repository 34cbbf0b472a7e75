"""An engine that a signal handler can stop."""

from __future__ import annotations

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import AttemptCanceledError
from airflow_provider_microbatch.execution.engine import Code, Engine, EngineState, Handle
from airflow_provider_microbatch.runtime.job import Job


class StoppableEngine:
    """An engine that passes all calls on to another engine, and remembers the handle that was started.

    ``on_kill`` runs in a signal handler while ``execute`` waits in :meth:`result`, and does not end ``execute``. The
    batch stops because ``execute`` asks :attr:`stopped` before publish.

    :param engine: the engine that runs the job.
    """

    def __init__(self, engine: Engine) -> None:
        self.stopped = False
        self._engine = engine
        self._started: Handle | None = None

    @property
    def name(self) -> str:
        return self._engine.name

    def handle(self, *, pipeline: str, key: BatchKey, epoch: int) -> Handle:
        return self._engine.handle(pipeline=pipeline, key=key, epoch=epoch)

    def start(self, handle: Handle, job: Job, code: Code) -> None:
        self._started = handle
        if self.stopped:
            raise AttemptCanceledError(f"batch {job.lane}/{job.batch_id} was stopped before Spark was launched.")
        self._engine.start(handle, job, code)

    def result(self, handle: Handle) -> None:
        self._engine.result(handle)

    def poll(self, handle: Handle) -> EngineState:
        return self._engine.poll(handle)

    def cancel(self, handle: Handle) -> bool:
        return self._engine.cancel(handle)

    def stop(self) -> None:
        """Start nothing from here on, and cancel the job that runs."""
        self.stopped = True
        if self._started is not None:
            self._engine.cancel(self._started)
