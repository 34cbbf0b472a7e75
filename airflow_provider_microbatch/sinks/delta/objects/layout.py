"""The layout of a Delta table in an object store: keys below the table's key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from airflow_provider_microbatch.sinks.file.objects.layout import Written
from airflow_provider_microbatch.sinks.placed import HIDDEN
from airflow_provider_microbatch.sinks.placed.places import DATA, folder_of_batch

RECORDS = f"{HIDDEN}/batches"
"""The folder of the manifests of batches."""

PLAIN = "plain"
"""Below an attempt's folder: the files whose names from Spark have special signs, copied under other names."""


@dataclass(frozen=True, order=True)
class InDelta(Written):
    """The output of one attempt. Its files lie below the batch's folder from the beginning, and not in a hidden one:
    VACUUM has to find what the log no longer names."""

    marked_in: ClassVar[str] = f"{HIDDEN}/"
    data: ClassVar[str] = DATA
    """The folder of the files of all batches."""

    @classmethod
    def of_file(cls, path: str) -> Self | None:
        """The output that a data file of the table is a part of; None if it is another file's path."""
        folder, *found = path.split("/", 3)
        return cls.at("lane={}/batch_id={}/{}".format(*found)) if folder == DATA and len(found) == 3 else None

    @property
    def folder(self) -> str:
        return f"{folder_of_batch(self.key, data=self.data)}{self.name.rpartition('/')[2]}"
