"""A table of PostgreSQL beside its checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow_provider_microbatch.checkpoint.entries import Offset
from airflow_provider_microbatch.exceptions import SourceChangedError, SourceError
from airflow_provider_microbatch.runtime.job import Read, Requirements
from airflow_provider_microbatch.sources import (
    UNLIMITED,
    Figures,
    OpenSource,
    ReadLimit,
    SourceContext,
    digest_of_range,
)
from airflow_provider_microbatch.sources.jdbc import FAIL
from airflow_provider_microbatch.sources.jdbc.offset import Gap, Place, divided
from airflow_provider_microbatch.sources.jdbc.table import Snapshot, quoted, quoted_column, snapshot, tls

if TYPE_CHECKING:
    from airflow_provider_microbatch.sources.jdbc import JdbcSource

_READER = "airflow_provider_microbatch.runtime.jdbc:read"
MOST_GAPS = 5000
"""More would make entries of the offset log large, and tell that the column is not dense."""

_HIGHEST = 2**63 - 2


class OpenJdbcSource(OpenSource):
    """Offsets are :class:`~airflow_provider_microbatch.sources.jdbc.offset.Place` as JSON."""

    def __init__(self, source: JdbcSource, context: SourceContext) -> None:
        self._source = source
        self._name = context.name
        self._connect = context.connect

    def check(self) -> None:
        with self._snapshot() as table:
            table.check()

    def initial_offset(self) -> Offset | None:
        return Place(number=self._source.first - 1).text()

    def has_new(self, position: Offset | None) -> bool:
        place = self._place(position)
        with self._snapshot() as table:
            self._check_goes_on(table, place)
            return table.any_after(place.number) or bool(table.filled([(gap.first, gap.last) for gap in place.gaps]))

    def latest_offset(self, start: Offset | None, limit: ReadLimit = UNLIMITED) -> Offset | None:
        begin = self._place(start)
        most = min((one for one in (self._source.max_rows, limit.rows) if one is not None), default=None)
        with self._snapshot() as table:
            self._check_goes_on(table, begin)
            end = self._planned(table, begin, most)
        if end is None:
            return start
        if len(end.gaps) > MOST_GAPS:
            raise SourceError(
                f"source {self._name!r}: {len(end.gaps)} gaps are waited for in {self._source.column!r} of "
                f"{self._source.table}, more than {MOST_GAPS}. Its numbers must be those of a sequence, without steps; "
                f"if many transactions are rolled back, set late_seconds below {self._source.late_seconds}."
            )
        return end.text()

    def known_as(self, start: Offset | None, end: Offset | None) -> str | None:
        """The table, and the numbers."""
        spans = [] if end is None else self._place(end).spans(self._place(start).number)
        return digest_of_range(self._source.location(), self._source.column, spans)

    def read(self, start: Offset | None, end: Offset | None) -> Read:
        begin = self._place(start)
        spans = [] if end is None or end == start else self._place(end).spans(begin.number)
        gone = self._gone(start, end)
        if gone and self._source.on_missing == FAIL:
            raise SourceChangedError(f"source {self._name!r}: {self._lost(gone, end)}")
        found = self._connect(self._source.conn_id)
        column = quoted_column(self._source.column)
        return Read(
            reader=_READER,
            arguments={
                "name": self._name,
                "url": f"jdbc:postgresql://{found.host}:{found.port or 5432}/{found.schema or ''}",
                "user": found.login,
                "options": tls(found),
                "password_setting": f"spark.microbatch.password.{self._source.conn_id}",
                "table": quoted(self._source.table),
                "predicates": [
                    " OR ".join(f"{column} BETWEEN {first} AND {last}" for first, last in part)
                    for part in divided(spans, self._source.partitions)
                ],
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
        gone = self._gone(start, end) if self._source.on_missing == FAIL else 0
        return self._lost(gone, end) if gone else None

    def left_out(
        self, start: Offset | None, end: Offset | None, *, told: Mapping[str, Any] | None = None
    ) -> str | None:
        gone = self._gone(start, end) if self._source.on_missing != FAIL else 0
        return self._lost(gone, end) if gone > _left_out(told) else None

    def check_offset(self, offset: Offset) -> None:
        place = self._place(offset)
        with self._snapshot() as table:
            if place.number > table.last(self._source.first - 1, None):
                raise SourceError(f"source {self._name!r}: {offset} lies behind the last row of {self._source.table}.")

    def is_after(self, offset: Offset | None, other: Offset | None) -> bool | None:
        one, two = self._place(offset), self._place(other)
        return None if one.number == two.number and offset != other else one.number > two.number

    def lag(self, position: Offset | None) -> Figures:
        place = self._place(position)
        spans = [(gap.first, gap.last) for gap in place.gaps]
        with self._snapshot() as table:
            self._check_goes_on(table, place)
            return Figures(rows=table.count([*spans, (place.number + 1, _HIGHEST)]))

    def describe(self, start: Offset | None, end: Offset | None) -> Figures:
        return Figures(rows=0 if end is None or end == start else self._place(end).rows)

    def _planned(self, table: Snapshot, begin: Place, most: int | None) -> Place | None:
        """Where the next range ends; None if there is nothing."""
        now_ms, xmin, xmax = table.moment()
        filled = table.filled([(gap.first, gap.last) for gap in begin.gaps])
        number = table.last(begin.number, most)
        if not filled and number == begin.number:
            return None
        gaps: list[Gap] = []
        late: list[tuple[int, int]] = []
        for gap in begin.gaps:
            if (gap.first, gap.last) not in filled:
                left = [gap]
            else:
                left = [replace(gap, first=one, last=other) for one, other in table.missing(gap.first, gap.last)]
                late += _between(gap.first, gap.last, left)
            # Whoever took one of the numbers has ended, and nobody else will have it.
            over = gap.xmax <= xmin and now_ms - gap.seen_ms >= 1000 * self._source.late_seconds
            gaps += [] if over else left
        if number > begin.number:
            missing = table.missing(begin.number + 1, number)
            gaps += [Gap(first=one, last=other, seen_ms=now_ms, xmax=xmax) for one, other in missing]
        end = Place(number=number, gaps=tuple(gaps), late=tuple(late))
        return replace(end, rows=table.count(end.spans(begin.number)))

    def _check_goes_on(self, table: Snapshot, place: Place) -> None:
        """A table that was made again, or emptied with its sequence, has other rows under the same numbers."""
        highest = table.highest(self._source.first)
        if highest is None or highest >= place.number:
            return
        given = table.given()
        if given is None or given < place.number:
            raise SourceError(
                f"{self._source.table} begins again, or has lost its newest rows: its highest {self._source.column!r} "
                f"is {highest}, and was read up to {place.number}. What is there now cannot be told from what was "
                "read. If it was made again, begin it again: `microbatch set-offset`, or a source of another name by "
                "`microbatch add-source`."
            )

    def _gone(self, start: Offset | None, end: Offset | None) -> int:
        """How many rows of the range were there when it was planned, and are not now."""
        if end is None or end == start:
            return 0
        place = self._place(end)
        with self._snapshot() as table:
            return max(0, place.rows - table.count(place.spans(self._place(start).number)))

    def _lost(self, gone: int, end: Offset | None) -> str:
        return (
            f"{gone:,} of {self._place(end).rows:,} rows that were planned are gone from {self._source.table}. "
            "on_missing='skip' goes on without them, and the batch says what it lacks."
        )

    def _place(self, offset: Offset | None) -> Place:
        try:
            return Place.of(self.initial_offset() or "" if offset is None else offset)
        except ValueError as error:
            raise SourceError(f"source {self._name!r}: {error}") from error

    @contextmanager
    def _snapshot(self) -> Iterator[Snapshot]:
        try:
            with snapshot(
                self._connect(self._source.conn_id), table=self._source.table, column=self._source.column
            ) as table:
                yield table
        except SourceError as error:
            raise SourceError(f"source {self._name!r}: {error}") from error


def _left_out(told: Mapping[str, Any] | None) -> int:
    """How many rows a read went without that was planned so."""
    return int((told or {}).get("left_out", 0))


def _between(first: int, last: int, left: list[Gap]) -> list[tuple[int, int]]:
    """What of a span is in none of the gaps that are left of it."""
    return Place(number=last, gaps=tuple(left)).spans(first - 1)
