"""What a table of PostgreSQL beside its checkpoint does alike, whichever column its rows are planned by."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from airflow_provider_microbatch.checkpoint.entries import Offset
from airflow_provider_microbatch.exceptions import SourceChangedError, SourceError
from airflow_provider_microbatch.runtime.job import Read, Requirements
from airflow_provider_microbatch.sources import Figures, OpenSource, SourceContext
from airflow_provider_microbatch.sources.jdbc import FAIL
from airflow_provider_microbatch.sources.jdbc.table import quoted, tls

if TYPE_CHECKING:
    from airflow_provider_microbatch.sources.jdbc import JdbcSource

_READER = "airflow_provider_microbatch.runtime.jdbc:read"
MOST_COUNTED = 1_000_000
"""Lag is told with each batch: that of a big first walk through a table would be counted again and again."""


class _Typed(Protocol):
    def inexact(self, *, texts: Sequence[str]) -> list[str]: ...


class OpenTable(OpenSource):
    """Its ranges are predicates, and the offset in which one ends says how many rows it has: rows of it go, as they are
    deleted or changed, and none come."""

    def __init__(self, source: JdbcSource, context: SourceContext) -> None:
        self._source = source
        self._name = context.name
        self._connect = context.connect

    @abstractmethod
    def _planned_rows(self, end: Offset | None) -> int:
        """How many rows the range that ends here had when it was planned."""

    @abstractmethod
    def _there(self, start: Offset | None, end: Offset | None) -> int:
        """How many rows of a range, which is not empty, are there now.

        :raises SourceChangedError: if the table is another one.
        """

    @abstractmethod
    def _predicates(self, start: Offset | None, end: Offset | None) -> list[str]:
        """SQL that the rows of a range, which is not empty, are found by: those of each partition."""

    @abstractmethod
    def _made_again(self, end: Offset | None) -> str | None:
        """Why an offset is not one of the table that is there; None if it is, for all one knows."""

    def read(self, start: Offset | None, end: Offset | None) -> Read:
        gone = self._gone(start, end)
        if gone and self._source.on_missing == FAIL:
            raise SourceChangedError(f"source {self._name!r}: {self._lost(gone, end)}")
        found = self._connect(self._source.conn_id)
        return Read(
            reader=_READER,
            arguments={
                "name": self._name,
                "url": f"jdbc:postgresql://{found.host}:{found.port or 5432}/{found.schema or ''}",
                "user": found.login,
                "options": tls(found),
                "password_setting": f"spark.microbatch.password.{self._source.conn_id}",
                "table": quoted(self._source.table),
                "texts": list(self._source.texts),
                "predicates": [] if end is None or end == start else self._predicates(start, end),
                "told": {"left_out": gone},
            },
            requires=Requirements(packages=() if self._source.driver is None else (self._source.driver,)),
        )

    def verify(self, start: Offset | None, end: Offset | None, told: Mapping[str, Any] | None = None) -> None:
        """Rows only go, so those that are there now were there while Spark read the range."""
        gone = self._gone(start, end)
        if gone > _left_out(told):
            raise SourceChangedError(
                f"source {self._name!r}: {self._lost(gone, end)} Some went while they were read: run the batch again."
            )

    def not_replayable(self, start: Offset | None, end: Offset | None) -> str | None:
        if end is not None and end != start:
            other = self._made_again(end)
            if other is not None:
                return other
        gone = self._gone(start, end) if self._source.on_missing == FAIL else 0
        return self._lost(gone, end) if gone else None

    def left_out(
        self, start: Offset | None, end: Offset | None, *, told: Mapping[str, Any] | None = None
    ) -> str | None:
        gone = self._gone(start, end) if self._source.on_missing != FAIL else 0
        return self._lost(gone, end) if gone > _left_out(told) else None

    def describe(self, start: Offset | None, end: Offset | None) -> Figures:
        return Figures(rows=0 if end is None or end == start else self._planned_rows(end))

    def _gone(self, start: Offset | None, end: Offset | None) -> int:
        """How many rows of the range were there when it was planned, and are not now."""
        if end is None or end == start:
            return 0
        return max(0, self._planned_rows(end) - self._there(start, end))

    def _lost(self, gone: int, end: Offset | None) -> str:
        return (
            f"{gone:,} of {self._planned_rows(end):,} rows that were planned are gone from {self._source.table}. "
            "on_missing='skip' goes on without them, and the batch says what it lacks."
        )

    def _check_exact(self, table: _Typed) -> None:
        names = table.inexact(texts=self._source.texts)
        if names:
            raise SourceError(
                f"{self._source.table} has columns of numeric that Spark cannot carry exactly, and would cut or make "
                f"null: {', '.join(names)}. Have them read as texts, texts={names!r}; or give them a precision of at "
                "most 38 digits and a scale."
            )

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Errors of planning say which source it is."""
        try:
            yield
        except SourceChangedError:
            raise
        except SourceError as error:
            raise SourceError(f"source {self._name!r}: {error}") from error


def _left_out(told: Mapping[str, Any] | None) -> int:
    """How many rows a read went without that was planned so."""
    return int((told or {}).get("left_out", 0))
