"""Decodes messages of PostgreSQL's plugin ``pgoutput``, as of protocol version 1: whole transactions, values as texts.

Format: https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)

OF_NO_ROWS = "ROYM"
"""Letters of messages that change no row: a form, an origin, a type, somebody's own message."""


class Unchanged:
    """In place of a large value that an update has left as it was, and that is not in the log."""


UNCHANGED: Final = Unchanged()

Value = str | None | Unchanged
Values = tuple[Value, ...]


@dataclass(frozen=True, kw_only=True)
class Begin:
    """A transaction begins.

    :param lsn: where its commit record lies: transactions come in the order of these.
    :param committed: the moment of the commit.
    :param transaction: its id.
    """

    lsn: int
    committed: datetime
    transaction: int


@dataclass(frozen=True, kw_only=True)
class Commit:
    """A transaction ends.

    :param end: the place behind its commit record.
    """

    end: int


@dataclass(frozen=True, kw_only=True)
class Column:
    """:param type: oid of its type.
    :param is_told: whether it is of the replica identity, so that a change of it tells what it was.
    """

    name: str
    type: int
    is_told: bool = True


@dataclass(frozen=True, kw_only=True)
class Relation:
    """The form of a table, sent before its first change and whenever the form has changed.

    :param id: the table's oid.
    """

    id: int
    schema: str
    name: str
    columns: tuple[Column, ...]

    def tells(self, names: Collection[str]) -> bool:
        """Whether these columns are of the replica identity."""
        return {column.name for column in self.columns if column.is_told}.issuperset(names)


@dataclass(frozen=True, kw_only=True)
class Insert:
    """:param relation: the table's oid."""

    relation: int
    new: Values


@dataclass(frozen=True, kw_only=True)
class Update:
    """:param relation: the table's oid.
    :param old: the row as it was: whole with ``REPLICA IDENTITY FULL``, else its key, with null in all other columns;
        None if the key has not changed.
    """

    relation: int
    old: Values | None
    new: Values


@dataclass(frozen=True, kw_only=True)
class Delete:
    """:param relation: the table's oid.
    :param old: the row as it was: whole with ``REPLICA IDENTITY FULL``, else its key, with null in all other columns.
    """

    relation: int
    old: Values


@dataclass(frozen=True, kw_only=True)
class Truncate:
    """:param relations: oids of the tables that were emptied."""

    relations: tuple[int, ...]


Change = Insert | Update | Delete | Truncate
Message = Begin | Commit | Relation | Change


def decode(data: bytes) -> Message | None:
    """The message; None for one that tells nothing of rows (an origin, a type, somebody's own message).

    :raises ValueError: if the bytes are no message of the protocol's version 1.
    """
    try:
        return _decoded(_Bytes(data))
    except (ValueError, OverflowError, IndexError, struct.error) as error:
        raise ValueError(f"{data[:40]!r} is no message of pgoutput: {error}") from error


def kind_of(data: bytes) -> str:
    """The letter that a message begins with."""
    return chr(data[0])


def relation_of(data: bytes) -> int:
    """The table's oid of an insert, update or delete, of which the first five bytes are enough."""
    (found,) = struct.unpack_from("!I", data, 1)
    return int(found)


def _decoded(data: _Bytes) -> Message | None:
    kind = data.text(1)
    if kind == "B":
        lsn, micros, transaction = data.numbers("!QqI")
        return Begin(lsn=lsn, committed=_EPOCH + timedelta(microseconds=micros), transaction=transaction)
    if kind == "C":
        _, _, end, _ = data.numbers("!BQQq")
        return Commit(end=end)
    if kind == "R":
        (id,) = data.numbers("!I")
        schema, name = data.name() or "pg_catalog", data.name()
        _, count = data.numbers("!BH")
        return Relation(id=id, schema=schema, name=name, columns=tuple(data.column() for _ in range(count)))
    if kind == "I":
        (relation,) = data.numbers("!I")
        data.expect("N")
        return Insert(relation=relation, new=data.values())
    if kind == "U":
        (relation,) = data.numbers("!I")
        old = None
        if data.expect("KON") != "N":
            old = data.values()
            data.expect("N")
        return Update(relation=relation, old=old, new=data.values())
    if kind == "D":
        (relation,) = data.numbers("!I")
        data.expect("KO")
        return Delete(relation=relation, old=data.values())
    if kind == "T":
        count, _ = data.numbers("!IB")
        return Truncate(relations=tuple(data.numbers(f"!{count}I")))
    if kind in OF_NO_ROWS:
        return None
    raise ValueError(f"{kind!r} begins none that was asked for")


class _Bytes:
    """Bytes that are read from the front."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def numbers(self, form: str) -> tuple[int, ...]:
        found = struct.unpack_from(form, self._data, self._at)
        self._at += struct.calcsize(form)
        return found

    def text(self, length: int) -> str:
        found = self._data[self._at : self._at + length]
        if len(found) < length:
            raise IndexError(f"it ends {length - len(found)} bytes too early")
        self._at += length
        return found.decode()

    def name(self) -> str:
        found = self.text(self._data.index(b"\0", self._at) - self._at)
        self._at += 1
        return found

    def expect(self, letters: str) -> str:
        found = self.text(1)
        if found not in letters:
            raise ValueError(f"it has {found!r} in the place of one of {letters!r}")
        return found

    def column(self) -> Column:
        (flags,) = self.numbers("!B")
        name = self.name()
        type, _ = self.numbers("!Ii")
        return Column(name=name, type=type, is_told=bool(flags & 1))

    def values(self) -> Values:
        (count,) = self.numbers("!H")
        return tuple(self._each(count))

    def _each(self, count: int) -> Iterator[Value]:
        for _ in range(count):
            kind = self.text(1)
            if kind == "t":
                (length,) = self.numbers("!I")
                yield self.text(length)
            elif kind in "nu":
                yield None if kind == "n" else UNCHANGED
            else:
                raise ValueError(f"{kind!r} begins no value that was asked for")
