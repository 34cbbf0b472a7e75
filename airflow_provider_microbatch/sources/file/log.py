"""The file source's log, in Spark's own format (``FileStreamSourceLog``).

Entry N holds the files of ``logOffset`` N: the line ``v1``, then one JSON object a file with Spark's keys ``path``
(URL), ``timestamp`` (mtime, milliseconds) and ``batchId`` (N, the log id, not the micro-batch), and this package's
keys: ``size`` (bytes), ``mtime_ns``, ``etag`` for an object, and ``lane`` if another lane than the live one reads the
entry. An entry is read by one lane, and a file is in one entry: this keeps lanes from reading a file twice. Spark
ignores keys that it does not know.

``N.compact`` is written by Spark only: all files of entries 0 to N.

Entries are put-if-absent and never changed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from airflow_provider_microbatch.checkpoint.entries import Offset
from airflow_provider_microbatch.checkpoint.key import LIVE
from airflow_provider_microbatch.exceptions import CorruptEntryError, SourceError
from airflow_provider_microbatch.sources import digest_of_range
from airflow_provider_microbatch.sources.file.listing import FoundFile
from airflow_provider_microbatch.sources.file.path import from_url, to_url
from airflow_provider_microbatch.stores import Store

NOTHING = -1
"""The log id before the first entry."""

_KEPT, _SMALL = 8, 2**20
"""The number of entries that are kept in memory, and the size of the largest of them (bytes)."""

_VERSION = "v1"
_NAME = re.compile(r"(0|[1-9][0-9]*)(\.compact)?")


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """A file of the source log.

    :param path: absolute local path.
    :param timestamp_ms: mtime, milliseconds since the epoch.
    :param log_id: the ``logOffset`` that the file belongs to.
    :param size: bytes; None in entries that Spark wrote.
    :param mtime_ns: nanoseconds since the epoch; None in entries that Spark wrote.
    :param lane: the lane that reads the file.
    :param etag: ETag of an object; None in entries that Spark wrote, and for files.
    """

    path: str
    timestamp_ms: int
    log_id: int
    size: int | None = None
    mtime_ns: int | None = None
    lane: str = LIVE
    etag: str | None = None

    def is_as_planned(self, size: int, mtime_ns: int, etag: str | None = None) -> bool:
        """Whether a file of this size (bytes) and mtime, or an object with this ETag, is the planned one, as far as the
        entry tells."""
        if self.size is not None and self.size != size:
            return False
        if self.etag is not None and etag is not None:
            return self.etag == etag
        if self.mtime_ns is not None:
            return self.mtime_ns == mtime_ns
        return self.timestamp_ms == mtime_ns // 1_000_000


def log_id(offset: Offset | None) -> int:
    """The number in ``{"logOffset":N}``; -1 for None.

    :raises CorruptEntryError: if the text is not an offset of a file source.
    """
    if offset is None:
        return NOTHING
    try:
        value = json.loads(offset)
        number = value["logOffset"] if isinstance(value, dict) else value
    except (ValueError, KeyError):
        number = None
    if not isinstance(number, int) or isinstance(number, bool) or number < NOTHING:
        raise CorruptEntryError(f'{offset!r} is not an offset of a file source; expected {{"logOffset":N}}.')
    return number


def offset_of(number: int) -> Offset | None:
    """The offset text of a log id, in Spark's bytes; None for "before anything"."""
    return None if number == NOTHING else f'{{"logOffset":{number}}}'


def entries_of(start: Offset | None, end: Offset | None) -> range:
    """The log ids of a range."""
    return range(log_id(start) + 1, log_id(end) + 1)


def encode(number: int, files: Iterable[FoundFile], *, lane: str = LIVE) -> bytes:
    """Encode entry ``number`` of the log."""
    tag = {} if lane == LIVE else {"lane": lane}
    lines = [_VERSION]
    for file in files:
        fields = {
            "path": to_url(file.path),
            "timestamp": file.mtime_ns // 1_000_000,
            "batchId": number,
            "size": file.size,
            "mtime_ns": file.mtime_ns,
            **({} if file.etag is None else {"etag": file.etag}),
            **tag,
        }
        lines.append(json.dumps(fields, ensure_ascii=False, separators=(",", ":")))
    return "\n".join(lines).encode()


