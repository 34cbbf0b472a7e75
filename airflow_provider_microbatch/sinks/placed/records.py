"""Manifests of published batches, one small file each. The table's log says which of them counts, by a number made of
the file's bytes: a file that was changed, or is another attempt's, does not have the number that the log names."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from airflow_provider_microbatch.checkpoint.identity import BatchIdentity
from airflow_provider_microbatch.checkpoint.key import BatchKey
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


@dataclass(frozen=True)
class Records:
    """:param root: a hidden folder of the table."""

    root: Path

    def put(self, manifest: Manifest) -> int:
        """Store a manifest durably. :return: its number."""
        data = encode(manifest)
        number = number_of(data)
        put_file(self.root, self._path(manifest.key, number), data)
        return number

    def get(self, key: BatchKey, number: int) -> Manifest:
        """The manifest of that number.

        :raises SinkError: if its file is gone, or was changed.
        """
        path = self._path(key, number)
        ways = (
            "Bring the folder _microbatch of the table back from its backup; or give the pipeline another table. "
            "Nothing was published."
        )
        try:
            data = read_regular(path)
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

    def drop(self, key: BatchKey, number: int) -> None:
        """Remove the manifest of an attempt that was never published."""
        with contextlib.suppress(FileNotFoundError):
            self._path(key, number).unlink()

    def ids(self, lane: str) -> Iterator[int]:
        """Ids of batches of the lane that were published or about to be, ascending."""
        names = {path.name.partition(".")[0] for path in (self.root / f"lane={lane}").glob("*.json")}
        yield from sorted(int(name) for name in names if name.isascii() and name.isdecimal())

    def lanes(self) -> list[str]:
        """Lanes of which any batch was published or about to be, ascending."""
        return sorted(path.name.removeprefix("lane=") for path in self.root.glob("lane=*"))

    def _path(self, key: BatchKey, number: int) -> Path:
        return self.root / f"lane={key.lane}" / f"{key.id}.{number:016x}.json"
