"""The changes of each batch that is in, which a replay or a withdrawal of another one needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.sinks import Manifest
from airflow_provider_microbatch.sinks.merged.files import rows_with
from airflow_provider_microbatch.sinks.merged.keys import Keys
from airflow_provider_microbatch.sinks.placed import HIDDEN
from airflow_provider_microbatch.sinks.placed.data_files import DataFiles
from airflow_provider_microbatch.sinks.placed.places import folder_of_batch, names_in_place
from airflow_provider_microbatch.sinks.placed.records import Records

CHANGES = f"{HIDDEN}/changes"
"""The folder of the changes of all batches."""


@dataclass(frozen=True, kw_only=True)
class History:
    """:param files: of the table.
    :param records: manifests of its batches.
    :param where: the table, for messages.
    :param folder_of: the folder of the changes that a manifest lists, relative to the table's; also takes its number.
    """

    files: DataFiles
    records: Records
    where: str
    folder_of: Callable[[Manifest, int], str]

    def files_of(self, key: BatchKey, number: int) -> list[str]:
        """The files of a batch's changes.

        :param number: number of its manifest.
        :raises SinkError: if a file is not as it was written.
        :raises FileNotFoundError: if one is gone.
        """
        found, manifest = [], self.records.get(key, number)
        for _, now, size in names_in_place(manifest):
            path = f"{self.folder_of(manifest, number)}/{now}"
            if (there := self.files.size(path)) != size:
                raise SinkError(
                    f"{path} of {self.where} has {there} bytes, not {size}: somebody has changed "
                    f"what batch {key} wrote. Bring it back from a backup. Nothing was changed."
                )
            found.append(path)
        return found

    def damage(self, key: BatchKey, number: int) -> str | None:
        """How a batch's changes differ from what was written, in words; None if they do not."""
        try:
            self.files_of(key, number)
        except FileNotFoundError as error:
            return f"a file of its changes is gone ({error})"
        except SinkError as error:
            return str(error)
        return None

    def batches(self, number_of: Callable[[BatchKey], int | None]) -> Iterator[tuple[BatchKey, int]]:
        """All batches that are in, with the numbers of their manifests.

        :param number_of: the number of a batch that is in; None if it is not in.
        """
        for lane in self.records.lanes():
            for id in self.records.ids(lane):
                key = BatchKey(lane, id)
                if (number := number_of(key)) is not None:
                    yield key, number

    def changes(
        self, batches: Iterable[tuple[BatchKey, int]], keys: Keys, schema: Any, *, but: BatchKey
    ) -> Iterator[Any]:
        """The changes of these keys that batches other than ``but`` have brought."""
        for key, number in batches:
            if key != but:
                yield from rows_with(self.files, self.files_of(key, number), keys, schema)


def folder_of_changes(manifest: Manifest, number: int) -> str:
    """The folder of a batch's changes on a file system, for :class:`History`."""
    return f"{folder_of_batch(manifest.key, data=CHANGES)}{number:016x}"