def decode(data: bytes, *, where: str) -> list[PlannedFile]:
    """Decode the files of an entry.

    :raises CorruptEntryError: if the entry is empty, torn, of another version, or has a line that is not a file; names
        ``where``.
    """
    try:
        version, *lines = data.decode().rstrip("\n").split("\n")
        if version != _VERSION:
            raise ValueError(f"its first line is {version[:20]!r}, not {_VERSION!r}")
        if not lines:
            raise ValueError("it names no file")
        return [_file(json.loads(line)) for line in lines]
    except (AttributeError, KeyError, OverflowError, RecursionError, TypeError, ValueError) as error:
        raise CorruptEntryError(
            f"source log entry {where} cannot be read: {error}. Restore it from a backup of the checkpoint."
        ) from error


def _file(fields: dict[str, Any]) -> PlannedFile:
    for name in ("size", "mtime_ns"):
        if type(fields.get(name)) not in (int, type(None)):
            raise TypeError(f"its {name} is {fields[name]!r:.40}")
    if type(fields.get("etag")) not in (str, type(None)):
        raise TypeError(f"its etag is {fields['etag']!r:.40}")
    return PlannedFile(
        path=from_url(fields["path"]),
        timestamp_ms=int(fields["timestamp"]),
        log_id=int(fields["batchId"]),
        size=fields.get("size"),
        mtime_ns=fields.get("mtime_ns"),
        lane=fields.get("lane", LIVE),
        etag=fields.get("etag"),
    )


def known_as(files: Iterable[PlannedFile]) -> str:
    """A digest that identifies files outside of this log: path, size and mtime, and ETag, as they were planned."""
    return digest_of_range(*sorted(_known_as(file) for file in files))


def _known_as(file: PlannedFile) -> tuple[Any, ...]:
    # Only for an object: digests of files that are on record have no ETag.
    return (file.path, file.size, file.mtime_ns or file.timestamp_ms, *(() if file.etag is None else (file.etag,)))


@dataclass(frozen=True)
class LogNames:
    """The entries in a folder of the log.

    :param entries: log ids with an entry of their own, sorted.
    :param compacted: log ids up to which Spark wrote a ``.compact``, sorted.
    """

    entries: Sequence[int]
    compacted: Sequence[int]

    @property
    def latest(self) -> int:
        """The highest log id; -1 if there is none."""
        return max([NOTHING, *self.entries[-1:], *self.compacted[-1:]])


