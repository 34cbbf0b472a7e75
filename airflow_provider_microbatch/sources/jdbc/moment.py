"""Offsets of a table that is read by a column of timestamps."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Self

from airflow_provider_microbatch.checkpoint.entries import Offset
from airflow_provider_microbatch.sources.jdbc.identity import Identity, told_behind
from airflow_provider_microbatch.sources.pieces import Piece

_TIME = re.compile(
    r"\d{4,6}-\d\d-\d\d[ T]\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?(?:Z|[+-]\d\d(?::?\d\d(?::\d\d)?)?)?(?: BC)?", re.ASCII
)
FIRST = "4714-11-24 00:00:00+00 BC"
"""The first moment that PostgreSQL has, but for ``-infinity``."""

_FIELDS = {"t", "k", "below", "open", "from", "rows", "sum", "of"}
_OF_INTERVAL = {"in", "not"}
_BEHIND = "behind"
_AND = ", "
_EPOCH = datetime(1970, 1, 1)
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, kw_only=True)
class Running:
    """Transactions whose rows were not visible yet when a batch was planned.

    :param first: the id of the first transaction or subtransaction, with its epoch.
    :param last: the id of the last one.
    :param since: the timestamp from which their rows are looked for, as PostgreSQL writes it.
    """

    first: int
    last: int
    since: str


@dataclass(frozen=True, kw_only=True)
class Made(Identity):
    """:param file: the sum of the file numbers of the table and its partitions: it changes when the table is rewritten.
    The rest as :class:`Identity` has it.
    """

    file: int

    @property
    def time(self) -> str:
        """The column of timestamps; empty where an older version wrote the offset."""
        return (self.by or "").partition(_AND)[0]

    @property
    def key(self) -> str | None:
        """The column that orders rows of one time; None where there is none, or where an older version wrote the
        offset."""
        return (self.by or "").partition(_AND)[2] or None

    @property
    def key_number(self) -> int | None:
        """The database's number of that column; None where it is not known."""
        return None if self.numbers is None or self.key is None else self.numbers[-1]

    def is_by_other_time(self, now: Made) -> bool:
        """Whether the table is read by another column of timestamps now, as far as is known."""
        return bool(self.time and now.time and self.time != now.time) or self.has_others(now, among=1)


def columns_of(time: str, key: str | None) -> str:
    """What a table is read by, as :attr:`Identity.by` has it."""
    return time if key is None else f"{time}{_AND}{key}"


@dataclass(frozen=True, kw_only=True)
class Moment:
    """The end of a batch. The rows that were read up to here are those at or before ``time`` and ``key`` that were
    written by a transaction that had ended then: one below ``below`` that is not ``running``. A batch has the rows that
    were read up to its end and not up to its start, from ``since`` on. So a row that is committed later, whatever its
    timestamp, gets into no batch that is already planned.

    :param time: the latest timestamp that was read, as PostgreSQL writes it in UTC, to the microsecond; None before
        anything. Of the batch of a data interval it only tells how far into its times there were rows.
    :param key: the highest number with that timestamp; None if all rows with it are read.
    :param below: the first transaction id of which no row was visible, with its epoch; None if a user wrote the offset:
        all rows at or before it count as read.
    :param running: the transactions that ran, in order: below ``below``, and of a live batch those from there on, too.
    :param since: the batch has no rows before this timestamp; None for no bound.
    :param rows: number of rows in the batch.
    :param digest: digest of the rows' timestamps, keys and transactions.
    :param made: the table.
    :param behind: number of batches of data intervals that were planned before, whose rows this one does not have.
    :param spans: of the batch of a data interval, which has the rows of these times that were visible then:
        microseconds since 1970 by the column's own clock, each span without its end.
    :param had: of such a batch, the rows of these times that other lanes had taken, which it does not have.
    """

    time: str | None = None
    key: int | None = None
    below: int | None = None
    running: tuple[Running, ...] = ()
    since: str | None = None
    rows: int = 0
    digest: str | None = None
    made: Made | None = None
    behind: int = 0
    spans: tuple[Piece, ...] = ()
    had: tuple[Had, ...] = ()

    @property
    def by_hand(self) -> bool:
        """Whether a user wrote the offset: ``{"t": "2026-11-24 18:00:00+00"}``, with ``k`` or without."""
        return self.time is not None and self.below is None

    def seen_now(self, since: str | None, *, behind: int) -> Moment:
        """The same place, for the rows of now: of a data interval, its batch.

        :param since: see :attr:`since`.
        :param behind: see :attr:`behind`.
        """
        return self if self.spans else Moment(time=self.time, key=self.key, since=since, behind=behind)

    def key_column(self, present: str | None) -> str | None:
        """The column that orders rows of one time. The batch of a data interval has keys of the column that it was
        planned by: of another column they tell nothing, and its rows would be others than were planned.

        :param present: the column of now, which the keys are of as far as is known.
        """
        made = self.made if self.spans else None
        return present if made is None or made.by is None else made.key

    @property
    def has_keys(self) -> bool:
        """Whether keys tell which rows the batch of a data interval has."""
        return any(one.end.key is not None for one in self.had)

    def has_rows_of(self, now: Made) -> bool:
        """Whether the current table has rows that were read up to here, as far as is known."""
        return self.made is not None and self.made.is_same_table(now)

    def text(self) -> Offset:
        """Return the text that the logs store."""
        return json.dumps(self.values())

    def values(self) -> dict[str, Any]:
        """The values as JSON has them."""
        if self.below is None:
            return {"t": self.time} if self.key is None else {"t": self.time, "k": self.key}
        made = self.made
        values: dict[str, Any] = {
            "t": self.time,
            "k": self.key,
            "below": self.below,
            "open": [[one.first, one.last, one.since] for one in self.running],
            "from": self.since,
            "rows": self.rows,
            "sum": self.digest,
            "of": None if made is None else [made.name, made.oid, made.file, *made.values_behind()],
        }
        if self.behind:
            values[_BEHIND] = self.behind
        if self.spans:
            had = [[one.after.values(), one.end.values()] for one in self.had]
            values |= {"in": [list(span) for span in self.spans], "not": had}
        return values

    @classmethod
    def of(cls, offset: Offset) -> Self:
        """:raises ValueError: if the text is not a moment. Accepted values are safe in an SQL statement, since a
        stranger may have written the logs.
        """
        try:
            return cls.of_values(json.loads(offset))
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            raise ValueError(f"{offset:.200} is no place in a table that is read by time: {error}") from error

    @classmethod
    def of_values(cls, values: Any) -> Self:
        """:raises ValueError: if the values are not those of :meth:`values`.
        :raises TypeError: likewise.
        :raises OverflowError: likewise.
        """
        if isinstance(values, dict) and "n" in values:
            raise TypeError(
                "it is of a table that was read by numbers, which tell nothing of its timestamps: leave timestamp= out "
                "as it was, or have the source begin anew under another name"
            )
        whole = (_FIELDS, _FIELDS | {_BEHIND}, _FIELDS | _OF_INTERVAL)
        if not isinstance(values, dict) or values.keys() not in (*whole, {"t"}, {"t", "k"}):
            raise TypeError("it has other fields than those of a moment; by hand, t and k")
        is_before_all = values["t"] is None and (values.keys() == {"t"} or "in" in values)
        time = None if is_before_all else _time(values["t"])
        key = values.get("k")
        if key is not None:
            _number(key)
        if "below" not in values:
            return cls(time=time, key=key)
        if type(values["sum"]) is not str:
            raise TypeError("'sum' is no text")
        spans = tuple(_span(*one) for one in values.get("in", ()))
        had = (Had(after=cls.of_values(after), end=cls.of_values(end)) for after, end in values.get("not", ()))
        return cls(
            time=time,
            key=key,
            below=_number(values["below"]),
            running=tuple(_running(*one) for one in values["open"]),
            since=None if values["from"] is None else _time(values["from"]),
            rows=_number(values["rows"]),
            digest=values["sum"],
            behind=_number(values.get(_BEHIND, 0)),
            made=None if values["of"] is None else _made(json.dumps(values["of"])),
            spans=spans,
            had=tuple(one.within(spans) for one in had),
        )


