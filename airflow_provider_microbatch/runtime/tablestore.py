"""Reads channels of a tunnel of Tablestore, where Spark runs; the planner uses the same places and rows.

A place in a channel is ``STAMP@TOKEN``: the stamp of a row, and the token of a request that reads this row. Tokens are
Tablestore's, and lie where its answers begin; a request takes no limit, so a batch may end within an answer. For the
last row of an answer the place is ``STAMP@TOKEN@NEXT``, with the token of what follows: that is what the tunnel is
told.
"""

from __future__ import annotations

import base64
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

from airflow_provider_microbatch.runtime.channels import At, ChannelError, Page, may_lack
from airflow_provider_microbatch.runtime.plain_buffer import (
    DELETE_ALL_VERSIONS,
    DELETE_ONE_VERSION,
    Cell,
    Row,
    Stamp,
    Value,
    row_of,
)
from airflow_provider_microbatch.runtime.protobuf import Message
from airflow_provider_microbatch.runtime.tunnel_calls import FINISHED, GONE, Calls, Records, TablestoreError

T = TypeVar("T")

SCHEMA = (
    "operation string, primaryKey map<string,string>, "
    "columns array<struct<name:string,operation:string,type:string,value:string,version:bigint>>, "
    "channelId string, sequence string, recordTimestamp timestamp"
)

ANOTHER = (
    "Create another tunnel, and read it as a source of a name that was never used (`microbatch add-source`). It begins "
    "where its creation says: what lies behind that and was read comes again, and what lies before it and was not read "
    "is only in the table itself."
)
"""The way on where a tunnel gives nothing any more: no other tunnel has its places."""

_OPERATIONS = {1: "put", 2: "update", 3: "delete"}
_DELETES = {None: "put", DELETE_ONE_VERSION: "delete_version", DELETE_ALL_VERSIONS: "delete"}
_TOKEN = r"[A-Za-z0-9+/=_.-]{1,4096}"
_PLACE = re.compile(rf"(?P<stamp>\d{{1,10}}-\d{{1,19}}-\d{{1,10}})@(?P<token>{_TOKEN})(@(?P<next>{_TOKEN}))?", re.ASCII)
_ONE_TOKEN = re.compile(_TOKEN, re.ASCII)


@dataclass(frozen=True, kw_only=True)
class Place:
    """:param stamp: of the row.
    :param token: of a request that reads the row.
    :param next: the token of what follows the row, where an answer ended with it.
    """

    stamp: Stamp
    token: str
    next: str | None = None

    @classmethod
    def of(cls, text: str) -> Place:
        """:raises ValueError: if the text is no place."""
        found = _PLACE.fullmatch(text)
        if found is None:
            raise ValueError(f"{text!r:.100} is no place in a channel of a tunnel")
        epoch, timestamp, index = map(int, found["stamp"].split("-"))
        return cls(stamp=(epoch, timestamp, index), token=found["token"], next=found["next"])

    def __str__(self) -> str:
        text = f"{'-'.join(map(str, self.stamp))}@{self.token}"
        return text if self.next is None else f"{text}@{self.next}"


def is_token(text: str) -> bool:
    """Whether a text can be a token of Tablestore's."""
    return _ONE_TOKEN.fullmatch(text) is not None


def counts_none(token: str) -> bool:
    """Whether a token says that no record of its channel lies before it. Those of version 2 count the records."""
    try:
        known = Message(base64.b64decode(token, validate=True))
        counts = Message(known.data(2))
        return known.number(1) == 2 and counts.has(4) and counts.number(4) == 0
    except ValueError:
        return False


def rows_in(records: Records) -> list[tuple[Stamp, str, Row]]:
    """The rows of an answer, each with its stamp and its operation, in the order of the channel.

    :raises ValueError: if a record is not as it should be.
    """
    found = []
    for kind, data in records.records:
        row = row_of(data)
        if row.sequence is None:
            raise ValueError("a record of a stream has no place in it")
        if kind not in _OPERATIONS:
            raise ValueError(f"a record of a kind that is not known: {kind}")
        found.append((row.sequence, _OPERATIONS[kind], row))
    return found


@lru_cache(maxsize=8)
def _calls_of_the_process(
    endpoint: str, instance: str, timeout: float, secrets: tuple[tuple[str, str], ...]
) -> Calls:  # fmt: skip
    """The client, made once a process: a Spark worker reads many partitions over one connection."""
    return Calls({"endpoint": endpoint, "instance": instance, "timeout": timeout}, dict(secrets))


