"""Rows in PlainBuffer as Tablestore sends them, with their checksums, which the vendor's client in Java looks at."""

from __future__ import annotations

import struct
from collections.abc import Mapping

from airflow_provider_microbatch.runtime.plain_buffer import (
    BLOB,
    BOOLEAN,
    CELL,
    CELL_CHECK,
    DELETE_ALL_VERSIONS,
    DELETE_MARKER,
    DELETE_ONE_VERSION,
    DOUBLE,
    EPOCH,
    EXTENSION,
    HEADER,
    INTEGER,
    KIND,
    NAME,
    ROW_CHECK,
    ROW_DATA,
    ROW_INDEX,
    ROW_KEY,
    SEQUENCE,
    SEQUENCE_TIMESTAMP,
    STRING,
    TIMESTAMP,
    VALUE,
    Stamp,
    Value,
)

DELETED, DELETED_VERSION = {"delete": True}, {"delete_version": True}
"""Instead of a value: the column goes, or one version of it."""


def row(
    key: Mapping[str, Value], columns: Mapping[str, object], *, stamp: Stamp | None, deletes: bool = False
) -> bytes:
    """:param columns: values, :data:`DELETED` or :data:`DELETED_VERSION`, by name; with a stamp, each is of its moment.
    :param stamp: None for a row of the table and not of its log.
    :param deletes: the row is one that was deleted.
    """
    version = 1_790_000_000_000 if stamp is None else stamp[1] // 1000
    cells = [_cell(name, value) for name, value in key.items()]
    data = [_cell(name, value, version=version) for name, value in columns.items()]
    checks = [check for _, check in [*cells, *data]]
    parts = [struct.pack("<i", HEADER), bytes([ROW_KEY]), *(bytes_ for bytes_, _ in cells)]
    if data:
        parts += [bytes([ROW_DATA]), *(bytes_ for bytes_, _ in data)]
    if deletes:
        parts.append(bytes([DELETE_MARKER]))
    if stamp is not None:
        epoch, timestamp, index = stamp
        inner = struct.pack("<BiBqBi", EPOCH, epoch, SEQUENCE_TIMESTAMP, timestamp, ROW_INDEX, index)
        inner = bytes([SEQUENCE]) + struct.pack("<i", len(inner)) + inner
        parts.append(bytes([EXTENSION]) + struct.pack("<i", len(inner)) + inner)
    parts.append(bytes([ROW_CHECK, _crc(bytes([*checks, int(deletes)]))]))
    return b"".join(parts)


def _cell(name: str, value: object, *, version: int | None = None) -> tuple[bytes, int]:
    data = name.encode()
    parts, checked = [bytes([CELL, NAME]), struct.pack("<i", len(data)), data], data
    kind = None
    if isinstance(value, dict):
        kind = DELETE_ONE_VERSION if "delete_version" in value else DELETE_ALL_VERSIONS
        version = version if kind == DELETE_ONE_VERSION else None
    else:
        content = _value(value)
        parts += [bytes([VALUE]), struct.pack("<i", len(content)), content]
        checked += content
    if kind is not None:
        parts.append(bytes([KIND, kind]))
    if version is not None:
        parts += [bytes([TIMESTAMP]), struct.pack("<q", version)]
        checked += struct.pack("<q", version)
    if kind is not None:
        checked += bytes([kind])
    check = _crc(checked)
    return b"".join([*parts, bytes([CELL_CHECK, check])]), check


def _value(value: object) -> bytes:
    if isinstance(value, bool):
        return bytes([BOOLEAN, value])
    if isinstance(value, int):
        return bytes([INTEGER]) + struct.pack("<q", value)
    if isinstance(value, float):
        return bytes([DOUBLE]) + struct.pack("<d", value)
    kind, data = (STRING, value.encode()) if isinstance(value, str) else (BLOB, bytes(value))  # type: ignore[call-overload]
    return bytes([kind]) + struct.pack("<i", len(data)) + data


def _crc(data: bytes) -> int:
    found = 0
    for byte in data:
        found ^= byte
        for _ in range(8):
            found = (found << 1 ^ 0x07 if found & 0x80 else found << 1) & 0xFF
    return found
