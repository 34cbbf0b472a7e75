"""Positions in a Delta table, in the format of Spark's own Delta source."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Self

from airflow_provider_microbatch.checkpoint.entries import Offset
from airflow_provider_microbatch.sources.stretch import BEFORE_ITS_FILES
from airflow_provider_microbatch.sources.versions import TablePlace

_KNOWN = {"sourceVersion", "reservoirId", "reservoirVersion", "index", "isStartingVersion", "commit"}


@dataclass(frozen=True, kw_only=True)
class Place(TablePlace):
    """A version of the log, and the id of its table.

    :param commit: a digest of the newest commit of which anything is read, which detects another history under the same
        numbers; None if the commit was not there to be read.
    """

    commit: str | None = None

    @property
    def pinned(self) -> int:
        """The version of the commit that ``commit`` is a digest of."""
        return self.version if self.in_snapshot or self.is_within else self.version - 1

    @property
    def is_within(self) -> bool:
        """Whether the files that ``version`` has added are read in part."""
        return not self.in_snapshot and self.index != BEFORE_ITS_FILES

    def text(self) -> Offset:
        """Return the text that the logs store."""
        values: dict[str, Any] = {
            "sourceVersion": 1,
            "reservoirId": self.table,
            "reservoirVersion": self.version,
            "index": self.index,
            "isStartingVersion": self.in_snapshot,
            "commit": self.commit,
        }
        return json.dumps({key: value for key, value in values.items() if value is not None}, separators=(",", ":"))

    @classmethod
    def of(cls, offset: Offset) -> Self:
        """:raises ValueError: if the text is not a place."""
        try:
            values: Any = json.loads(offset)
            if not isinstance(values, dict) or values.keys() - _KNOWN or "reservoirVersion" not in values:
                raise TypeError('by hand, a position is {"reservoirVersion": 7}: with all before version 7 read')
            if values.get("sourceVersion", 1) != 1:
                raise TypeError(f"sourceVersion {values['sourceVersion']!r} is not known")
            place = cls(
                version=values["reservoirVersion"],
                index=values.get("index", BEFORE_ITS_FILES),
                in_snapshot=values.get("isStartingVersion", False),
                table=values.get("reservoirId"),
                commit=values.get("commit"),
            )
            kinds = type(place.version), type(place.index), type(place.in_snapshot)
            if kinds != (int, int, bool) or place.version < 0 or place.index < BEFORE_ITS_FILES:
                raise TypeError("version and index are whole numbers, from 0 and from -1")
            if not all(isinstance(text, (str, type(None))) for text in (place.table, place.commit)):
                raise TypeError("the table's id and the commit's digest are texts")
        except (ValueError, TypeError) as error:
            raise ValueError(f"{offset:.200} is no place in a Delta table: {error}") from error
        return place
