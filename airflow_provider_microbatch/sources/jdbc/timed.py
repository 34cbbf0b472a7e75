"""A table that is read by a column of timestamps, opened for its checkpoint."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Generic, Protocol, TypeVar

from airflow_provider_microbatch.checkpoint.entries import Offset
from airflow_provider_microbatch.exceptions import SourceError
from airflow_provider_microbatch.sources import digest_of_range
from airflow_provider_microbatch.sources.jdbc.moment import Moment
from airflow_provider_microbatch.sources.jdbc.opened import OpenTable


class Times(Protocol):
    """The rows of a table at one moment."""

    def check(self) -> None:
        """:raises SourceError: if the column does not have timestamps that can be read by."""

    def inexact(self, *, texts: Sequence[str]) -> list[str]:
        """Columns that Spark cannot carry exactly."""

    def bounds(self, condition: str, parts: int) -> list[str]:
        """Times that divide the rows for which the condition holds into about ``parts`` parts; no outer bounds."""


T = TypeVar("T", bound=Times)


class OpenTimed(OpenTable, Generic[T]):
    """Offsets are :class:`~airflow_provider_microbatch.sources.jdbc.moment.Moment` as JSON."""

    @abstractmethod
    def _timed(self, *, seconds: float | None = None) -> AbstractContextManager[T]:
        """Open the table as it is at one moment.

        :param seconds: the longest time that a statement may take; None for no limit.
        """

    def check(self) -> None:
        with self._timed() as table:
            table.check()
            self._check_exact(table)

    def initial_offset(self) -> Offset | None:
        return Moment().text()

    def known_as(self, start: Offset | None, end: Offset | None) -> str | None:
        """Return a digest of the table, and of the rows as their place tells them."""
        if end is None or end == start:
            return digest_of_range(self._source.location(), self._source.timestamp, [])
        place = self._place(end)
        if place.made is None:
            return None
        parts = (self._source.timestamp, self._source.column, place.made.oid, place.rows, place.digest)
        return digest_of_range(self._source.location(), *parts)

    def _planned_rows(self, end: Offset | None) -> int:
        return self._place(end).rows

    def _lost(self, gone: int, end: Offset | None) -> str:
        return (
            f"{gone:,} of {self._place(end).rows:,} rows that were planned are gone from {self._source.table}, or were "
            f"changed since: a changed row comes again, by a later batch, if its {self._source.timestamp!r} was set. "
            "on_missing='skip' goes on without them, and the batch says what it lacks."
        )

    def _parted(self, table: T, whole: str, *, time: str) -> list[str]:
        """Conditions that together are one: each has the rows of some timestamps.

        :param time: the column as SQL has it.
        """
        bounds = table.bounds(whole, self._source.partitions) if self._source.partitions > 1 else []
        spans = zip([None, *bounds], [*bounds, None], strict=True)
        return [
            " AND ".join(
                [whole, *([f"{time} > '{first}'"] if first else []), *([f"{time} <= '{last}'"] if last else [])]
            )
            for first, last in spans
        ]

    def _place(self, offset: Offset | None) -> Moment:
        try:
            return Moment() if offset is None else Moment.of(offset)
        except ValueError as error:
            raise SourceError(f"source {self._name!r}: {error}") from error
