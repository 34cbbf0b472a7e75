"""The stage of a table into which changes are merged."""

from __future__ import annotations

from dataclasses import replace

from airflow_provider_microbatch.runtime.changes import DELETED
from airflow_provider_microbatch.runtime.job import Stage
from airflow_provider_microbatch.sinks.merge import Merge

WRITER = "airflow_provider_microbatch.runtime.changes:write"


def of_changes(stage: Stage, merge: Merge) -> Stage:
    """The stage of a table of rows as one of changes."""
    needed = list(dict.fromkeys((*merge.keys, *merge.sequence_by)))
    return replace(
        stage,
        writer=WRITER,
        arguments={**stage.arguments, "needed": needed, "delete_when": merge.delete_when},
        reserved_columns=(*stage.reserved_columns, DELETED, *merge.bounds),
    )
