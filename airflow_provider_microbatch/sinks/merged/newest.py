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
from collections.abc import Mapping, Sequence
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


@dataclass(frozen=True)
class NewestRecords:
    """:param root: the table's folder."""

    root: Path

    def get(self, number: int) -> Newest:
        """The record of that number.

        :raises FileNotFoundError: if it is gone, as a record is after the next publish.
        :raises SinkError: if it was changed.
        """
        found = self._found(number)[-1]
        data = read_regular(found)
        if number_of(data) != number:
            raise SinkError(f"somebody has changed {found}. Bring it back from a backup. Nothing was published.")
        return Newest(**json.loads(data))

    def version(self, number: int, *, up_to: int) -> int:
        """The version that the record of that number was committed with.

        :param up_to: the table's version. A record of a later one was never committed: somebody has copied it.
        :raises FileNotFoundError: if it is gone.
        """
        found = [version for version in map(_version, self._found(number)) if version <= up_to]
        if not found:
            raise FileNotFoundError(self._folder / f"*.{number:016x}.json")
        return found[-1]

    def put(self, newest: Newest, *, version: int) -> int:
        """Store a record durably, for the commit of that version. :return: its number."""
        data = json.dumps(asdict(newest), sort_keys=True).encode()
        number = number_of(data)
        put_file(self.root, self._folder / f"{version}.{number:016x}.json", data)
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
            named = {own.name, *(path.rpartition("/")[2] for path in self.get(number).files)}
        except FileNotFoundError:
            return  # who has published after it has swept
        for path in self._folder.iterdir():
            found = _OURS.fullmatch(path.name)
            if found is not None and int(found[1]) <= _version(own) and path.name not in named:
                with contextlib.suppress(FileNotFoundError):
                    path.unlink()

    @property
    def _folder(self) -> Path:
        return self.root / FOLDER

    def _found(self, number: int) -> list[Path]:
        """The records of that number, by their versions, never none: a try that was outrun may have left one that says
        the same, and anybody a copy."""
        name = f"*.{number:016x}.json"
        found = sorted((path for path in self._folder.glob(name) if _RECORD.fullmatch(path.name)), key=_version)
        if not found:
            raise FileNotFoundError(self._folder / name)
        return found


def _version(record: Path) -> int:
    return int(record.name.partition(".")[0])
