"""One segment of the file source's index: fingerprints of the files in a run of source log entries.

The source log stays the truth; a segment only answers "seen" faster, in 16 bytes a file. A segment is derived from the
log, so a lost or damaged one is made again.

A fingerprint is the 128-bit BLAKE2b of the path. A wrong "seen" would lose a file, so it must not happen: among a
billion paths the chance that any two agree is 2**-69, far below that of an undetected disk error. (64 bits would give
one in 40.) A user who makes two paths agree on purpose hides a file of his own.

The bytes, integers little-endian:

| part | what |
| --- | --- |
| header | magic, first, last log id, files, newest mtime (ms; live lane), digest of entry ``last``, block count |
| table | size and CRC-32 of each block, then the CRC-32 of header and table |
| blocks | 257 offsets into the block, one for each value of a byte of the fingerprint; then the fingerprints, sorted |

A large segment has 256 blocks, one for each first byte, which are read when they are needed: a question about a few
files reads a few kilobytes, a question about a million reads all blocks. A small segment has one block.
"""

from __future__ import annotations

import struct
import sys
import zlib
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import accumulate

SIZE = 16
"""Bytes of a fingerprint."""

_MAGIC = b"mbseen2\n"
"""A segment with another magic is made again from the log; older versions counted every lane's files in newest
mtime."""
_HEADER = struct.Struct("<8sqqqq16sI")
_TABLE_ENTRY = struct.Struct("<II")
_CRC = struct.Struct("<I")
_FAN = 257 * 4
_NO_TIME = -(2**63)
_WIDE_FROM = 8_192
"""Number of files from which a segment has 256 blocks; searching a single block would be slow."""

HEAD = _HEADER.size + 256 * _TABLE_ENTRY.size + _CRC.size
"""The largest size of header and table, in bytes."""

Read = Callable[[int, int], bytes | None]
"""Reads bytes of a segment: takes offset and size, returns None if the segment is gone."""


class SegmentGoneError(Exception):
    """The segment was removed after it was opened: another planner has merged it into a larger one."""


class SegmentDamagedError(Exception):
    """The segment does not have the bytes that were written.

    :param name: name of the segment.
    :param how: description of the damage, which follows the name.
    """

    def __init__(self, name: str, how: str) -> None:
        super().__init__(f"index segment {name} {how}")
        self.name = name


@dataclass(frozen=True, slots=True)
class Span:
    """The part of the log that a segment covers.

    :param first: lowest log id.
    :param last: highest log id.
    :param newest_ms: the highest mtime of a file of the live lane, milliseconds since the epoch; None if not known.
    :param seal: digest of entry ``last``: a log that was restored from a backup and then continued differently has
        another one.
    """

    first: int
    last: int
    newest_ms: int | None
    seal: bytes


def fingerprint(path: str) -> bytes:
    """The path's fingerprint of 128 bits."""
    return blake2b(path.encode("utf-8", "surrogatepass"), digest_size=SIZE).digest()


def fingerprints(paths: Iterable[str]) -> list[bytes]:
    """The fingerprints of many paths, without a function call for each."""
    return [blake2b(path.encode("utf-8", "surrogatepass"), digest_size=SIZE).digest() for path in paths]


