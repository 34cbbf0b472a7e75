"""End a run whose pipelines are complete: all their sources are finished, so there will never be a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from airflow.sdk.exceptions import AirflowSkipException

from airflow_provider_microbatch.exceptions import DefinitionError
from airflow_provider_microbatch.execution.fire import FireDecision

if TYPE_CHECKING:
    from airflow.sdk import Context

SKIP, PAUSE = "skip", "pause"
"""Values of ``when_complete``: end the run in success, or pause the DAG as well."""

FIELD = "microbatch_when_complete"
"""Template field by which the scheduler, which has no DAG file, recognizes a task that may pause its DAG."""

XCOM = "microbatch_complete"
"""XCom key under which such a task says that there will never be a batch."""

REST_SECONDS = 3600.0
"""How long a sensor stays that has nothing to wait for, if Airflow would make the next run at once."""


def check_when_complete(value: object, *, where: str) -> str:
    """:raises DefinitionError: if ``value`` is neither ``skip`` nor ``pause``."""
    if value not in (SKIP, PAUSE):
        raise DefinitionError(f"{where}: when_complete is {SKIP!r} or {PAUSE!r}, not {value!r}.")
    return str(value)


def rest_seconds(dag: Any, when_complete: str, *, timeout: float) -> float:
    """How long a sensor stays that finds its pipelines complete, in seconds. In a DAG that runs ``@continuous`` a
    sensor that ended at once would have Airflow make the next run at once, and so on as fast as Airflow can. The sensor
    ends now and then, since a run does not know of a source that is added to the DAG after the run began.

    :param dag: the DAG of the sensor; None outside of any DAG.
    :param timeout: the timeout of the sensor, in seconds, after which the sensor fails.
    """
    continuous = type(getattr(dag, "timetable", None)).__name__ == "ContinuousTimetable"
    return min(REST_SECONDS, timeout / 2) if continuous and when_complete == SKIP else 0.0


def has_rested(decision: FireDecision, *, since_ms: int, now_ms: int, seconds: float) -> bool:
    """Whether a sensor ends by this decision: there will never be work, and the sensor has stayed as long as it should.

    :param since_ms: when the sensor began to ask, milliseconds since the epoch.
    :param now_ms: the time, milliseconds since the epoch.
    :param seconds: how long the sensor should stay, see :func:`rest_seconds`.
    """
    return decision.complete and now_ms - since_ms >= seconds * 1000


def end_complete(context: Context, reason: str) -> NoReturn:
    """Say in an XCom that there will never be a batch, and skip. The scheduler pauses the DAG as the run succeeds, if
    ``when_complete`` is ``pause``.

    :raises AirflowSkipException: always.
    """
    context["ti"].xcom_push(key=XCOM, value=reason)
    raise AirflowSkipException(reason)
