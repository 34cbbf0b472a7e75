"""Rows in PlainBuffer, the format in which Tablestore sends them. Uses the standard library alone.

The format: https://www.alibabacloud.com/help/en/tablestore/developer-reference/plainbuffer
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

Value: TypeAlias = int | float | bool | str | bytes | None
Stamp: TypeAlias = tuple[int, int, int]
"""The place of a row in the log of its channel: epoch, microseconds since the epoch, and index among rows of one
microsecond. Places grow."""

HEADER = 0x75
ROW_KEY, ROW_DATA, CELL, NAME, VALUE, KIND, TIMESTAMP, DELETE_MARKER, ROW_CHECK, CELL_CHECK = range(1, 11)
EXTENSION, SEQUENCE, EPOCH, SEQUENCE_TIMESTAMP, ROW_INDEX = range(11, 16)
INTEGER, DOUBLE, BOOLEAN, STRING, NULL, BLOB = 0, 1, 2, 3, 6, 7
DELETE_ALL_VERSIONS, DELETE_ONE_VERSION = 1, 3


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A column of a row.

    :param value: None where nothing was put.
    :param deletes: :data:`DELETE_ALL_VERSIONS` or :data:`DELETE_ONE_VERSION`; None if the cell was put.
    :param version: milliseconds since the epoch; None where it does not matter.
    """

    name: str
    value: Value
    deletes: int | None = None
    version: int | None = None


@dataclass(frozen=True, kw_only=True)
class Row:
    """:param sequence: None for a row that is read from the table and not from its log."""

    key: Sequence[Cell]
    cells: Sequence[Cell]
    sequence: Stamp | None


def row_of(data: bytes) -> Row:
    """The one row of a record.

    :raises ValueError: if the bytes are not one row, naming what is wrong.
    """
    try:
        return _Reader(data).row()
    except (struct.error, IndexError) as error:
        raise ValueError("a row in PlainBuffer is cut off") from error


class _Reader:
    """Checksums, one byte each, are passed over, as the vendor's clients in Go do: a body that was cut off has no end,
    and what travels is protected by TLS."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._place = 0

    def row(self) -> Row:
        if self._number() != HEADER:
            raise ValueError("no row in PlainBuffer: it has another header")
        self._expect(ROW_KEY)
        key = self._cells()
        cells = self._cells() if self._takes(ROW_DATA) else []
        self._takes(DELETE_MARKER)
        sequence = self._extension() if self._takes(EXTENSION) else None
        self._expect(ROW_CHECK)
        self._bytes(1)
        if self._place != len(self._data):
            raise ValueError("a record has more than one row in PlainBuffer")
        return Row(key=key, cells=cells, sequence=sequence)

    def _cells(self) -> list[Cell]:
        found = []
        while self._takes(CELL):
            self._expect(NAME)
            name = self._bytes(self._number()).decode()
            value = self._value() if self._takes(VALUE) else None
            deletes = self._bytes(1)[0] if self._takes(KIND) else None
            if deletes not in (None, DELETE_ALL_VERSIONS, DELETE_ONE_VERSION):
                raise ValueError(f"a column is changed in a way that is not known: {deletes}")
            version = self._long() if self._takes(TIMESTAMP) else None
            self._expect(CELL_CHECK)
            self._bytes(1)
            found.append(Cell(name=name, value=value, deletes=deletes, version=version))
        return found

    def _value(self) -> Value:
        size = self._number()
        end = self._place + size
        kind = self._bytes(1)[0]
        value: Value
        if kind == INTEGER:
            value = self._long()
        elif kind == DOUBLE:
            (value,) = struct.unpack("<d", self._bytes(8))
        elif kind == BOOLEAN:
            value = self._bytes(1) != b"\0"
        elif kind == STRING:
            value = self._bytes(self._number()).decode()
        elif kind == BLOB:
            value = self._bytes(self._number())
        elif kind == NULL:
            value = None
        else:
            raise ValueError(f"a value of a type that is not known: {kind}")
        if self._place != end:
            raise ValueError("a value in PlainBuffer has another size than it says")
        return value

    def _extension(self) -> Stamp | None:
        """The place of the row; what else there is to a row is passed over."""
        self._number()
        found = None
        while self._data[self._place] != ROW_CHECK:
            tag = self._bytes(1)[0]
            size = self._number()
            if tag != SEQUENCE:
                self._bytes(size)
                continue
            self._expect(EPOCH)
            epoch = self._number()
            self._expect(SEQUENCE_TIMESTAMP)
            timestamp = self._long()
            self._expect(ROW_INDEX)
            found = (epoch, timestamp, self._number())
        return found

    def _takes(self, tag: int) -> bool:
        is_next = self._data[self._place] == tag
        self._place += is_next
        return is_next

    def _expect(self, tag: int) -> None:
        if not self._takes(tag):
            raise ValueError(f"a row in PlainBuffer has {self._data[self._place]} where {tag} belongs")

    def _bytes(self, size: int) -> bytes:
        found = self._data[self._place : self._place + size]
        if len(found) != size:
            raise IndexError
        self._place += size
        return found

    def _number(self) -> int:
        return int.from_bytes(self._bytes(4), "little")

    def _long(self) -> int:
        return int.from_bytes(self._bytes(8), "little", signed=True)