class Segment:
    """Opens a segment and looks up fingerprints.

    :param read: reads its bytes.
    :param name: its name, for messages.
    :param stored: False if the segment is only in memory.
    :raises SegmentDamagedError: if header or table are damaged.
    :raises SegmentGoneError: if the segment is no longer there.
    """

    def __init__(self, read: Read, *, name: str, stored: bool = True) -> None:
        self._read = read
        self.name = name
        self.stored = stored
        head = self._bytes(0, HEAD)
        if len(head) < _HEADER.size:
            raise self._damaged("is too short")
        magic, first, last, self.files, newest_ms, seal, count = _HEADER.unpack_from(head)
        end = _HEADER.size + count * _TABLE_ENTRY.size
        if magic != _MAGIC or count not in (1, 256) or len(head) < end + _CRC.size:
            raise self._damaged("has no header of this version")
        if _CRC.unpack_from(head, end)[0] != zlib.crc32(head[:end]):
            raise self._damaged("has a damaged header")
        self.span = Span(first, last, None if newest_ms == _NO_TIME else newest_ms, seal)
        self._table = list(_TABLE_ENTRY.iter_unpack(head[_HEADER.size : end]))
        self._starts = list(accumulate((size for size, _ in self._table), initial=end + _CRC.size))
        self._mask = count - 1
        self._lead = 1 if count == 256 else 0
        self._blocks: list[tuple[bytes, array[int]] | None] = [None] * count

    @classmethod
    def of(cls, data: bytes, *, name: str, stored: bool) -> Segment:
        """Open a segment from bytes in memory."""
        return cls(lambda start, size: data[start : start + size], name=name, stored=stored)

    def missing(self, prints: Sequence[bytes], among: Iterable[int]) -> list[int]:
        """Those of the positions ``among`` whose fingerprint is not in the segment.

        :raises SegmentDamagedError: if a block that is needed is damaged.
        :raises SegmentGoneError: if the segment is no longer there.
        """
        blocks, mask, lead = self._blocks, self._mask, self._lead
        found = []
        for position in among:
            wanted = prints[position]
            block, fan = blocks[wanted[0] & mask] or self._load(wanted[0] & mask)
            byte = wanted[lead]
            # A match across two neighbouring fingerprints would be 128 equal bits too: as unlikely as two paths that
            # agree.
            if block.find(wanted, fan[byte], fan[byte + 1]) < 0:
                found.append(position)
        return found

    def beginning_with(self, byte: int) -> list[bytes]:
        """The fingerprints with this first byte, sorted."""
        block, fan = self._blocks[byte & self._mask] or self._load(byte & self._mask)
        start, end = (_FAN, len(block)) if self._lead else (fan[byte], fan[byte + 1])
        return [block[at : at + SIZE] for at in range(start, end, SIZE)]

    def _load(self, number: int) -> tuple[bytes, array[int]]:
        size, crc = self._table[number]
        block = self._bytes(self._starts[number], size)
        if len(block) != size or zlib.crc32(block) != crc:
            raise self._damaged(f"has a damaged block {number}")
        fan = array("I", block[:_FAN])
        if sys.byteorder == "big":
            fan.byteswap()
        self._blocks[number] = (block, fan)
        return block, fan

    def _bytes(self, start: int, size: int) -> bytes:
        data = self._read(start, size)
        if data is None:
            raise SegmentGoneError(self.name)
        return data

    def _damaged(self, how: str) -> SegmentDamagedError:
        return SegmentDamagedError(self.name, how)


def build(span: Span, *, segments: Sequence[Segment], prints: Iterable[bytes]) -> bytes:
    """Build a segment of all fingerprints in ``segments`` and ``prints``. Holds no more than one of the 256 parts as
    Python objects, so that merging a million needs no more memory than their bytes."""
    own = sorted(prints)
    files = sum(segment.files for segment in segments) + len(own)
    wide = files >= _WIDE_FROM
    blocks = []
    pieces: list[bytes] = []
    for byte in range(256):
        low = bisect_left(own, bytes([byte]))
        high = bisect_left(own, bytes([byte + 1])) if byte < 255 else len(own)
        part = own[low:high]
        for segment in segments:
            part += segment.beginning_with(byte)
        pieces += sorted(part)
        if wide or byte == 255:
            blocks.append(_block(pieces, lead=1 if wide else 0))
            pieces = []
    newest_ms = _NO_TIME if span.newest_ms is None else span.newest_ms
    head = _HEADER.pack(_MAGIC, span.first, span.last, files, newest_ms, span.seal, len(blocks))
    head += b"".join(_TABLE_ENTRY.pack(len(block), zlib.crc32(block)) for block in blocks)
    return b"".join([head, _CRC.pack(zlib.crc32(head)), *blocks])


def _block(pieces: Sequence[bytes], *, lead: int) -> bytes:
    count = Counter(piece[lead] for piece in pieces)
    fan = array("I", accumulate((SIZE * count[byte] for byte in range(256)), initial=_FAN))
    if sys.byteorder == "big":
        fan.byteswap()
    return b"".join([fan.tobytes(), *pieces])
