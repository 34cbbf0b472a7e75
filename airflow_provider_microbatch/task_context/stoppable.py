"""An engine that a signal handler can stop."""

from __future__ import annotations

import logging
import threading

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import AttemptCanceledError, EngineError
from airflow_provider_microbatch.execution.engine import Code, Engine, EngineState, Handle
from airflow_provider_microbatch.runtime.job import Job

log = logging.getLogger(__name__)

CANCEL_SECONDS = 3.0
"""How long a stop waits for the engine's answer. Airflow kills a task five seconds after it has told it to stop, and
what is put on record of the stop comes after the answer, or in place of it."""

_AGAIN_SECONDS = 0.5
"""How long ``execute`` waits for the answer, or cancels once more what was stopped: its Spark may have been launched
since."""

_SLICE_SECONDS = 0.1


class StoppableEngine:
    """An engine that passes all calls on to another engine, and remembers the handle that was started.

    ``on_kill`` runs in a signal handler while ``execute`` waits in :meth:`result`, and does not end ``execute``. The
    batch stops because ``execute`` asks :attr:`stopped` before publish. An engine ends first what runs on this host,
    which ends :meth:`result`; a server or a cluster that does not answer is waited for no longer than
    ``CANCEL_SECONDS``.

    :param engine: the engine that runs the job.
    """

    def __init__(self, engine: Engine) -> None:
        self.stopped = False
        self._engine = engine
        self._started: Handle | None = None
        self._asked: _Cancel | None = None

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
        if self.stopped:  # meanwhile, when there may have been nobody to be ended: who cleans up cancels once more
            raise AttemptCanceledError(f"batch {job.lane}/{job.batch_id} was stopped while Spark was launched.")

    def result(self, handle: Handle) -> None:
        self._engine.result(handle)

    def poll(self, handle: Handle) -> EngineState:
        return self._engine.poll(handle)

    def cancel(self, handle: Handle) -> bool:
        """Stop the step. Once the task was told to stop there is no time to wait: see :meth:`stop`.

        :raises EngineError: if the task was told to stop, and the engine has not answered in time.
        """
        if not self.stopped or handle != self._started:
            return self._engine.cancel(handle)
        if self._asked is None or not self._asked.is_alive():
            self._asked = _Cancel(self._engine, handle)
        self._asked.wait(_AGAIN_SECONDS)
        return self._asked.answer()

    def stop(self) -> None:
        """Start nothing from here on, and cancel the job that runs. Never raises, and returns in time: whoever raised
        from a signal handler would break off whatever ``execute`` does at this moment."""
        self.stopped = True
        if self._started is not None and self._asked is None:
            self._asked = _Cancel(self._engine, self._started)
            self._asked.wait(CANCEL_SECONDS)


class _Cancel:
    """One call of an engine's ``cancel``, which may take longer than its caller has, in a thread of its own."""

    def __init__(self, engine: Engine, handle: Handle) -> None:
        self._engine = engine
        self._handle = handle
        self._stopped = False
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="microbatch cancel", daemon=True)
        self._thread.start()

    def is_alive(self) -> bool:
        """Whether the engine has not answered yet."""
        return self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._stopped = self._engine.cancel(self._handle)
        except Exception as error:
            self._error = error
            log.warning("%s could not be stopped: %s", self._handle.get("application", "the job"), error)

    def wait(self, seconds: float) -> None:
        """Wait for the answer, in slices, so that a further signal's handler can run meanwhile."""
        for _ in range(round(seconds / _SLICE_SECONDS)):
            if not self.is_alive():
                return
            self._thread.join(timeout=_SLICE_SECONDS)

    def answer(self) -> bool:
        """:raises EngineError: if there is none yet; else what ``cancel`` has raised."""
        if self.is_alive():
            raise EngineError(
                f"{self._handle.get('application', 'the job')} was told to end, and nobody has answered in time; it is "
                "left to the batch's next attempt, or to the janitor."
            )
        if self._error is not None:
            raise self._error
        return self._stopped
