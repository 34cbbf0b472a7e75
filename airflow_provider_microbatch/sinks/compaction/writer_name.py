"""The name of its writer in a Parquet file. Spark and Impala can be told to read times of 96 bits by it: as they are if
the name begins with ``parquet-mr``, else shifted to the session's time zone. Arrow writes no name but its own."""

from __future__ import annotations

import os
import struct
from pathlib import Path

from airflow_provider_microbatch.exceptions import SinkError

_END = struct.Struct("<I4s")
"""Behind the footer: its length in bytes, and the mark of a footer that is not encrypted."""
_MARK = b"PAR1"


def rename_writer(path: Path, name: str, *, before: str) -> None:
    """Put another name of the writer into the footer, which is the end of the file: nothing else moves.

    :param before: the name in the file.
    :raises SinkError: if the footer has not got that name.
    """
    with path.open("r+b") as file:
        end = file.seek(-_END.size, os.SEEK_END)
        length, mark = _END.unpack(file.read(_END.size))
        begin = file.seek(max(end - length, 0))
        # The last one: behind the name come orders of columns alone, which have no text. A value of a statistic, or a
        # note, that reads the same stands before it.
        ahead, found, behind = file.read(end - begin).rpartition(_text(before))
        if mark != _MARK or not found:
            raise SinkError(f"the footer of {path} has no writer of the name {before!r}")
        footer = ahead + _text(name) + behind
        file.seek(begin)
        file.write(footer + _END.pack(len(footer), mark))
        file.truncate()


def _text(text: str) -> bytes:
    """A text as Thrift's compact protocol has it: its length in groups of seven bits, the lowest first, and its bytes.
    No other part of a footer tells where the text ends, or how long the footer is."""
    data = text.encode()
    length, groups = len(data), bytearray()
    while length > 0x7F:
        groups.append(length & 0x7F | 0x80)
        length >>= 7
    return bytes([*groups, length]) + data
