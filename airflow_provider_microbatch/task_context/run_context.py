"""Translate what a task knows of itself (run, code, pipeline) into the terms of the layers below."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowRuntimeError

from airflow_provider_microbatch import configuration
from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.entries import RunIdentity
from airflow_provider_microbatch.checkpoint.key import LIVE
from airflow_provider_microbatch.execution.engine import Code
from airflow_provider_microbatch.execution.execution import Execution
from airflow_provider_microbatch.pipeline import Pipeline
from airflow_provider_microbatch.runtime.job import Flow, Transform
from airflow_provider_microbatch.stores.location import open_store

if TYPE_CHECKING:
    from airflow.sdk import Context

configuration.hand_down()

BACKFILL = "backfill"
"""``run_type`` of the runs of Airflow's own backfill."""
SCHEDULED = "scheduled"
"""``run_type`` of the runs that the scheduler makes by the DAG's timetable, one after the other."""


def open_checkpoint(pipeline: Pipeline) -> Checkpoint:
    """The pipeline's checkpoint. Touches nothing yet.

    :raises CheckpointError: if no store exists for the checkpoint's address.
    """
    return Checkpoint(open_store(pipeline.checkpoint), sources=list(pipeline.sources))


def open_execution(pipeline: Pipeline, *, lane: str = LIVE) -> Execution:
    """The pipeline beside its checkpoint. Touches nothing yet.

    :param lane: the lane of the batches.
    :raises CheckpointError: if no store exists for the checkpoint's address.
    """
    return Execution(pipeline=pipeline, checkpoint=open_checkpoint(pipeline), lane=lane)


def identity_of(context: Context) -> RunIdentity:
    """The identity of the run, as the log entries record it.

    The map index of a task whose instances are tables is left out: each table has a checkpoint of its own, and may have
    another index in the next list of tables. By its index a cleared table would be taken for another run's.
    """
    ti: Any = context["ti"]
    is_table = getattr(getattr(ti, "task", None), "maps_tables", False)
    dag_run: Any = context["dag_run"]
    return RunIdentity(
        dag_id=ti.dag_id,
        run_id=ti.run_id,
        task_id=ti.task_id,
        map_index=-1 if ti.map_index is None or is_table else ti.map_index,
        ti_id=str(ti.id),
        try_number=ti.try_number,
        clear_number=dag_run.clear_number or 0,
        logical_date=_iso(dag_run.logical_date),
        partition_key=dag_run.partition_key,
        partition_date=_iso(dag_run.partition_date),
        first_try=_first_try(ti),
        # The triggerer knows less of a run than a worker does.
        run_started=_iso(getattr(dag_run, "start_date", None)),
        run_after=_iso(getattr(dag_run, "run_after", None)),
    )


def _first_try(ti: Any) -> int | None:
    """Number of the task's first try since its last clear: Airflow allows as many further tries as the task has
    retries. If the task's retries were changed since then, the number is off by the difference, but never below 1 or
    above this try's number."""
    allowed, task = getattr(ti, "max_tries", None), getattr(ti, "task", None)
    if allowed is None or task is None:
        return None
    return int(min(max(allowed - (task.retries or 0) + 1, 1), ti.try_number))


def is_backfill(context: Context) -> bool:
    """True in a run that Airflow's backfill made."""
    return _run_type(context) == BACKFILL


def is_scheduled(context: Context) -> bool:
    """True in a run that the scheduler made by the DAG's timetable."""
    return _run_type(context) == SCHEDULED


def _run_type(context: Context) -> str:
    run_type: Any = context["dag_run"].run_type
    return str(getattr(run_type, "value", run_type))


def other_runs_go_on(context: Context) -> bool:
    """Whether Airflow has another run of the DAG that is queued or running; True if Airflow cannot be asked."""
    ti: Any = context["ti"]
    try:
        return bool(ti.get_dr_count(dag_id=ti.dag_id, states=["queued", "running"]) > 1)
    except AirflowRuntimeError:
        return True


def run_goes_on(run: RunIdentity, context: Context) -> bool:
    """Whether Airflow says that the DAG run is running now; False for a run that Airflow does not know any more."""
    ti: Any = context["ti"]
    try:
        return bool(ti.get_dagrun_state(dag_id=run.dag_id, run_id=run.run_id) == "running")
    except AirflowRuntimeError:
        return False


def code_of(pipeline: Pipeline, context: Context) -> tuple[Code, Transform | Flow | None]:
    """Find the pipeline's code in the DAG bundle of the running task.

    :raises DefinitionError: if a file is missing or cannot be used; nothing is written then.
    """
    from airflow_provider_microbatch.engines.code import resolve_code

    name, version, folder = bundle_of(context)
    return resolve_code(
        pipeline.transform,
        base=folder,
        py_files=pipeline.py_files,
        bundle_name=name,
        bundle_version=version,
    )


def bundle_of(context: Context) -> tuple[str | None, str | None, Path]:
    """Name, version and folder of the DAG bundle; None, None and the DAG file's folder under ``dag.test()``, which has
    no bundle."""
    bundle: Any = getattr(context["ti"], "bundle_instance", None)
    if bundle is None:
        return None, None, Path(context["dag"].fileloc).parent
    return bundle.name, bundle.version, Path(bundle.path)


def _iso(moment: datetime | None) -> str | None:
    return None if moment is None else moment.astimezone(UTC).isoformat()
