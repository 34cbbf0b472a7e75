"""The common part of all ways to read a table, by numbers and by timestamps, opened for its checkpoint."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from airflow_provider_microbatch.checkpoint.entries import Offset
from airflow_provider_microbatch.connections import Connection
from airflow_provider_microbatch.exceptions import SourceChangedError, SourceError
from airflow_provider_microbatch.runtime.job import Read, Requirements
from airflow_provider_microbatch.sources import Figures, OpenSource, ReadLimit, SourceContext
from airflow_provider_microbatch.sources.jdbc import FAIL
from airflow_provider_microbatch.sources.jdbc.access import Access
from airflow_provider_microbatch.sources.jdbc.transactions import RECYCLED

if TYPE_CHECKING:
    from airflow_provider_microbatch.sources.jdbc import JdbcSource

log = logging.getLogger(__name__)

_READER = "airflow_provider_microbatch.runtime.jdbc:read"
LAG_SECONDS = 5.0
"""The longest time that a statement about a lag may take: it is asked between publish and commit."""

MOST_COUNTED = 1_000_000
"""The largest number of rows that a lag counts: it is counted for each batch, of a long first run again and again."""


class _Typed(Protocol):
    def inexact(self, *, texts: Sequence[str]) -> list[str]: ...


class OpenTable(OpenSource):
    """A table whose ranges are predicates. The offset at the end of a range records its number of rows: rows of a
    planned range may go, when they are deleted or changed, but none come."""

    inexact_types = "numeric"
    exact_types = "or give them a precision of at most 38 digits and a scale"

    def __init__(self, source: JdbcSource, context: SourceContext) -> None:
        self._source = source
        self._name = context.name
        self._set_offset = context.set_offset
        self._connect = context.connect

    @abstractmethod
    def _planned_rows(self, end: Offset | None) -> int:
        """Number of rows in the range that ends here when it was planned."""

    @abstractmethod
    def _there(self, start: Offset | None, end: Offset | None) -> int | str:
        """Number of rows of a range, which is not empty, that exist now; or the reason why that cannot be known: the
        table is another one, for example."""

    @abstractmethod
    def _between(self, start: Offset | None, end: Offset | None) -> int | str:
        """Number of rows that plans of now would have between two positions, which need not be the ends of one batch:
        with rows that came later, without those that data intervals have. Or the reason, as of :meth:`_there`."""

    @abstractmethod
    def _predicates(self, start: Offset | None, end: Offset | None) -> list[str]:
        """SQL conditions for the rows of a range, which is not empty: one for each partition."""

    @abstractmethod
    def _access(self, connection: Connection) -> Access:
        """How Spark reaches the table."""

    def read(self, start: Offset | None, end: Offset | None) -> Read:
        gone = self._gone(start, end)
        if gone and self._source.on_missing == FAIL:
            raise SourceChangedError(f"source {self._name!r}: {self._lost(gone, end)}")
        found = self._connect(self._source.conn_id)
        access = self._access(found)
        return Read(
            reader=_READER,
            arguments={
                "name": self._name,
                "url": access.url,
                "driver": access.driver,
                "user": found.login,
                "options": dict(access.options),
                "password_setting": f"spark.microbatch.password.{self._source.conn_id}",
                "table": access.table,
                "texts": list(self._source.texts),
                "predicates": [] if end is None or end == start else self._predicates(start, end),
                "told": {"left_out": gone},
            },
            requires=Requirements(packages=() if self._source.driver is None else (self._source.driver,)),
        )

    def verify(self, start: Offset | None, end: Offset | None, told: Mapping[str, Any] | None = None) -> None:
        """Check that no row was missing: rows only go, so rows that exist now existed while Spark read the range."""
        gone = self._gone(start, end)
        if gone <= _left_out(told):
            return
        lost = f"{self._lost(gone, end)} Some went while they were read"
        if self._source.on_missing == FAIL:
            raise SourceChangedError(f"source {self._name!r}: {lost}: run the batch again.")
        log.warning("source %s: %s.", self._name, lost)

    def not_replayable(self, start: Offset | None, end: Offset | None) -> str | None:
        if end is None or end == start:
            return None
        return self._lacks(self._there(start, end), end)

    def why_not_back(self, position: Offset | None, end: Offset | None) -> str | None:
        """See :meth:`OpenSource.why_not_back`. Plans take what is there then, more or less than there was."""
        try:
            self.has_new(position)
        except SourceError as error:
            return str(error)
        return None

    def left_out(
        self, start: Offset | None, end: Offset | None, *, told: Mapping[str, Any] | None = None
    ) -> str | None:
        gone = self._gone(start, end) if self._source.on_missing != FAIL else 0
        return self._lost(gone, end) if gone > _left_out(told) else None

    def describe(self, start: Offset | None, end: Offset | None) -> Figures:
        return Figures(rows=0 if end is None or end == start else self._planned_rows(end))

    def between_in_words(self, start: Offset | None, end: Offset | None) -> dict[str, int]:
        """Rows, counted in the table: what an offset records is the number of its own batch."""
        count = self._between(start, end)
        return {} if isinstance(count, str) else {"rows": count}

    def _most(self, limit: ReadLimit) -> int | None:
        """The largest number of rows of a batch."""
        return min((one for one in (self._source.max_rows, limit.rows) if one is not None), default=None)

    def _gone(self, start: Offset | None, end: Offset | None) -> int:
        """Number of rows of the range that existed when it was planned, and do not exist now.

        :raises SourceChangedError: if that cannot be known.
        """
        if end is None or end == start:
            return 0
        there = self._there(start, end)
        if isinstance(there, str):
            raise SourceChangedError(f"source {self._name!r}: {there}")
        return max(0, self._planned_rows(end) - there)

    def _told(
        self, there: int, end: Offset | None, *, is_rewritten: bool, anew: Callable[[], bool], later: int
    ) -> int | str:
        """Number of rows that exist, where transactions tell which; or the reason why those that are missing may exist
        under other transactions.

        :param is_rewritten: whether the table and its partitions have other files than when the range was planned. A
            partition that was added, and VACUUM FULL, which leaves rows their transactions, have it so too.
        :param anew: whether rows in the range may be planned ones under other transactions.
        :param later: number of transactions since.
        """
        rows, table = self._planned_rows(end), self._source.table
        what = f"{rows - there:,} of {rows:,} rows that were planned are gone from {table}, or only look so"
        end_of_it = (
            "Nothing takes the place of what was published, whatever on_missing is; a batch that is planned is taken "
            "back by `microbatch rewind`."
        )
        if there < rows and is_rewritten and (not there or anew()):
            return (
                f"{what}: the table, or a partition, was written anew since (ALTER TABLE that changes a type, "
                f"TRUNCATE, a restore), and its rows have other transactions. {end_of_it}"
            )
        if there < rows and later >= RECYCLED:
            return (
                f"{what}: {later:,} transactions have begun since, and the ids that rows have come again after "
                f"{2 * RECYCLED:,}. {end_of_it}"
            )
        return there

    def _lacks(self, there: int | str, end: Offset | None) -> str | None:
        """The reason why a batch cannot be read again, of the rows that are there of it; None if it can."""
        if isinstance(there, str):
            return there
        gone = self._planned_rows(end) - there if self._source.on_missing == FAIL else 0
        return self._lost(gone, end) if gone > 0 else None

    def _lost(self, gone: int, end: Offset | None) -> str:
        return (
            f"{gone:,} of {self._planned_rows(end):,} rows that were planned are gone from {self._source.table}. "
            "on_missing='skip' goes on without them, and the batch says what it lacks."
        )

    def _check_exact(self, table: _Typed) -> None:
        names = table.inexact(texts=self._source.texts)
        if names:
            raise SourceError(
                f"{self._source.table} has columns of {self.inexact_types} that Spark cannot carry exactly, and would "
                f"change or make null: {', '.join(names)}. Have them read as texts, texts={names!r}; "
                f"{self.exact_types}."
            )

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Add the source's name to errors of planning."""
        try:
            yield
        except SourceError as error:
            raise SourceError(f"source {self._name!r}: {error}") from error


def _left_out(told: Mapping[str, Any] | None) -> int:
    """Number of rows that a read left out because it was planned so."""
    return int((told or {}).get("left_out", 0))