class SourceLog:
    """Reads the log, Spark's compacted entries included, and appends to it.

    :param store: scoped to the folder of the log.
    :param top: the beginning of every path in the log. The log may belong to another query, or to another place, where
        a path means another file, or none: such a path must not be mistaken for a file that has vanished.
    :param kept: entries that were read before, by name; None: none is kept, as for who looks whether any has changed.
    """

    def __init__(self, store: Store, *, top: str = "/", kept: dict[str, bytes] | None = None) -> None:
        self._store = store
        self._top = top
        self._kept = kept

    def anew(self) -> SourceLog:
        """The same log, of which nothing is kept: for whoever gives data up by it."""
        return SourceLog(self._store, top=self._top)

    @property
    def location(self) -> str:
        """The folder, for messages."""
        return self._store.location

    def names(self) -> LogNames:
        """Return the entries, by one listing. Spark's ``.crc`` and temporary files are not entries."""
        entries: list[int] = []
        compacted: list[int] = []
        for name in self._store.list(""):
            match = _NAME.fullmatch(name)
            if match:
                (compacted if match[2] else entries).append(int(match[1]))
        return LogNames(sorted(entries), sorted(compacted))

    def add(self, number: int, files: Iterable[FoundFile], *, lane: str = LIVE) -> bool:
        """Append entry ``number`` for ``lane``, put-if-absent."""
        data = encode(number, files, lane=lane)
        added = self._store.put_if_absent(str(number), data)
        if added:
            self._keep(str(number), data)
        return added

    def entry(self, number: int) -> list[PlannedFile] | None:
        """The files of entry ``number`` itself; None if it does not exist (it may be part of a ``.compact``)."""
        return self._read(str(number))

    def compact(self, number: int) -> list[PlannedFile] | None:
        """The files that Spark compacted up to and including ``number``."""
        return self._read(f"{number}.compact")

    def has_compact(self, number: int) -> bool:
        """Whether Spark compacted up to exactly ``number``."""
        return self._store.modified_ms(f"{number}.compact") is not None

    def seal(self, number: int) -> bytes | None:
        """16 bytes that distinguish entry ``number`` from any other; None if it does not exist. An entry that Spark
        compacted no longer exists by itself, and gets 16 zero bytes."""
        data = self._store.get(str(number))
        if data is not None:
            return blake2b(data, digest_size=16).digest()
        return bytes(16) if self.has_compact(number) else None

    def range(self, start: int, end: int) -> list[PlannedFile]:
        """The files after log id ``start``, up to and including ``end``, in the order in which they were planned.

        :raises CorruptEntryError: if an entry of the range is neither there nor compacted.
        """
        files: list[PlannedFile] = []
        number = end
        while number > start:
            own = self.entry(number)
            if own is not None:
                files[:0] = own
                number -= 1
                continue
            covering = [id for id in self.names().compacted if id >= number]
            if not covering:
                raise self.lost(number)
            files[:0] = [file for file in self.compact(covering[0]) or [] if start < file.log_id <= number]
            break
        return files

    def files(self, end: int) -> Iterator[PlannedFile]:
        """Yield every file of the log up to log id ``end``, in the order in which they were planned. Holds no more than
        one entry in memory, which may be a compacted entry of Spark's, with all files before it.

        :raises CorruptEntryError: as :meth:`range`.
        """
        number = 0
        while number <= end:
            own = self.entry(number)
            if own is not None:
                yield from own
                number += 1
                continue
            # Spark removes entries that it has compacted: its newest compacted entry contains this one, too.
            done = max((one for one in self.names().compacted if one <= end), default=end)
            yield from self.range(number - 1, max(number, done))
            number = max(number, done) + 1

    def _keep(self, name: str, data: bytes) -> None:
        if self._kept is not None and len(data) <= _SMALL:
            self._kept[name] = data
            if len(self._kept) > _KEPT:
                del self._kept[next(iter(self._kept))]

    def lost(self, number: int) -> CorruptEntryError:
        """Return the error for an entry that is neither there nor compacted."""
        return CorruptEntryError(
            f"the source log {self.location} has no entry {number}, of which batches have read. Restore it from a "
            "backup of the checkpoint; `microbatch check` says what to do without one."
        )

    def damaged(self, end: int) -> Iterator[tuple[int, str]]:
        """Yield the entries up to ``end``, or to the end of the log if that is later, that cannot be read, each with
        the reason. Reads all entries. If ``end`` lies after the end of the log, only the first missing entry is
        yielded, since ``end`` may be any number."""
        names = self.names()
        compacted = names.compacted[-1] if names.compacted else NOTHING
        for number in range(min(max(end, names.latest), names.latest + 1) + 1):
            try:
                if self.entry(number) is None and number > compacted:
                    yield number, str(self.lost(number))
                if number == compacted:
                    self.compact(number)
            except CorruptEntryError as error:
                yield number, str(error)

    def remove_after(self, end: int) -> None:
        """Forget every entry after ``end``, the newest first. No planner may be running.

        :raises CorruptEntryError: if one of Spark's ``.compact`` reaches further.
        """
        names = self.names()
        if names.compacted and names.compacted[-1] > end:
            raise CorruptEntryError(
                f"{self.location}/{names.compacted[-1]}.compact, which Spark wrote, holds entries before and after "
                f"{end}. Restore the log from a backup of the checkpoint."
            )
        if self._kept is not None:
            self._kept.clear()
        for number in reversed(names.entries):
            if number > end:
                self._store.delete(str(number))

    def next_of(self, lane: str, after: int, latest: int) -> int | None:
        """The lowest log id after ``after``, up to ``latest``, that ``lane`` reads; None if there is none."""
        for number in range(after + 1, latest + 1):
            files = self.entry(number)
            # Entries that exist only in a ``.compact`` were read by Spark, which knows the live lane only.
            if (files[0].lane if files else LIVE) == lane:
                return number
        return None

    def _read(self, name: str) -> list[PlannedFile] | None:
        data = (self._kept or {}).pop(name, None) or self._store.get(name)
        if data is None:
            return None
        files = decode(data, where=f"{self.location}/{name}")
        self._keep(name, data)
        for file in files:
            if not file.path.startswith(self._top):
                raise SourceError(
                    f"the source log {self.location}/{name} names {file.path!r}, which does not lie in {self._top!r}: "
                    "it is of a source at another place. Read that there, or give this source a name of its own."
                )
        return files
