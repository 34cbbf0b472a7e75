"""Writes a stage of changes, each of which says whether it deletes its key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_microbatch.runtime.failure import BatchFailure
from airflow_provider_microbatch.runtime.quoting import quoted
from airflow_provider_microbatch.runtime.write import write_marked

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

DELETED = "_deleted"
"""The column that tells whether a change deletes its key."""

FORGOTTEN = "_microbatch_forgotten"
"""The column that tells whether a change was to be forgotten. No stage gets the column."""


@dataclass(frozen=True, kw_only=True)
class Changes:
    """How the rows of a stage change the rows of its table.

    :param order: columns that say which row a change is of, and which of the row's changes is newer; never null.
    :param delete_when: SQL condition of rows that delete their key; None if no row does.
    """

    order: tuple[str, ...]
    delete_when: str | None

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> Changes | None:
        """Those of a stage, by its ``needed`` and ``delete_when``; None if its rows are no changes.

        :param arguments: of its writer.
        """
        needed = arguments.get("needed") if "delete_when" in arguments else None
        return cls(order=tuple(needed), delete_when=arguments["delete_when"]) if needed else None

    def marked(self, frame: DataFrame, *, forgotten: Column | None) -> DataFrame:
        """The changes with :data:`DELETED`, and with :data:`FORGOTTEN` if any may have been.

        A change that is to be forgotten deletes its key, at its place in the order, and has nothing but key and place.
        Left out, it would leave what older changes of the key have made, which are in other batches: that of a person
        whose deletion is forgotten, for good. One without a key or a place is left out: no table takes it.

        :param forgotten: whether a change is to be forgotten, never null; None if there is no such change.
        """
        from pyspark.sql import functions as F

        condition = F.lit(False) if self.delete_when is None else F.expr(self.delete_when).cast("boolean")
        marked = frame.withColumn(DELETED, F.coalesce(condition, F.lit(False)))
        if forgotten is None:
            return marked
        marked = marked.withColumn(FORGOTTEN, forgotten)
        is_forgotten = F.col(FORGOTTEN)
        for has_value in self._have_values(marked):
            marked = marked.where(~is_forgotten | has_value)
        columns: list[Column] = []
        for name in marked.columns:
            column = F.col(quoted(name))
            if name == DELETED:
                column = (column | is_forgotten).alias(name)
            elif name not in (*self.order, FORGOTTEN):
                column = F.when(~is_forgotten, column).alias(name)
            columns.append(column)
        return marked.select(*columns)

    def _have_values(self, frame: DataFrame) -> Iterator[Column]:
        from pyspark.sql import functions as F

        for name, kind in frame.dtypes:
            if name in self.order:
                column = F.col(quoted(name))
                yield column.isNotNull() & ~F.isnan(column) if kind in ("float", "double") else column.isNotNull()


def write(frame: DataFrame, arguments: Mapping[str, Any]) -> DataFrame | list[str]:
    """Write the rows of a batch as files of changes, and report the columns.

    :param frame: the changes, as :meth:`Changes.marked` has marked them.
    :param arguments: those of :func:`~airflow_provider_microbatch.runtime.write.write_marked`, and ``needed`` (columns
        that the frame must have).
    :return: the listing of the stage's files.
    :raises BatchFailure: if a column is missing.
    """
    lacks = [name for name in arguments["needed"] if name not in frame.columns]
    if lacks:
        told = ", ".join(name for name in frame.columns if name != DELETED)
        raise BatchFailure(
            "result",
            f"the result lacks {', '.join(lacks)}, by which its changes are merged; its columns are: {told}",
        )
    return write_marked(frame, arguments)
