"""Which attempt's files are a batch, as the table says it: one object for each batch, in the symlink form that Hive,
Trino, Athena and Spark read (``SymlinkTextInputFormat``): the addresses of its files, a line each.

Whoever changes what readers see of a batch puts this object on the condition that it is what he has looked at, or that
there is none. It is never removed, and no two have the same bytes: what has come and gone in between is noticed.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.runtime.object_table import MANIFESTS
from airflow_provider_microbatch.sinks.file.objects import nothing
from airflow_provider_microbatch.sinks.file.objects.layout import (
    BATCHES,
    INDEX,
    NOTHING,
    Written,
    key_of_manifest,
    manifest_of,
)
from airflow_provider_microbatch.stores.object_store import ObjectStore
from airflow_provider_microbatch.stores.object_store.bucket import Bucket

_AT_ONCE = 16
_DIGITS = 20


@dataclass(frozen=True, kw_only=True)
class Published:
    """What the table says of a batch.

    :param key: the batch.
    :param version: of the object; None if there is none.
    :param written: the attempt that is in; None if none is.
    :param files: of it, relative to its folder.
    :param lines: as they stand there.
    """

    key: BatchKey
    version: str | None = None
    written: Written | None = None
    files: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()


class Manifests:
    """The objects of a table.

    :param store: of the table.
    :param bucket: the table's.
    :param top: ``s3://bucket/prefix`` of the table, as readers are told.
    :param format: of the files.
    """

    def __init__(self, store: ObjectStore, bucket: Bucket, *, top: str, format: str) -> None:
        self._store = store
        self._bucket = bucket
        self._top = top
        self._format = format

    def look(self, key: BatchKey) -> Published:
        """What the table says of a batch now: one request.

        :raises SinkError: if what is there is none of ours.
        """
        found = self._store.get_versioned(manifest_of(key))
        if found is None:
            return Published(key=key)
        try:
            lines = tuple(found.data.decode("utf-8").splitlines())
            written, files = self._read(key, lines)
        except ValueError as error:
            raise SinkError(
                f"{self._top}/{manifest_of(key)} is no manifest of batch {key}: {error}. Somebody changed it, or moved "
                "the table: files are named by their whole address. Look who did, and bring it back as it was."
            ) from error
        return Published(key=key, version=found.version, written=written, files=files, lines=lines)

    @staticmethod
    def path(key: BatchKey) -> str:
        """Of a batch's object, below the table."""
        return manifest_of(key)

    def put(self, before: Published, written: Written, files: Sequence[str]) -> bool:
        """Have an attempt's files be the batch, in place of what was looked at; False if that has changed since.

        :param files: relative to its folder; one at least.
        """
        lines = [self.address(written, file) for file in sorted(files)]
        # Before the manifest, so that none is there which the index does not show.
        self._store.put_if_absent(_index(before.key), b"")
        return self._put(before, lines)

    def withdraw(self, before: Published) -> bool:
        """Have nothing be the batch, in place of what was looked at; False if that has changed since."""
        return self._put(before, [self._nothing()])

    def touch(self, before: Published) -> bool:
        """Leave to readers what they see, and have whoever has looked before lose; False if it has changed since."""
        of_files = [line for line in before.lines if f"/{NOTHING}/" not in line.removeprefix(self._top)]
        return self._put(before, [*of_files, self._nothing()])

    def ids(self, lane: str) -> Iterator[int]:
        """Batches of a lane that something is in of, in no order: a request for each thousand."""
        gone = len(self._encode([self._nothing_at("0" * 32)]))
        for one in self._objects(f"{MANIFESTS}/lane={lane}"):
            key = key_of_manifest(one[0].removeprefix(f"{MANIFESTS}/"))
            if key is not None and (one[1] != gone or self.look(key).written is not None):
                yield key.id

    def ids_after(self, lane: str, after: int) -> Iterator[int]:
        """Those of :meth:`ids` that are greater, ascending: by as few requests as there are such, and one more."""
        last = _padded(after) if after >= 0 else ""
        while page := self._store.list_after(f"{INDEX}/lane={lane}", last):
            last = page[-1]
            for name in page:
                if name.isascii() and name.isdecimal() and self.look(BatchKey(lane, int(name))).written is not None:
                    yield int(name)

    def all(self, lane: str | None) -> Iterator[Published]:
        """What is in, by lane and number; of one lane, or of all. A request for each batch, sixteen at a time."""
        keys = [
            key
            for path, _ in self._objects(f"{MANIFESTS}/lane={lane}" if lane is not None else MANIFESTS)
            if (key := key_of_manifest(path.removeprefix(f"{MANIFESTS}/"))) is not None
        ]
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            yield from (found for found in pool.map(self.look, sorted(keys)) if found.written is not None)

    def address(self, written: Written, file: str) -> str:
        """Of a file that an attempt has written, as readers are told."""
        return f"{self._top}/{written.folder}/{file}"

    def lanes(self) -> list[str]:
        """Lanes that there is, or was, a batch of."""
        return sorted(name.removeprefix("lane=") for name in self._store.folders(MANIFESTS) if name.startswith("lane="))

    def odd(self) -> Iterator[str]:
        """What readers of the manifests come upon that is no batch's, by its key below the table's."""
        for path, _ in self._objects(MANIFESTS):
            names = path.split("/")
            hidden = any(name.startswith(("_", ".")) for name in names[1:])
            if not hidden and key_of_manifest(path.removeprefix(f"{MANIFESTS}/")) is None:
                yield path

    def _objects(self, folder: str) -> Iterator[tuple[str, int]]:
        prefix = self._bucket.address.prefix
        for one in self._bucket.objects(f"{prefix}/{folder}"):
            yield one["path"].removeprefix(f"{prefix}/"), one["size"]

    def _put(self, before: Published, lines: Sequence[str]) -> bool:
        path, data = manifest_of(before.key), self._encode(lines)
        if before.version is None:
            return self._store.put_if_absent(path, data)
        return self._store.compare_and_put(path, data, version=before.version) is not None

    def _read(self, key: BatchKey, lines: Sequence[str]) -> tuple[Written | None, tuple[str, ...]]:
        found, files = set(), []
        for line in lines:
            path = line.removeprefix(f"{self._top}/")
            if path == line:
                raise ValueError(f"{line!r:.200} lies elsewhere than the table")
            if path.startswith(f"{NOTHING}/"):
                continue
            below = path.removeprefix(f"{BATCHES}/")
            written = Written.at(below) if below != path else None
            if written is None or written.key != key or ".." in below:
                raise ValueError(f"{line!r:.200} is no file of the batch")
            found.add(written)
            files.append(below.removeprefix(f"{written.name}/"))
        if len(found) > 1 or not lines:
            raise ValueError("it names files of two attempts" if lines else "it is empty")
        return next(iter(found), None), tuple(files)

    def _nothing(self) -> str:
        """The address of a file of no rows that nobody else names."""
        number = uuid.uuid4().hex
        self._store.put_if_absent(f"{NOTHING}/{number}.{self._format}", nothing.of_format(self._format))
        return self._nothing_at(number)

    def _nothing_at(self, number: str) -> str:
        return f"{self._top}/{NOTHING}/{number}.{self._format}"

    @staticmethod
    def _encode(lines: Sequence[str]) -> bytes:
        return "".join(f"{line}\n" for line in lines).encode()


def _index(key: BatchKey) -> str:
    return f"{INDEX}/lane={key.lane}/{_padded(key.id)}"


def _padded(number: int) -> str:
    return f"{number:0{_DIGITS}}"