class TunnelChannels:
    """The channels of a tunnel.

    :param arguments: ``tunnel_id``, those of :class:`~.tunnel_calls.Calls`, and ``retention_ms``, how long the log is
        kept.
    """

    def __init__(self, arguments: Mapping[str, Any], secrets: Mapping[str, str]) -> None:
        self._tunnel: str = arguments["tunnel_id"]
        self._retention_ms: int = arguments["retention_ms"]
        self._calls = _calls_of_the_process(
            *(arguments[name] for name in ("endpoint", "instance", "timeout")), tuple(sorted(secrets.items()))
        )

    def pages(self, channel: str, at: At, *, most: Callable[[], int]) -> Iterator[Page]:
        """Read from the answer on that had the last row that was read: if that row still exists, the rows behind it
        exist too. Where it is gone, or none was read yet, the moment of the last look tells."""
        here = Place.of(at["after"]) if "after" in at else None
        token: str = at["origin"] if here is None else here.token
        checked = False
        if token == FINISHED:
            # The tunnel lists it, no batch has read it, and somebody has said that it was read.
            yield Page(seen=0, at_tip=True, ended=True, gap=True)
            return
        while True:
            asked_ms = _now_ms()
            answer = self._read(channel, token)
            rows, gap, last_gone = rows_in(answer), False, False
            at_tip, ended = not rows and not answer.more, answer.next is None
            if not checked:
                stamps = [stamp for stamp, _, _ in rows]
                rows = [one for one in rows if here is None or one[0] > here.stamp]
                is_there = here is not None and here.stamp in stamps
                checked = is_there or bool(rows) or at_tip or ended
                gap = checked and not is_there and may_lack(at, now_ms=asked_ms, retention_ms=self._retention_ms)
                last_gone = checked and not is_there and here is not None
            places = [
                Place(stamp=stamp, token=token, next=answer.next if number == len(rows) else None)
                for number, (stamp, _, _) in enumerate(rows, 1)
            ]
            left = [(str(place), _columns(channel, *row)) for place, row in zip(places, rows, strict=True)]
            # Without a page for it an answer without rows would be asked for again and again, without a pause. One that
            # had nothing but what was read is no page, since whoever gets a page without rows waits.
            while left or not answer.records or ended or gap:
                count = max(1, most())
                page, left = left[:count], left[count:]
                last_ms = rows[-1 - len(left)][0][1] // 1000 if rows else 0
                yield Page(
                    rows=page,
                    seen=asked_ms if at_tip else last_ms,
                    came=last_ms,
                    at_tip=at_tip,
                    ended=ended and not left,
                    gap=gap,
                    last_gone=last_gone,
                )
                gap = False
                if not left:
                    break
            if answer.next is None:
                return
            token = answer.next

    def is_past(self, place: str, other: str) -> bool:
        """Whether one row is behind another: stamps of a channel grow."""
        return Place.of(place).stamp > Place.of(other).stamp

    def batch(self, rows: Sequence[Sequence[Any]]) -> Any:
        """The rows in the columns of :data:`SCHEMA`."""
        import pyarrow as pa

        text = pa.string()
        cell = pa.struct([(name, text) for name in ("name", "operation", "type", "value")] + [("version", pa.int64())])
        kinds = {
            "operation": text,
            "primaryKey": pa.map_(text, text),
            "columns": pa.list_(cell),
            "channelId": text,
            "sequence": text,
            "recordTimestamp": pa.timestamp("us", tz="UTC"),
        }
        arrays = [pa.array(values, kind) for values, kind in zip(zip(*rows, strict=True), kinds.values(), strict=True)]
        return pa.RecordBatch.from_arrays(arrays, names=list(kinds))

    def _read(self, channel: str, token: str) -> Records:
        return self._asked(channel, lambda: self._calls.records(self._tunnel, channel, token))

    def _asked(self, channel: str, call: Callable[[], T]) -> T:
        try:
            return call()
        except TablestoreError as error:
            if error.code == GONE:
                raise ChannelError(
                    f"{channel}: the tunnel has expired: {error}. Rows went from the table's log before they were "
                    f"read. {ANOTHER}"
                ) from error
            raise


def _columns(channel: str, stamp: Stamp, operation: str, row: Row) -> tuple[Any, ...]:
    return (
        operation,
        [(cell.name, _text(cell.value)) for cell in row.key],
        [_described(cell) for cell in row.cells],
        channel,
        "{:010}-{:019}-{:010}".format(*stamp),  # so that texts are in the order of the log
        stamp[1],
    )


def _described(cell: Cell) -> dict[str, Any]:
    return {
        "name": cell.name,
        "operation": _DELETES[cell.deletes],
        "type": _type_of(cell.value),
        "value": _text(cell.value),
        "version": cell.version,
    }


def _type_of(value: Value) -> str | None:
    # A boolean is an integer too, in Python.
    kinds = ((bool, "boolean"), (int, "integer"), (float, "double"), (str, "string"), (bytes, "binary"))
    return next((name for kind, name in kinds if isinstance(value, kind)), None)


def _text(value: Value) -> str | None:
    """A value as a text that Spark casts back: bytes as base64."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return None if value is None else str(value)


def _now_ms() -> int:
    return round(time.time() * 1000)
