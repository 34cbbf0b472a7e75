"""Only one task of a DAG makes the batches of a checkpoint: a second task would take the batch of the first for its
own."""

from __future__ import annotations

from typing import Any

from airflow_provider_microbatch.exceptions import DefinitionError
from airflow_provider_microbatch.pipeline import Pipeline
from airflow_provider_microbatch.stores.location import open_store


def check_only_one(task: Any, dag: Any) -> None:
    """Check that no other task of the DAG plans batches of the task's checkpoint.

    The log knows the batches of a run by the run, not by its task, as the steps of a batch are several tasks and a task
    may be renamed. So a second task would be green with the batch of the first, and would not read what is new.

    :param task: an operator, or a mapped operator, whose instances all are one task.
    :param dag: the DAG; None if it is not known yet: then the task makes this check again when it runs.
    :raises DefinitionError: if another task does.
    """
    place = None if dag is None else _place(task)
    if place is None:
        return
    for other in dag.task_dict.values():
        if other.task_id != task.task_id and _place(other) == place:
            raise DefinitionError(
                f"DAG {dag.dag_id!r}: tasks {other.task_id!r} and {task.task_id!r} make batches of one checkpoint, "
                f"{place}: in a run the second would take the batch of the first for its own. Leave one out. Several "
                "batches in one run are drain(pipeline, slots=…); what depends on the run, as the connection, is a "
                "template (conn_id='{{ … }}'); another table is a pipeline with a checkpoint of its own."
            )


def _place(task: Any) -> str | None:
    """The checkpoint that the task plans batches of; None if the task plans none, or an expansion sets the pipeline."""
    if not getattr(getattr(task, "operator_class", type(task)), "plans_batches", False):
        return None
    pipeline = getattr(task, "pipeline", None) or getattr(task, "partial_kwargs", {}).get("pipeline")
    return open_store(pipeline.checkpoint).location if isinstance(pipeline, Pipeline) else None
