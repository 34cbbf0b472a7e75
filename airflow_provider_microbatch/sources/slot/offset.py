"""Offsets of a slot: places in PostgreSQL's write-ahead log, between two transactions."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Self

from airflow_provider_microbatch.checkpoint.entries import Offset
from airflow_provider_microbatch.runtime.slot import lsn_of, lsn_text
from airflow_provider_microbatch.sources.jdbc.cluster import UNKNOWN, Cluster

_FIELDS = {"lsn", "changes", "table", "of"}


@dataclass(frozen=True, kw_only=True)
class Place:
    """The end of a batch: behind the commit of a transaction, or at a moment when none was being committed.

    :param lsn: all transactions whose commit lies before it have been read.
    :param changes: how many changes the batch has; they are counted when they are read, too.
    :param table: oid of the table; 0 if a user wrote the offset.
    :param cluster: the database cluster whose log it is.
    :param snapshot: whether the batch has the rows of before the slot.
    """

    lsn: int
    changes: int = 0
    table: int = 0
    cluster: Cluster = UNKNOWN
    snapshot: bool = False

    def text(self) -> Offset:
        """The text that the logs store."""
        written: dict[str, Any] = {"lsn": lsn_text(self.lsn)}
        if self.table:
            written |= {"changes": self.changes, "table": self.table, "of": self.cluster.values()}
        if self.snapshot:
            written["snapshot"] = True
        return json.dumps(written)

    @classmethod
    def of(cls, offset: Offset) -> Self:
        """:raises ValueError: if the text is no place."""
        try:
            values: Any = json.loads(offset)
            if not isinstance(values, dict) or values.keys() - {"snapshot"} not in ({"lsn"}, _FIELDS):
                raise TypeError("it has other fields than lsn, changes, table and of; by hand, lsn alone")
            if not isinstance(values["lsn"], str):
                raise TypeError("lsn must be a text, such as 16/B374D848")
            changes, table = values.get("changes", 0), values.get("table", 0)
            if type(changes) is not int or type(table) is not int or changes < 0:
                raise TypeError("changes and table must be whole numbers")
            cluster = Cluster.of(values.get("of", []))
            lsn, snapshot = lsn_of(values["lsn"]), values.get("snapshot") is True
            return cls(lsn=lsn, changes=changes, table=table, cluster=cluster, snapshot=snapshot)
        except (ValueError, TypeError, RecursionError) as error:
            raise ValueError(f"{offset:.200} is no place in a slot: {error}") from error
