"""Messages of Protocol Buffers, as far as Tablestore's tunnel needs them: numbers, texts and messages, by the numbers
of their fields. Uses the standard library alone, since an executor need not have more.

The format: https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeAlias

Value: TypeAlias = int | str | bytes | None

_NUMBER, _EIGHT_BYTES, _BYTES, _FOUR_BYTES = 0, 1, 2, 5  # kinds of fields
_SIZES = {_EIGHT_BYTES: 8, _FOUR_BYTES: 4}


class Message:
    """A message that was received. A field that it lacks has the default; a field that is not asked for does not
    matter.

    :param data: the bytes of the message.
    :raises ValueError: if they are none.
    """

    def __init__(self, data: bytes) -> None:
        self._fields: dict[int, list[int | bytes]] = {}
        for number, value in _fields(data):
            self._fields.setdefault(number, []).append(value)

    def has(self, number: int) -> bool:
        """Whether the message has the field, and no empty text in it."""
        return self._fields.get(number, [b""])[-1] != b""

    def number(self, number: int, default: int = 0) -> int:
        """A field of type ``int32``, ``int64``, ``bool`` or an enumeration."""
        found = self._fields.get(number, [default])[-1]
        if not isinstance(found, int):
            raise ValueError(f"field {number} is no number")
        return found

    def data(self, number: int) -> bytes:
        """A field of type ``bytes``, or a message."""
        found = self._fields.get(number, [b""])[-1]
        if not isinstance(found, bytes):
            raise ValueError(f"field {number} has no bytes")
        return found

    def text(self, number: int) -> str:
        """A field of type ``string``."""
        return self.data(number).decode()

    def messages(self, number: int) -> list[Message]:
        """A field that is there any number of times."""
        return [Message(one) for one in self._fields.get(number, []) if isinstance(one, bytes)]


def encoded(fields: Mapping[int, Value | list[bytes]]) -> bytes:
    """The bytes of a message.

    :param fields: values by the numbers of their fields; None for a field that is left out, a list for one that is
        there several times. A message within it is bytes.
    """
    parts = []
    for number, value in fields.items():
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, int):
                parts += [_varint(number << 3 | _NUMBER), _varint(one & (1 << 64) - 1)]
            elif one is not None:
                data = one.encode() if isinstance(one, str) else one
                parts += [_varint(number << 3 | _BYTES), _varint(len(data)), data]
    return b"".join(parts)


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    place = 0
    while place < len(data):
        key, place = _read_varint(data, place)
        kind = key & 7
        if kind == _NUMBER:
            value, place = _read_varint(data, place)
            yield key >> 3, value - (1 << 64) if value >> 63 else value
            continue
        if kind == _BYTES:
            size, place = _read_varint(data, place)
        elif kind in _SIZES:
            size = _SIZES[kind]
        else:
            raise ValueError(f"no message of Protocol Buffers: a field of kind {kind}")
        if place + size > len(data):
            raise ValueError("no message of Protocol Buffers: it is cut off")
        yield key >> 3, data[place : place + size]
        place += size


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def _read_varint(data: bytes, place: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if place >= len(data):
            raise ValueError("no message of Protocol Buffers: it is cut off")
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & (1 << 64) - 1, place
    raise ValueError("no message of Protocol Buffers: a number has no end")
