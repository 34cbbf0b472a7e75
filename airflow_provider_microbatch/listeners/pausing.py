"""Pause the DAG of a run that found its pipelines complete. A task cannot do so: Airflow lets no task change a DAG."""

from __future__ import annotations

import logging
from typing import Any

from airflow_provider_microbatch.task_context.complete import XCOM

log = logging.getLogger(__name__)


def pause_if_complete(dag_run: Any) -> None:
    """Pause the DAG if a task of the run said that there will never be a batch. The pause is in the scheduler's own
    transaction, so that no run is made between success and pause. If the scheduler dies meanwhile, nothing is lost: the
    next run finds the same.

    :param dag_run: a run that has succeeded.
    """
    from airflow.models.dag import DagModel
    from airflow.models.xcom import XComModel
    from sqlalchemy import inspect, select, update

    mapped = inspect(dag_run, raiseerr=False)
    session = None if mapped is None else mapped.session
    if session is None:
        return
    said = select(XComModel.value).where(
        XComModel.dag_id == dag_run.dag_id, XComModel.run_id == dag_run.run_id, XComModel.key == XCOM
    )
    with session.no_autoflush:
        reason = session.scalars(said).first()
        if reason is not None:
            session.execute(
                update(DagModel).where(DagModel.dag_id == dag_run.dag_id).values(is_paused=True),
                execution_options={"synchronize_session": "fetch"},
            )
            log.info("DAG %s is paused, since there will never be a batch: %s", dag_run.dag_id, reason)
