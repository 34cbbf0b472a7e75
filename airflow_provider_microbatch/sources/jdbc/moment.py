"""Offsets of a table that is read by a column of timestamps."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Self

from airflow_provider_microbatch.checkpoint.entries import Offset
from airflow_provider_microbatch.sources.jdbc.cluster import UNKNOWN, Cluster

_TIME = re.compile(
    r"\d{4,6}-\d\d-\d\d[ T]\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?(?:Z|[+-]\d\d(?::?\d\d(?::\d\d)?)?)?(?: BC)?", re.ASCII
)
FIRST = "4714-11-24 00:00:00+00 BC"
"""The first moment that PostgreSQL has, but for ``-infinity``."""

_FIELDS = {"t", "k", "below", "open", "from", "rows", "sum", "of"}


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
class Made:
    """The identity of a table.

    :param name: ``schema.table``.
    :param oid: PostgreSQL's oid of the table.
    :param file: the sum of the file numbers of the table and its partitions: it changes when the table is rewritten.
    :param cluster: the table's database cluster.
    """

    name: str
    oid: int
    file: int
    cluster: Cluster = UNKNOWN


@dataclass(frozen=True, kw_only=True)
class Moment:
    """The end of a batch. The rows that were read up to here are those at or before ``time`` and ``key`` that were
    written by a transaction that had ended then: one below ``below`` that is not ``running``. A batch has the rows that
    were read up to its end and not up to its start, from ``since`` on. So a row that is committed later, whatever its
    timestamp, gets into no batch that is already planned.

    :param time: the latest timestamp that was read, as PostgreSQL writes it in UTC, to the microsecond; None before
        anything.
    :param key: the highest number with that timestamp; None if all rows with it are read.
    :param below: the first transaction id that was not assigned, with its epoch; None if a user wrote the offset: all
        rows at or before it count as read.
    :param running: the transactions below ``below`` that ran, in order.
    :param since: the batch has no rows before this timestamp; None for no bound.
    :param rows: number of rows in the batch.
    :param digest: digest of the rows' timestamps, keys and transactions.
    :param made: the table.
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
        """Whether a user wrote the offset: ``{"t": "2026-11-24 18:00:00+00"}``, with ``k`` or without."""
        return self.time is not None and self.below is None

    def text(self) -> Offset:
        """Return the text that the logs store."""
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
                "of": None if made is None else [made.name, made.oid, made.file, *made.cluster.values()],
            }
        )

    @classmethod
    def of(cls, offset: Offset) -> Self:
        """:raises ValueError: if the text is not a moment. Accepted values are safe in an SQL statement, since a
        stranger may have written the logs.
        """
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
            name, oid, file, *cluster = values["of"]
            if type(name) is not str or type(values["sum"]) is not str:
                raise TypeError("'of' names no table, or 'sum' is no text")
            return cls(
                time=time,
                key=key,
                below=_number(values["below"]),
                running=tuple(_running(*one) for one in values["open"]),
                since=None if values["from"] is None else _time(values["from"]),
                rows=_number(values["rows"]),
                digest=values["sum"],
                made=Made(name=name, oid=_number(oid), file=_number(file), cluster=Cluster.of(cluster)),
            )
        except (ValueError, TypeError, RecursionError) as error:
            raise ValueError(f"{offset:.200} is no place in a table that is read by time: {error}") from error


def _time(value: Any) -> str:
    if not isinstance(value, str) or not _TIME.fullmatch(value):
        raise TypeError(f"{value!r:.60} is no timestamp such as 2026-11-24 18:00:00.123456+00")
    return value


def _running(first: Any, last: Any, since: Any) -> Running:
    if _number(first) > _number(last):
        raise ValueError(f"transactions from {first} to {last} are none")
    return Running(first=first, last=last, since=_time(since))


def _number(value: Any) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r:.60} is no whole number")
    return value
