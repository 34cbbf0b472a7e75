"""The one table of Airflow's events, with the job status that each event means for the attempt of the task.

The commit log outranks every row: an attempt whose output is committed is FINISHED, whatever Airflow says of its task.
"""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_microbatch.job_status import CANCELED, CREATED, FAILED, FINISHED

NOT_THE_END = "not the end"


@dataclass(frozen=True, kw_only=True)
class Event:
    """One row. T is the task's own process, A the API server, S the scheduler; J the janitor.

    :param event: the event in Airflow.
    :param hooks: the listener hooks of Airflow that are called, and where (measured on Airflow 3.3.2).
    :param status: the statuses that the job status hooks of the attempt are told, in this order.
    :param told_by: the processes that may tell them: the first one that can does.
    :param done: what this package does.
    """

    event: str
    hooks: str
    status: tuple[str, ...]
    told_by: str
    done: str


_KILLED = "nobody is left to do anything; the next try stops the Spark and drops the stage of the attempt before"
_STOPPED = "the operator's `on_kill` stops Spark; `execute` drops its stage and publishes nothing"

EVENTS = (
    Event(
        event="success",
        hooks="S dag_run_running; T running, success; S dag_run_success",
        status=(CREATED, FINISHED),
        told_by="T, J",
        done="CREATED when the epoch is durable, FINISHED when the commit entry is; the listener sees that it was said",
    ),
    Event(
        event="exception, retries left",
        hooks="T failed with state up_for_retry",
        status=(FAILED,),
        told_by="T, next try, J",
        done="not the task's end but the attempt's: the stage is dropped; the retry opens the next attempt",
    ),
    Event(
        event="final failure",
        hooks="T failed; S dag_run_failed",
        status=(FAILED,),
        told_by="T, next run, J",
        done="the stage is dropped, the batch stays planned; S marks",
    ),
    Event(
        event="AirflowSkipException",
        hooks="T skipped (none for skips by trigger rule or branch)",
        status=(NOT_THE_END,),
        told_by="",
        done="nothing was opened: there is nothing new, or another run is alive at the batch",
    ),
    Event(
        event="defer, resume",
        hooks="T running, again T running at resume",
        status=(NOT_THE_END,),
        told_by="",
        done="a task that waits has opened no attempt",
    ),
    Event(
        event="deferred; a user marks it failed",
        hooks="A failed",
        status=(NOT_THE_END,),
        told_by="",
        done="a task that waits has opened no attempt",
    ),
    Event(
        event="deferred; a user clears it",
        hooks="none",
        status=(NOT_THE_END,),
        told_by="",
        done="a task that waits has opened no attempt",
    ),
    Event(
        event="kill -9 of the task, no retries",
        hooks="S dag_run_failed",
        status=(FAILED,),
        told_by="next run, J",
        done="S marks the run; " + _KILLED.replace("try", "run"),
    ),
    Event(
        event="kill -9 of the task, retries left",
        hooks="S failed (up_for_retry)",
        status=(FAILED,),
        told_by="next try, J",
        done="S marks the try; " + _KILLED,
    ),
    Event(
        event="kill -9 of the supervisor",
        hooks="S failed after the heartbeat timeout",
        status=(FAILED,),
        told_by="T, next try, J",
        done="S marks the try; the task runs on as an orphan. Its next line of log may break, since the supervisor "
        "took it: then the attempt ends as failed (`Broken pipe`) and its Spark is stopped. Else it commits, unless a "
        "next try has fenced it",
    ),
    Event(
        event="a user marks a running task failed or success",
        hooks="A at once; within 5 s on_kill, then T failed or success",
        status=(CANCELED,),
        told_by="T, J",
        done="A marks; " + _STOPPED,
    ),
    Event(
        event="a user clears a running task",
        hooks="on_kill, T of the dying try; T running of the next",
        status=(CANCELED,),
        told_by="T, next try, J",
        done=_STOPPED,
    ),
    Event(
        event="a user marks the run failed",
        hooks="A per task, A dag_run; then on_kill, T",
        status=(CANCELED,),
        told_by="T, J",
        done="A marks; " + _STOPPED,
    ),
    Event(
        event="execution_timeout",
        hooks="on_kill, T failed",
        status=(FAILED,),
        told_by="T, next try, J",
        done="the timeout is an error of the attempt like any other; the stage is dropped",
    ),
    Event(
        event="dagrun_timeout",
        hooks="S dag_run_failed; tasks skipped without a hook",
        status=(CANCELED,),
        told_by="T, J",
        done="S marks the run; the next heartbeat is refused, and then as if a user had stopped the task",
    ),
    Event(
        event="kill -9 of the scheduler, restart",
        hooks="on_starting",
        status=(NOT_THE_END,),
        told_by="",
        done="the task goes on",
    ),
    Event(
        event="SIGTERM to the scheduler, a second scheduler",
        hooks="none; the task is reset, try + 1",
        status=(FAILED,),
        told_by="next try, J",
        done="two tries overlap: the later one has the higher epoch and stops the other, which cannot publish",
    ),
    Event(
        event="task instance deleted by REST",
        hooks="none; a new one with try 1",
        status=(CANCELED,),
        told_by="T, next try, J",
        done="the heartbeat is refused, then as if a user had stopped it; FAILED where a new task was faster. "
        "Airflow may call the new task failed before it begins or while it runs and commits, or the run a success "
        "without it: then the next run takes the batch up",
    ),
    Event(
        event="SIGTERM to the task only",
        hooks="on_kill, then execute goes on",
        status=(CANCELED,),
        told_by="T, next try, J",
        done="`execute` raises instead of publishing; the task is failed, or retried",
    ),
    Event(
        event="API server dead",
        hooks="SIGTERM to the task after 40 s",
        status=(CANCELED,),
        told_by="T, next try, J",
        done=_STOPPED,
    ),
)
"""Every row of the measured table, in its order."""


def table() -> str:
    """The rows as the Markdown table that docs/events.md shows."""
    head = ["in Airflow", "hooks that fire, and where", "status of the attempt", "told by", "what we do"]
    rows = [[row.event, row.hooks, status_of(row), row.told_by or "nobody", row.done] for row in EVENTS]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in [head, ["---"] * len(head), *rows])


def status_of(row: Event) -> str:
    """The row's statuses in words."""
    return ", then ".join(status if status == NOT_THE_END else status.upper() for status in row.status)
