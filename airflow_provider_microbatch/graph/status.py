"""Job status hooks of a job: a user's code that is called when a run of the job begins, and when the last pipeline of
the run has ended.

On record below the job's checkpoint, append-only, ``<life>`` being a run since its last clear:

| entry | meaning |
| --- | --- |
| ``_job/open/<life>`` | the run with its hooks, put by its first task; removed when all hooks are told of its end |
| ``_job/told/<life>/end`` | how the run ended: the first process that puts this entry decides, even if it dies then |
| ``_job/told/<life>/<hook>.created`` | put before the call, so that no hook is told twice |
| ``_job/told/<life>/<hook>.ended`` | put after the call: a crash in between causes a second call, and never none |
| ``_job/told/<life>/try-<n>`` | a hook has failed; after nine times the run is given up |
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from airflow_provider_microbatch.checkpoint.entries import RunIdentity
from airflow_provider_microbatch.checkpoint.records import decode_record, encode_record, run_from_dict, run_to_dict
from airflow_provider_microbatch.definition import Definition, class_path
from airflow_provider_microbatch.exceptions import DefinitionError, HookError, MicroBatchError
from airflow_provider_microbatch.job_status import CANCELED, FAILED, FINISHED, check_written_down
from airflow_provider_microbatch.stores import Store
from airflow_provider_microbatch.stores.location import open_store

log = logging.getLogger(__name__)

MOST_TRIES = 9
KEPT = 100
"""Number of runs that stay on record after their hooks were told, so that a late process does not tell them again."""


@dataclass(frozen=True, kw_only=True)
class JobRunContext:
    """The run of a job that a hook is told of.

    :param job: name of the job.
    :param checkpoint: the address below which the checkpoints of its pipelines lie.
    :param run: the DAG run, as the first task that told the hooks recorded it.
    """

    job: str
    checkpoint: str
    run: RunIdentity


class JobRunHook(Definition):
    """Base of hooks of a job. A subclass is a frozen dataclass in a module that workers can import.

    Each run of the job, and each clear of a run, is CREATED when the first of its pipelines begins, then FINISHED after
    the last pipeline's commit, or FAILED if a pipeline has failed, or CANCELED. The end reaches a hook at least once:
    the next run tells how a run ended whose tasks are gone. Write the methods of a hook so that a second call, from
    another process, does no harm.
    """

    def on_created(self, context: JobRunContext) -> None:
        """The first pipeline of the run begins. Called once; raising fails that pipeline's task."""

    def on_finished(self, context: JobRunContext) -> None:
        """All pipelines of the run have committed their batches, or had none to make."""

    def on_failed(self, context: JobRunContext, error: str) -> None:
        """A pipeline of the run has failed; the others may have committed.

        :param error: text that names the pipelines that failed.
        """

    def on_canceled(self, context: JobRunContext) -> None:
        """The run was told to stop."""


@dataclass(frozen=True, kw_only=True)
class RunEnd:
    """The end of a run of a job.

    :param status: FINISHED, FAILED or CANCELED.
    :param error: for FAILED, text that names the pipelines that failed.
    """

    status: str
    error: str = ""


