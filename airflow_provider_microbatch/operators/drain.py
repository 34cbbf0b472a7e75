"""Drain a backlog in one DAG run by several micro-batches; each is a mapped task run with its own square and label."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowSkipException

from airflow_provider_microbatch.exceptions import DefinitionError
from airflow_provider_microbatch.execution.own_batches import own_of_interval
from airflow_provider_microbatch.lifetime import lifetime
from airflow_provider_microbatch.operators.micro_batch import LABEL, MicroBatchOperator, check_runnable
from airflow_provider_microbatch.operators.not_shown import not_shown
from airflow_provider_microbatch.operators.one_task import check_only_one
from airflow_provider_microbatch.pipeline import Pipeline
from airflow_provider_microbatch.task_context.data_interval import interval_work
from airflow_provider_microbatch.task_context.run_context import identity_of, open_checkpoint

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.definitions.mappedoperator import MappedOperator

_STOPPED = frozenset({"failed", "up_for_retry", "upstream_failed"})


class DrainSlotOperator(MicroBatchOperator):
    """One slot of :func:`drain`: the next batch is planned when the slot runs.

    A slot skips when there is nothing new, and when an earlier slot has failed: the batch of the failed slot comes
    first, at the slot's retry or in the next run of the DAG.

    :param slot: place of the slot in the order, from 0.
    """

    def __init__(self, *, slot: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.slot = slot

    @lifetime()
    def execute(self, context: Context) -> dict[str, Any]:
        """Make one batch.

        :raises AirflowSkipException: if this slot has nothing to do.
        """
        before = _failed_before(context) if self.slot else []
        if before:
            raise AirflowSkipException(f"slot {before[0]} has failed, and its batch comes first.")
        work = interval_work(self.pipeline, context) if self.slot else None
        # A backfill clears runs of the schedule too: what this slot has made then is replayed, or the clear is lost.
        if work is not None and not own_of_interval(open_checkpoint(self.pipeline), identity_of(context), work.key):
            raise AirflowSkipException(
                "a run with a data interval has one batch, which slot 0 makes, and this slot has made none before."
            )
        return super().execute(context)


def _failed_before(context: Context) -> list[int]:
    """Slots before this slot that have failed, or wait for their retry."""
    ti: Any = context["ti"]
    states = ti.get_task_states(dag_id=ti.dag_id, task_ids=[ti.task_id], run_ids=[ti.run_id]).get(ti.run_id, {})
    return [slot for slot in range(ti.map_index) if states.get(f"{ti.task_id}_{slot}") in _STOPPED]


def drain(
    pipeline: Pipeline,
    *,
    slots: int = 10,
    task_id: str = "micro_batch",
    operator: type[DrainSlotOperator] = DrainSlotOperator,
    **operator_arguments: Any,
) -> MappedOperator:
    """A mapped task that works off a backlog in one DAG run, batch after batch, each within the limits of the sources.

    The instances of the task are slots, run one at a time and in order. On a connection of type ``spark_connect`` the
    slots share the session of the DAG run, which stays warm.

    :param pipeline: the pipeline to run.
    :param slots: most batches of a DAG run; slots that find nothing new are skipped.
    :param task_id: id of the mapped task.
    :param operator: a subclass of the slot, in its place.
    :param operator_arguments: further arguments of
        :class:`~airflow_provider_microbatch.operators.micro_batch.MicroBatchOperator`, such as ``conn_id``.
    :raises DefinitionError: for a wrong type or value; if another task of the DAG makes batches of the checkpoint.
    """
    check_runnable(pipeline, operator=f"drain {task_id!r}")
    if not isinstance(slots, int) or isinstance(slots, bool) or slots < 1:
        raise DefinitionError(f"drain {task_id!r}: slots must be 1 or more, not {slots!r}.")
    serial = {"max_active_tis_per_dag": 1, "max_active_tis_per_dagrun": 1, "map_index_template": LABEL}
    partial = operator.partial(task_id=task_id, pipeline=pipeline, **{**serial, **not_shown(operator_arguments)})
    mapped = partial.expand(slot=list(range(slots)))
    check_only_one(mapped, mapped.get_dag())
    return mapped