@dataclass(frozen=True, kw_only=True)
class Had:
    """Rows that a lane has taken: those behind ``after`` and up to ``end``, or of its spans, that were visible then.

    :param after: where the lane began; a moment before anything, or one that a user wrote.
    :param end: up to where it had read, or the batch of its data interval.
    """

    after: Moment
    end: Moment

    @property
    def since(self) -> str | None:
        """The time of a position by hand with a key, None for any other ``after``: of the rows of that very time no
        other lane takes one. A batch of the lane has those that are committed late, whatever their key; and the key
        tells nothing once the table is read by another column."""
        return self.after.time if self.after.by_hand and self.after.key is not None else None

    def within(self, spans: Sequence[Piece]) -> Had:
        """What of it lies in these times. A key tells of rows of its very time alone: without it the column may go."""
        at = micros(self.end.time)
        is_told = at is None or any(first <= at < last for first, last in spans)
        return self if is_told else replace(self, end=replace(self.end, key=None))


def micros(time: str | None) -> int | None:
    """Microseconds since 1970 of a time that a database has written; None where that is not known, such as before the
    year 1."""
    try:
        found = datetime.fromisoformat(time or "")
    except ValueError:
        return None
    return micros_of(found if found.tzinfo is None else found.astimezone(UTC).replace(tzinfo=None))


def micros_of(time: datetime) -> int:
    """Microseconds since 1970 of a time without a zone."""
    return (time - _EPOCH) // _MICROSECOND


def written(micros: int) -> str:
    """The time so many microseconds since 1970, without a zone."""
    return (_EPOCH + timedelta(microseconds=micros)).isoformat(sep=" ", timespec="microseconds")


def may_have(interval: Moment, first: str | None, last: str | None) -> bool:
    """Whether the batch of a data interval may have rows of times from ``first`` to ``last``; None for no bound."""
    if not interval.spans:
        return False
    begin, end = micros(first), micros(last)
    return (begin is None or begin < interval.spans[-1][1]) and (end is None or interval.spans[0][0] <= end)


def _time(value: Any) -> str:
    if not isinstance(value, str) or not _TIME.fullmatch(value):
        raise TypeError(f"{value!r:.60} is no timestamp such as 2026-11-24 18:00:00.123456+00")
    return value


def _running(first: Any, last: Any, since: Any) -> Running:
    if _number(first) > _number(last):
        raise ValueError(f"transactions from {first} to {last} are none")
    return Running(first=first, last=last, since=_time(since))


@lru_cache(maxsize=64)  # thousands of batches are of one table, and have this from one text
def _made(text: str) -> Made:
    name, oid, file, *cluster = json.loads(text)
    if type(name) is not str:
        raise TypeError("'of' names no table")
    return Made(name=name, oid=_number(oid), file=_number(file), **told_behind(cluster))


def _span(start: Any, end: Any) -> Piece:
    written(_number(start)), written(_number(end))  # times that there are
    if start >= end:
        raise ValueError(f"{start} to {end} is no span of time")
    return start, end


def _number(value: Any) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r:.60} is no whole number")
    return value