class JobStatus:
    """Tells the hooks of a job how its runs begin and end, whatever process dies.

    :param job: name of the job.
    :param checkpoint: the address below which the job's checkpoints lie.
    :param hooks: the hooks that the DAG file has now. The hooks that a run began with are told of that run.
    """

    def __init__(self, job: str, *, checkpoint: str, hooks: Sequence[JobRunHook]) -> None:
        self._job = job
        self._checkpoint = checkpoint
        self._hooks = hooks
        self._store: Store = open_store(checkpoint).scoped("_job")

    def begin(self, run: RunIdentity) -> None:
        """Tell the hooks that the run has begun, if no task of the run has done so.

        :raises HookError: with the error of the first hook that raised.
        """
        life = life_of(run)
        if self._store.get(f"told/{life}/end") is not None:
            return  # a task that was cleared alone, in a run that has ended
        record = {"run": run_to_dict(run), "hooks": [hook.to_dict() for hook in self._hooks]}
        self._store.put_if_absent(f"open/{life}", encode_record(record))
        data = self._store.get(f"open/{life}")
        if data is None:
            return
        found, hooks = self._read(life, data)
        for index, recorded in enumerate(hooks):
            if self._store.put_if_absent(f"told/{life}/{index}.created", encode_record({})):
                hook = self._hook(recorded)
                self._call(hook, "on_created", partial(hook.on_created, self._context(found)))

    def open_runs(self, *, but: RunIdentity) -> list[RunIdentity]:
        """Runs whose end the hooks were not told.

        :param but: a run to leave out.
        """
        lives = sorted(set(self._store.list("open")) - {life_of(but)})
        found = []
        for life in lives:
            try:
                data = self._store.get(f"open/{life}")
                if data is not None:
                    found.append(self._read(life, data)[0])
            except MicroBatchError as error:
                log.warning("job %s: run %s cannot be told that it is over: %s", self._job, life, error)
        return found

    def end(self, run: RunIdentity, how: Callable[[], RunEnd]) -> RunEnd | None:
        """Tell the hooks how the run ended. Idempotent.

        :param how: finds out how the run ended; called if that is not on record yet.
        :return: how the run ended; None if no pipeline of the run has begun.
        :raises MicroBatchError: with the error of the first hook that raised, or that cannot be loaded; the next call
            of this method calls that hook again.
        """
        life = life_of(run)
        data = self._store.get(f"open/{life}")
        if data is None:
            return None
        found, hooks = self._read(life, data)
        said = self._store.get(f"told/{life}/end")
        if said is None:
            end = how()
            self._store.put_if_absent(f"told/{life}/end", encode_record({"status": end.status, "error": end.error}))
            said = self._store.get(f"told/{life}/end") or b""
        values = decode_record(said, where=f"{self._store.location}/told/{life}/end")
        end = RunEnd(status=str(values.get("status")), error=str(values.get("error") or ""))
        for index, recorded in enumerate(hooks):
            if self._store.get(f"told/{life}/{index}.ended") is None and not self._is_given_up(life):
                try:
                    hook = self._hook(recorded)
                    self._call(hook, f"on_{end.status}", partial(self._tell, hook, found, end))
                except MicroBatchError as error:
                    self._note(life, str(error))
                    raise
                self._store.put_if_absent(f"told/{life}/{index}.ended", encode_record({}))
        self._store.delete(f"open/{life}")
        self._purge()
        return end

    def _tell(self, hook: JobRunHook, run: RunIdentity, end: RunEnd) -> None:
        context = self._context(run)
        if end.status == FINISHED:
            hook.on_finished(context)
        elif end.status == CANCELED:
            hook.on_canceled(context)
        else:
            hook.on_failed(context, end.error)

    def _call(self, hook: JobRunHook, method: str, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:
            raise HookError(
                f"job {self._job!r}: hook {class_path(type(hook))} raised in {method}: {type(error).__name__}: {error}"
            ) from error

    def _context(self, run: RunIdentity) -> JobRunContext:
        return JobRunContext(job=self._job, checkpoint=self._checkpoint, run=run)

    def _read(self, life: str, data: bytes) -> tuple[RunIdentity, list[Any]]:
        """The run as it began, and the stored forms of its hooks."""
        where = f"{self._store.location}/open/{life}"
        values = decode_record(data, where=where)
        run = run_from_dict(values.get("run"), where=where)
        if run is None or life_of(run) != life:
            raise HookError(f"{where} tells of no run, or of another one. Remove it.")
        hooks = values.get("hooks")
        return run, hooks if isinstance(hooks, list) else []

    def _hook(self, recorded: Any) -> JobRunHook:
        """The hook of a stored form.

        :raises UntrustedError: if the hook's class must not be loaded because a checkpoint names it.
        :raises DefinitionError: if this process cannot import the class.
        """
        return JobRunHook.from_dict(recorded, live=self._hooks)

    def _note(self, life: str, error: str) -> None:
        tries = self._tries(life) + 1
        self._store.put_if_absent(f"told/{life}/try-{tries}", encode_record({"error": error[:2000]}))
        if tries >= MOST_TRIES:
            log.error("job %s: run %s is given up after %s tries: %s", self._job, life, tries, error)

    def _is_given_up(self, life: str) -> bool:
        return self._tries(life) >= MOST_TRIES

    def _tries(self, life: str) -> int:
        return sum(name.startswith("try-") for name in self._store.list(f"told/{life}"))

    def _purge(self) -> None:
        """Remove all but the newest ``KEPT`` runs: a life's name begins with the time at which it began. Open runs
        stay."""
        still_open = set(self._store.list("open"))
        for life in sorted(self._store.list("told"))[:-KEPT]:
            if life not in still_open:
                for name in self._store.list(f"told/{life}"):
                    self._store.delete(f"told/{life}/{name}")
                self._store.delete(f"told/{life}")


def check_run_hook(hook: object, *, where: str) -> None:
    """:raises DefinitionError: if ``hook`` is not a hook of a job, or if another process could not call the hook."""
    if not isinstance(hook, JobRunHook):
        raise DefinitionError(f"{where}: run_hooks are JobRunHooks, and {type(hook).__name__} is none.")
    check_written_down(hook, where=where)


def life_of(run: RunIdentity) -> str:
    """The name of a run since its last clear, the same for all tasks of the run. Names sort by the time at which the
    runs began."""
    started = run.run_started or run.run_after or ""
    named = "\0".join([run.dag_id, run.run_id, str(run.clear_number), started])
    began = "".join(character for character in started if character.isdigit())[:20].ljust(20, "0")
    return f"{began}-{hashlib.sha256(named.encode()).hexdigest()[:16]}"


def end_of(states: dict[str, str | None], *, canceled: Sequence[str]) -> RunEnd:
    """How a run ended.

    :param states: the state in Airflow of each pipeline's task, by the task's id; None if Airflow has no state.
    :param canceled: the tasks whose attempts were told to stop.
    """
    failed = sorted(name for name, state in states.items() if state not in ("success", "skipped", None, "removed"))
    failed = [name for name in failed if name not in canceled]
    if failed:
        return RunEnd(status=FAILED, error=f"failed: {', '.join(failed)}")
    gone = [name for name, state in states.items() if state in (None, "removed")]
    return RunEnd(status=CANCELED if canceled or gone else FINISHED)
