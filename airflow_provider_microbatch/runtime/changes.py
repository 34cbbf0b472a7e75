"""Writes a stage of changes, each of which says whether it deletes its key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_provider_microbatch.runtime.failure import BatchFailure
from airflow_provider_microbatch.runtime.write import write_marked

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

DELETED = "_deleted"
"""The column that tells whether a change deletes its key."""


def with_deleted(frame: DataFrame, delete_when: str | None) -> DataFrame:
    """The frame with the column :data:`DELETED`.

    :param delete_when: SQL condition of rows that delete their key; None if no row does.
    """
    from pyspark.sql import functions as F

    condition = F.lit(False) if delete_when is None else F.expr(delete_when).cast("boolean")
    return frame.withColumn(DELETED, F.coalesce(condition, F.lit(False)))


def write(frame: DataFrame, arguments: Mapping[str, Any]) -> DataFrame | list[str]:
    """Write the rows of a batch as files of changes, and report the columns.

    :param frame: the frame that the transform returned.
    :param arguments: those of :func:`~airflow_provider_microbatch.runtime.write.write_marked`, and ``needed`` (columns
        that the frame must have) and ``delete_when`` (as :func:`with_deleted` takes it).
    :return: the listing of the stage's files.
    :raises BatchFailure: if a column is missing.
    """
    lacks = [name for name in arguments["needed"] if name not in frame.columns]
    if lacks:
        raise BatchFailure(
            "result",
            f"the result lacks {', '.join(lacks)}, by which its changes are merged; its columns are: "
            f"{', '.join(frame.columns)}",
        )
    return write_marked(with_deleted(frame, arguments["delete_when"]), arguments)
