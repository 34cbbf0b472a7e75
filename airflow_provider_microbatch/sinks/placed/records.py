"""Manifests of published batches, one small file each. The table's log says which of them counts, by a number made of
the file's bytes: a file that was changed, or is another attempt's, does not have the number that the log names."""

from __future__ import annotations

import contextlib
import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from airflow_provider_microbatch.checkpoint.identity import BatchIdentity
from airflow_provider_microbatch.checkpoint.key import BatchKey, is_lane
from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.sinks import Manifest
from airflow_provider_microbatch.sinks.file.posix import put_file
from airflow_provider_microbatch.sinks.file.reading import read_regular

_UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, RecursionError)


def encode(manifest: Manifest) -> bytes:
    """The bytes of a manifest's file: always the same for the same manifest."""
    identity = manifest.identity.to_dict() if manifest.identity else None
    values = {"epoch": manifest.epoch, "identity": identity, "files": dict(manifest.files)}
    return json.dumps({**values, "result": dict(manifest.result)}, sort_keys=True).encode()


def number_of(data: bytes) -> int:
    """The number by which the log names a manifest: 62 bits of its digest, and never 0."""
    return (int.from_bytes(hashlib.sha256(data).digest()[:8], "big") >> 2) or 1


class Records(ABC):
    """The manifests of a table. A table's log has to be asked which of them count."""

    def put(self, manifest: Manifest) -> int:
        """Store a manifest durably. :return: its number."""
        data = encode(manifest)
        number = number_of(data)
        self._write(manifest.key, number, data)
        return number

    def get(self, key: BatchKey, number: int) -> Manifest:
        """The manifest of that number.

        :raises SinkError: if its file is gone, or was changed.
        """
        path = self.where(key, number)
        ways = (
            "Bring the folder _microbatch of the table back from its backup; or give the pipeline another table. "
            "Nothing was published."
        )
        try:
            data = self._read(key, number)
            if number_of(data) != number:
                raise ValueError("somebody changed it")
            values = json.loads(data)
            identity = BatchIdentity.from_dict(values["identity"]) if values["identity"] else None
            return Manifest(key=key, **{**values, "identity": identity})
        except FileNotFoundError as error:
            raise SinkError(
                f"the log of the table says that batch {key} is in, and who put it there would stand in {path}, which "
                f"is gone. {ways}"
            ) from error
        except _UNREADABLE as error:
            raise SinkError(f"{path} is no manifest of a batch: {error}. {ways}") from error

    @abstractmethod
    def where(self, key: BatchKey, number: int) -> str:
        """The place of a manifest, for people."""

    @abstractmethod
    def drop(self, key: BatchKey, number: int) -> None:
        """Remove the manifest of an attempt that was never published."""

    @abstractmethod
    def ids(self, lane: str, *, after: int = -1) -> Iterator[int]:
        """Ids above ``after`` of batches of the lane that were published or about to be, ascending."""

    @abstractmethod
    def lanes(self) -> list[str]:
        """Lanes of which any batch was published or about to be, ascending."""

    def batches(self) -> Iterator[BatchKey]:
        """The batches of all lanes that were published or about to be."""
        return (BatchKey(lane, id) for lane in filter(is_lane, self.lanes()) for id in self.ids(lane))

    @abstractmethod
    def _write(self, key: BatchKey, number: int, data: bytes) -> None:
        """Store the bytes durably; they may be there."""

    @abstractmethod
    def _read(self, key: BatchKey, number: int) -> bytes:
        """:raises FileNotFoundError: if they are gone."""


@dataclass(frozen=True)
class FolderRecords(Records):
    """:param root: a hidden folder of the table."""

    root: Path

    def where(self, key: BatchKey, number: int) -> str:
        return str(self._path(key, number))

    def drop(self, key: BatchKey, number: int) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._path(key, number).unlink()

    def ids(self, lane: str, *, after: int = -1) -> Iterator[int]:
        names = {path.name.partition(".")[0] for path in (self.root / f"lane={lane}").glob("*.json")}
        found = sorted(int(name) for name in names if name.isascii() and name.isdecimal())
        yield from (id for id in found if id > after)

    def lanes(self) -> list[str]:
        return sorted(path.name.removeprefix("lane=") for path in self.root.glob("lane=*"))

    def _write(self, key: BatchKey, number: int, data: bytes) -> None:
        put_file(self.root, self._path(key, number), data)

    def _read(self, key: BatchKey, number: int) -> bytes:
        return read_regular(self._path(key, number))

    def _path(self, key: BatchKey, number: int) -> Path:
        return self.root / f"lane={key.lane}" / f"{key.id}.{number:016x}.json"
