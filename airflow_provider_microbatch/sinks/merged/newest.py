"""The record of the newest change of each key, as of one version of the table.

Its files and those of its rows have the version in their names that was to be committed with them. No process commits a
version that is there: what is of the newest version or an older one, and is not named by the newest record, never comes
to count, and goes.
"""

from __future__ import annotations

import contextlib
import json
import re
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.sinks.file.posix import put_file
from airflow_provider_microbatch.sinks.file.reading import read_regular
from airflow_provider_microbatch.sinks.placed import HIDDEN
from airflow_provider_microbatch.sinks.placed.records import number_of

FOLDER = f"{HIDDEN}/newest"
_OURS = re.compile(r"\.?([0-9]+)[.-].+")
_RECORD = re.compile(r"([0-9]{1,19})\.[0-9a-f]{16}\.json")


@dataclass(frozen=True, kw_only=True)
class Newest:
    """:param keys: as the table's merge has them.
    :param sequence_by: as well.
    :param bounds: the columns of the bounds of versions; none where the table has the newest states alone.
    :param fields: the columns of all changes so far.
    :param files: the files of the newest changes, with their bytes; paths below the table's folder.
    """

    keys: Sequence[str]
    sequence_by: Sequence[str]
    bounds: Sequence[str] = ()
    fields: Sequence[Mapping[str, Any]] = ()
    files: Mapping[str, int]


class NewestRecords(ABC):
    """The records of a table, by names in :data:`FOLDER`, wherever the table lies."""

    def get(self, number: int) -> Newest:
        """The record of that number.

        :raises FileNotFoundError: if it is gone, as a record is after the next publish.
        :raises SinkError: if it was changed.
        """
        name = self._found(number)[-1]
        data = self._read(name)
        if number_of(data) != number:
            raise SinkError(
                f"somebody has changed {self._where(name)}. Bring it back from a backup. Nothing was published."
            )
        return Newest(**json.loads(data))

    def version(self, number: int, *, up_to: int) -> int:
        """The version that the record of that number was committed with.

        :param up_to: the table's version. A record of a later one was never committed: somebody has copied it.
        :raises FileNotFoundError: if it is gone.
        """
        found = [version for version in map(_version, self._found(number)) if version <= up_to]
        if not found:
            raise FileNotFoundError(self._where(f"*.{number:016x}.json"))
        return found[-1]

    def put(self, newest: Newest, *, version: int) -> int:
        """Store a record durably, for the commit of that version. :return: its number."""
        data = json.dumps(asdict(newest), sort_keys=True).encode()
        number = number_of(data)
        self._write(f"{version}.{number:016x}.json", data)
        return number

    @staticmethod
    def new_file(version: int) -> str:
        """A path, below the table's folder, for newest changes that are to be committed with that version."""
        return f"{FOLDER}/{version}-{uuid.uuid4().hex}.parquet"

    def sweep(self, number: int) -> None:
        """Remove what is not newer than the record of that number, and not named by it.

        :param number: of a record that a version has, durably.
        """
        try:
            own = self._found(number)[0]
            named = {own, *(path.rpartition("/")[2] for path in self.get(number).files)}
        except FileNotFoundError:
            return  # who has published after it has swept
        found = [match for name in self._names() if (match := _OURS.fullmatch(name)) is not None]
        self._remove([one[0] for one in found if int(one[1]) <= _version(own) and one[0] not in named])

    def _found(self, number: int) -> list[str]:
        """The records of that number, by their versions, never none: a try that was outrun may have left one that says
        the same, and anybody a copy."""
        end = f".{number:016x}.json"
        found = sorted((name for name in self._names() if name.endswith(end) and _RECORD.fullmatch(name)), key=_version)
        if not found:
            raise FileNotFoundError(self._where(f"*{end}"))
        return found

    @abstractmethod
    def _where(self, name: str) -> str:
        """The place of a record, for people."""

    @abstractmethod
    def _names(self) -> Iterable[str]:
        """Names of all records and files, also of what a process that died has left."""

    @abstractmethod
    def _read(self, name: str) -> bytes:
        """:raises FileNotFoundError: if it is gone."""

    @abstractmethod
    def _write(self, name: str, data: bytes) -> None:
        """Store the bytes durably; they may be there."""

    @abstractmethod
    def _remove(self, names: Sequence[str]) -> None:
        """Remove what may be gone."""


@dataclass(frozen=True)
class FolderNewest(NewestRecords):
    """:param root: the table's folder."""

    root: Path

    def _where(self, name: str) -> str:
        return str(self._folder / name)

    def _names(self) -> Iterable[str]:
        with contextlib.suppress(FileNotFoundError):
            return [path.name for path in self._folder.iterdir()]
        return ()

    def _read(self, name: str) -> bytes:
        return read_regular(self._folder / name)

    def _write(self, name: str, data: bytes) -> None:
        put_file(self.root, self._folder / name, data)

    def _remove(self, names: Sequence[str]) -> None:
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                (self._folder / name).unlink()

    @property
    def _folder(self) -> Path:
        return self.root / FOLDER


def _version(record: str) -> int:
    return int(record.partition(".")[0])
