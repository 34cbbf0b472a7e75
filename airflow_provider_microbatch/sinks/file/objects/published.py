"""The manifests of a table: which attempt's files are a batch. A batch has one object, in the symlink form that Hive,
Trino, Athena and Spark read (``SymlinkTextInputFormat``): the addresses of its files, one per line.

A process that changes what readers see of a batch puts this object on the condition that the object is unchanged since
the process read it, or still does not exist. The object is never removed, and no two versions have the same bytes, so
that any change in between is noticed.
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
    """A batch's manifest as it was read.

    :param key: the batch.
    :param version: version of the object; None if there is none.
    :param written: the attempt that is in; None if none is.
    :param files: the attempt's files, relative to its folder.
    :param lines: the lines of the object.
    """

    key: BatchKey
    version: str | None = None
    written: Written | None = None
    files: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()


class Manifests:
    """The manifests of a table.

    :param store: store of the table's objects.
    :param bucket: the table's bucket.
    :param top: ``s3://bucket/prefix`` of the table, in the form for readers.
    :param format: format of the files.
    """

    def __init__(self, store: ObjectStore, bucket: Bucket, *, top: str, format: str) -> None:
        self._store = store
        self._bucket = bucket
        self._top = top
        self._format = format

    def look(self, key: BatchKey) -> Published:
        """Read a batch's manifest: one request.

        :raises SinkError: if the object there is no manifest of this package.
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
        """Key of a batch's manifest, below the table's key."""
        return manifest_of(key)

    def put(self, before: Published, written: Written, files: Sequence[str]) -> bool:
        """Publish an attempt's files as the batch, in place of ``before``; False if the manifest has changed since.

        :param files: paths relative to the attempt's folder; at least one.
        """
        lines = [self.address(written, file) for file in sorted(files)]
        # Before the manifest, so that every batch with a manifest is in the index.
        self._store.put_if_absent(_index(before.key), b"")
        return self._put(before, lines)

    def withdraw(self, before: Published) -> bool:
        """Take the batch out of the table, in place of ``before``; False if the manifest has changed since."""
        return self._put(before, [self._nothing()])

    def touch(self, before: Published) -> bool:
        """Change the manifest without changing what readers see, so that a process that read it earlier is refused;
        False if the manifest has changed since."""
        of_files = [line for line in before.lines if f"/{NOTHING}/" not in line.removeprefix(self._top)]
        return self._put(before, [*of_files, self._nothing()])

    def ids(self, lane: str) -> Iterator[int]:
        """Ids of a lane's batches that are in, in no order: one request for each thousand."""
        gone = len(self._encode([self._nothing_at("0" * 32)]))
        for one in self._objects(f"{MANIFESTS}/lane={lane}"):
            key = key_of_manifest(one[0].removeprefix(f"{MANIFESTS}/"))
            if key is not None and (one[1] != gone or self.look(key).written is not None):
                yield key.id

    def ids_after(self, lane: str, after: int) -> Iterator[int]:
        """The ids of :meth:`ids` that are greater than ``after``, ascending: one request for each, and one more."""
        last = _padded(after) if after >= 0 else ""
        while page := self._store.list_after(f"{INDEX}/lane={lane}", last):
            last = page[-1]
            for name in page:
                if name.isascii() and name.isdecimal() and self.look(BatchKey(lane, int(name))).written is not None:
                    yield int(name)

    def all(self, lane: str | None) -> Iterator[Published]:
        """The batches that are in, by lane and number; of one lane, or of all. One request each, sixteen at a time."""
        keys = [
            key
            for path, _ in self._objects(f"{MANIFESTS}/lane={lane}" if lane is not None else MANIFESTS)
            if (key := key_of_manifest(path.removeprefix(f"{MANIFESTS}/"))) is not None
        ]
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            yield from (found for found in pool.map(self.look, sorted(keys)) if found.written is not None)

    def address(self, written: Written, file: str) -> str:
        """The address of an attempt's file, in the form for readers."""
        return f"{self._top}/{written.folder}/{file}"

    def lanes(self) -> list[str]:
        """Lanes of which any batch is, or was, in."""
        return sorted(name.removeprefix("lane=") for name in self._store.folders(MANIFESTS) if name.startswith("lane="))

    def odd(self) -> Iterator[str]:
        """Keys below the table's key of objects that readers take for manifests, and that are no batch's."""
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
        """The address of a new file without rows, which no other manifest names."""
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
