"""A Delta table's place in a bucket."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from airflow_provider_microbatch.connections import Connect
from airflow_provider_microbatch.exceptions import CheckpointError
from airflow_provider_microbatch.sinks.delta.objects.options import CONDITIONAL, options_of, told
from airflow_provider_microbatch.sinks.placed.data_files import Footer
from airflow_provider_microbatch.stores.object_store import ObjectStore
from airflow_provider_microbatch.stores.object_store.address import Address
from airflow_provider_microbatch.stores.object_store.bucket import Bucket
from airflow_provider_microbatch.stores.object_store.forks import library

_BUFFER = 1024 * 1024


class BucketHome:
    """:param bucket: the table's bucket.
    :param store: store of the table's objects.
    :param connect: finds the table's connection.
    """

    def __init__(self, bucket: Bucket, store: ObjectStore, *, connect: Connect) -> None:
        self._bucket = bucket
        self._store = store
        self._connect = connect
        # No file is written twice under one name: what is known of one holds as long as it is there.
        self._sizes: dict[str, int] = {}
        self._footers: dict[str, Footer] = {}

    @property
    def where(self) -> str:
        return str(self._address)

    @property
    def uri(self) -> str:
        return f"s3://{self._address.place}"

    def in_python(self) -> str:
        return f"DeltaTable({self.uri!r}, storage_options={CONDITIONAL!r})"

    def options(self) -> dict[str, str]:
        return options_of(self._address, self._connect)

    def has_log(self) -> bool:
        return True  # only a request tells

    def told(self, error: Exception) -> str:
        return told(error, self._address, secrets=self._bucket.opened().secrets)

    def sync_log(self, *, since_ns: int) -> None:
        """Nothing: an object is durable when its put is answered."""

    def source(self, path: str) -> Any:
        if path not in self._sizes:
            self._head(path)
        return io.BufferedReader(_Object(self._store, path, self._sizes[path]), _BUFFER)

    def size(self, path: str) -> int:
        size: int = self._head(path)["size"]
        return size

    def footer(self, path: str) -> Footer:
        from pyarrow import parquet

        if path not in self._footers:
            found = self._head(path)
            with io.BufferedReader(_Object(self._store, path, found["size"]), _BUFFER) as file:
                self._footers[path] = Footer(
                    size=found["size"],
                    modified_ms=int(found["last_modified"].timestamp() * 1000),
                    metadata=parquet.read_metadata(file),
                )
        return self._footers[path]

    @contextlib.contextmanager
    def here(self, paths: Sequence[str]) -> Iterator[Sequence[Path]]:
        with tempfile.TemporaryDirectory(prefix="microbatch-") as folder:
            found = [Path(folder, f"{number}.parquet") for number in range(len(paths))]
            for path, file in zip(paths, found, strict=True):
                with self.source(path) as data, file.open("xb") as copy:
                    shutil.copyfileobj(data, copy, _BUFFER)
            yield found

    @contextlib.contextmanager
    def writing(self, path: str) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(prefix="microbatch-") as folder:
            file = Path(folder, "rest.parquet")
            yield file
            key = self._key(path)
            self._bucket.ask("write", key, lambda client: library().put(client, key, file))

    def remove(self, path: str) -> None:
        with contextlib.suppress(CheckpointError):
            self._store.delete_many([path])

    def _head(self, path: str) -> Any:
        key = self._key(path)
        try:
            found = self._bucket.ask("look at", key, lambda client: library().head(client, key))
        except FileNotFoundError:
            raise FileNotFoundError(_gone(path)) from None
        self._sizes[path] = found["size"]
        return found

    def _key(self, path: str) -> str:
        return f"{self._address.prefix}/{path}"

    @property
    def _address(self) -> Address:
        return self._bucket.address


class _Object(io.RawIOBase):
    """An object as a file that is read here and there, by one request each."""

    def __init__(self, store: ObjectStore, path: str, size: int) -> None:
        self._store = store
        self._path = path
        self._size = size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        wanted = min(len(buffer), self._size - self._at)
        if wanted <= 0:
            return 0
        data = self._store.get_range(self._path, self._at, wanted)
        if data is None:
            raise FileNotFoundError(_gone(self._path))
        if len(data) != wanted:
            raise OSError(f"{self._path} was changed")
        buffer[:wanted] = data
        self._at += wanted
        return wanted


def _gone(path: str) -> str:
    return (
        f"{path} is gone: somebody removed what the table needs, or is about to (a clean-up of the table that keeps "
        "less than a day?)"
    )
