"""The changes of each batch that is in, which a replay or a withdrawal of another one needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.sinks import Manifest
from airflow_provider_microbatch.sinks.delta.home import Home
from airflow_provider_microbatch.sinks.delta.log import Snapshot
from airflow_provider_microbatch.sinks.delta.merged.files import rows_with
from airflow_provider_microbatch.sinks.delta.merged.keys import Keys
from airflow_provider_microbatch.sinks.placed import HIDDEN
from airflow_provider_microbatch.sinks.placed.places import names_in_place
from airflow_provider_microbatch.sinks.placed.records import Records

CHANGES = f"{HIDDEN}/changes"
"""The folder of the changes of all batches."""


@dataclass(frozen=True)
class History:
    """:param home: where the table lies.
    :param records: manifests of its batches.
    :param folder_of: the folder of the changes that a manifest lists, relative to the table's; also takes its number.
    """

    home: Home
    records: Records
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
            if (there := self.home.size(path)) != size:
                raise SinkError(
                    f"{path} of the Delta table {self.home.where} has {there} bytes, not {size}: somebody has changed "
                    f"what batch {key} wrote. Bring it back from a backup. Nothing was changed."
                )
            found.append(path)
        return found

    def batches(self, snapshot: Snapshot) -> Iterator[tuple[BatchKey, int]]:
        """All batches that are in, with the numbers of their manifests."""
        for lane in self.records.lanes():
            for id in self.records.ids(lane):
                key = BatchKey(lane, id)
                if (number := snapshot.number(key)) is not None:
                    yield key, number

    def changes(self, snapshot: Snapshot, keys: Keys, schema: Any, *, but: BatchKey) -> Iterator[Any]:
        """The changes of these keys that batches other than ``but`` have brought."""
        for key, number in self.batches(snapshot):
            if key != but:
                yield from rows_with(self.home, self.files_of(key, number), keys, schema)
