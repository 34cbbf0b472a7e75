"""Entry point ``airflow.plugins``: the macros by which templates read a checkpoint, and the listener."""

from __future__ import annotations

from typing import Any

from airflow.plugins_manager import AirflowPlugin

from airflow_provider_microbatch.listeners.registration import offered
from airflow_provider_microbatch.plugins import forked_tasks


def latest_batch(checkpoint: str) -> dict[str, Any] | None:
    """Summary of the newest committed batch, as in ``{{ macros.microbatch.latest_batch("/lake/log")["rows_out"] }}``.

    :param checkpoint: address of the checkpoint, as in the pipeline.
    :return: the summary as in the XCom of ``MicroBatchOperator``; None if nothing was committed yet.
    """
    # Imported here: a plugin is loaded by every process of Airflow.
    from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
    from airflow_provider_microbatch.checkpoint.key import LIVE, BatchKey
    from airflow_provider_microbatch.execution.summary import summarize
    from airflow_provider_microbatch.stores.location import open_store

    opened = Checkpoint(open_store(checkpoint))
    newest = opened.commit_log.latest_id()
    return None if newest is None else summarize(opened, BatchKey(LIVE, newest)).to_dict()


class MicroBatchPlugin(AirflowPlugin):
    """Makes ``macros.microbatch`` known to templates, and the listener known to scheduler and API server."""

    name = "microbatch"
    macros = [latest_batch]  # noqa: RUF012
    listeners = offered()


forked_tasks.load()
