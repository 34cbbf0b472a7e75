"""Offsets of a table that is read by a column of timestamps."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Self

from airflow_provider_microbatch.checkpoint.entries import Offset

_TIME = re.compile(
    r"\d{4,6}-\d\d-\d\d[ T]\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?(?:Z|[+-]\d\d(?::?\d\d(?::\d\d)?)?)?(?: BC)?", re.ASCII
)
_FIELDS = {"t", "k", "below", "open", "from", "rows", "sum", "of"}


@dataclass(frozen=True, kw_only=True)
class Running:
    """Transactions whose rows could not be seen yet when a batch was planned.

    :param first: the id of the first of them, or of a subtransaction, with its epoch.
    :param last: of the last.
    :param since: their rows are looked for from this timestamp on, as PostgreSQL writes it.
    """

    first: int
    last: int
    since: str


@dataclass(frozen=True, kw_only=True)
class Made:
    """Which table it is.

    :param name: ``schema.table``.
    :param oid: PostgreSQL's own of the table.
    :param file: the sum of its file numbers, and those of its partitions: another one once it is written anew.
    """

    name: str
    oid: int
    file: int


@dataclass(frozen=True, kw_only=True)
class Moment:
    """Where a batch ends. What was read up to here are the rows that are at or before ``time`` and ``key``, and were
    written by a transaction that had ended then: one below ``below`` that is not ``running``. A batch has what was read
    up to its end and not up to its start, from ``since`` on. So a row that is committed later, whatever its timestamp,
    gets into no batch that is planned.

    :param time: the latest timestamp that was read, as PostgreSQL writes it in UTC, to the microsecond; None before
        anything.
    :param key: the highest number at it; None if all of them are read.
    :param below: the first transaction id that was not given out, with its epoch; None if a person wrote the offset:
        all at or before it counts as read.
    :param running: those below it that ran, in order.
    :param since: the batch has nothing before it; None for no bound.
    :param rows: how many rows the batch has.
    :param digest: of its rows' timestamps, keys and transactions.
    :param made: whose rows they are.
    """

    time: str | None = None
    key: int | None = None
    below: int | None = None
    running: tuple[Running, ...] = ()
    since: str | None = None
    rows: int = 0
    digest: str | None = None
    made: Made | None = None

    @property
    def by_hand(self) -> bool:
        """Whether a person wrote it: ``{"t": "2026-11-24 18:00:00+00"}``, with ``k`` or without."""
        return self.time is not None and self.below is None

    def text(self) -> Offset:
        """As it stands in the logs."""
        if self.below is None:
            return json.dumps({"t": self.time} if self.key is None else {"t": self.time, "k": self.key})
        made = self.made
        return json.dumps(
            {
                "t": self.time,
                "k": self.key,
                "below": self.below,
                "open": [[one.first, one.last, one.since] for one in self.running],
                "from": self.since,
                "rows": self.rows,
                "sum": self.digest,
                "of": None if made is None else [made.name, made.oid, made.file],
            }
        )

    @classmethod
    def of(cls, offset: Offset) -> Self:
        """:raises ValueError: if the text is none. What it lets through can stand in a statement: a stranger may have
        written the logs."""
        try:
            values: Any = json.loads(offset)
            if not isinstance(values, dict) or values.keys() not in (_FIELDS, {"t"}, {"t", "k"}):
                raise TypeError("it has other fields than those of a moment; by hand, t and k")
            time = None if values["t"] is None and values.keys() == {"t"} else _time(values["t"])
            key = values.get("k")
            if key is not None:
                _number(key)
            if "below" not in values:
                return cls(time=time, key=key)
            name, oid, file = values["of"]
            if type(name) is not str or type(values["sum"]) is not str:
                raise TypeError("'of' names no table, or 'sum' is no text")
            return cls(
                time=time,
                key=key,
                below=_number(values["below"]),
                running=tuple(Running(first=_number(a), last=_number(b), since=_time(c)) for a, b, c in values["open"]),
                since=None if values["from"] is None else _time(values["from"]),
                rows=_number(values["rows"]),
                digest=values["sum"],
                made=Made(name=name, oid=_number(oid), file=_number(file)),
            )
        except (ValueError, TypeError) as error:
            raise ValueError(f"{offset:.200} is no place in a table that is read by time: {error}") from error


def _time(value: Any) -> str:
    if not isinstance(value, str) or not _TIME.fullmatch(value):
        raise TypeError(f"{value!r:.60} is no timestamp such as 2026-11-24 18:00:00.123456+00")
    return value


def _number(value: Any) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r:.60} is no whole number")
    return value
