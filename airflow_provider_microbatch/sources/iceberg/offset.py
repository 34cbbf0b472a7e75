"""Positions in a branch of an Iceberg table, in the format of Spark's own Iceberg source."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Self

from airflow_provider_microbatch.checkpoint.entries import Offset
from airflow_provider_microbatch.sources.stretch import BEFORE_ITS_FILES
from airflow_provider_microbatch.sources.versions import TablePlace

NO_SNAPSHOT = -1
"""The id of the snapshot before the first, as in Spark's source."""

_KNOWN = {"version", "snapshot_id", "position", "scan_all_files", "sequence_number", "table"}


@dataclass(frozen=True, kw_only=True)
class Place(TablePlace):
    """A sequence number, the snapshot that was read last, and the table's id.

    :param snapshot: the id of the last snapshot that has been read, completely or in part.
    """

    snapshot: int

    @property
    def sequence(self) -> int:
        """The sequence number of the snapshot."""
        return self.version if self.in_snapshot else self.version - 1

    def text(self) -> Offset:
        """Return the text that the logs store."""
        values: dict[str, Any] = {
            "version": 1,
            "snapshot_id": self.snapshot,
            # Number of files of the snapshot that are read; without a meaning for a snapshot that is read as a whole.
            "position": self.index + 1,
            "scan_all_files": self.in_snapshot,
            "sequence_number": self.sequence,
            "table": self.table,
        }
        return json.dumps({key: value for key, value in values.items() if value is not None}, separators=(",", ":"))

    @classmethod
    def of(cls, offset: Offset) -> Self:
        """:raises ValueError: if the text is not a place."""
        try:
            values: Any = json.loads(offset)
            needed = {"snapshot_id", "sequence_number"}
            if not isinstance(values, dict) or values.keys() - _KNOWN or needed - values.keys():
                raise TypeError(
                    'by hand, a position is {"snapshot_id": 7, "sequence_number": 3}: with that snapshot, and all '
                    "before it, read"
                )
            if values.get("version", 1) != 1:
                raise TypeError(f"version {values['version']!r} is not known")
            in_snapshot, position = values.get("scan_all_files", False), values.get("position", 0)
            sequence, snapshot = values["sequence_number"], values["snapshot_id"]
            if {type(position), type(sequence), type(snapshot)} != {int} or type(in_snapshot) is not bool:
                raise TypeError("ids, positions and sequence numbers are whole numbers")
            if position < 0 or sequence < 0 or not isinstance(values.get("table"), (str, type(None))):
                raise TypeError("no position is below 0, and the table's uuid is a text")
        except (ValueError, TypeError) as error:
            raise ValueError(f"{offset:.200} is no place in an Iceberg table: {error}") from error
        return cls(
            version=sequence if in_snapshot else sequence + 1,
            index=position - 1 if in_snapshot else BEFORE_ITS_FILES,
            in_snapshot=in_snapshot,
            snapshot=snapshot,
            table=values.get("table"),
        )
