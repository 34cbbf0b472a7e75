"""What one commit does to a table into which changes are merged."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.sinks.delta.adding import add_of
from airflow_provider_microbatch.sinks.delta.change import Change
from airflow_provider_microbatch.sinks.delta.columns import Columns, arrow_schema
from airflow_provider_microbatch.sinks.delta.home import Home
from airflow_provider_microbatch.sinks.delta.log import MERGED, Snapshot
from airflow_provider_microbatch.sinks.delta.removing import NAMEABLE, check_name, check_no_clone
from airflow_provider_microbatch.sinks.merged.files import rewritten
from airflow_provider_microbatch.sinks.merged.judging import Judging, Moved
from airflow_provider_microbatch.sinks.placed.places import DATA

ROWS = f"{DATA}/merged/"
"""The folder of the files that readers look at. VACUUM has to find those that the log no longer names."""


@dataclass(frozen=True, kw_only=True)
class Merging:
    """One try to bring a batch's changes in or out.

    :param home: where the table lies.
    :param snapshot: the table as it is; None if it is to be made.
    :param shown: the columns that readers get, if the table is to be made.
    """

    home: Home
    judging: Judging
    snapshot: Snapshot | None
    shown: Columns

    @property
    def version(self) -> int:
        """The version that the commit makes."""
        return 0 if self.snapshot is None else self.snapshot.version + 1

    def change(self, key: BatchKey, columns: Columns, *, files: Sequence[str], out: int | None) -> Change:
        """:param columns: the columns of the changes that come in.
        :param files: their files.
        :param out: number of the manifest of the batch's output that goes out; None if there is none.
        :raises FileNotFoundError: if a file is gone, as one is after another publish.
        :raises SinkError: if the changes cannot be compared.
        """
        number = None if self.snapshot is None else self.snapshot.merged
        before = self.judging.before(number)
        where = f"the changes that are merged into {self.judging.where}"
        new = columns.missing({"fields": before.fields}, policy="add_columns", where=where)
        fields = [*before.fields, *new]
        schema = arrow_schema({"type": "struct", "fields": fields})
        moved = self.judging.moved(key, before, schema, files=files, out=out)
        now = self.judging.recorded(before, moved, number=number, fields=fields, schema=schema, version=self.version)
        return Change(
            actions=[] if moved is None else list(self._actions(moved)),
            transactions={} if now == number else {MERGED: now},
        )

    def _actions(self, moved: Moved) -> Iterator[Any]:
        """What the commit does to the files that readers look at."""
        from deltalake.transaction import RemoveAction

        there = dict(self._files())
        schema = arrow_schema(self.shown.schema if self.snapshot is None else self.snapshot.schema)
        done = rewritten(
            self.home,
            there,
            without=moved.keys,
            put=moved.rows(schema),
            schema=schema,
            name=lambda: f"{ROWS}{uuid.uuid4().hex}.parquet",
            may_go=lambda path: NAMEABLE.fullmatch(path) is not None,
        )
        for path in done.gone:
            check_name(path, where=self.home.where)
            yield RemoveAction(path, True, time.time_ns() // 1_000_000, there[path], {})
        for path in done.made:
            if (add := add_of(self.home, path, {})) is not None:
                yield add

    def _files(self) -> Iterator[tuple[str, int]]:
        """The files that readers look at now, with their bytes."""
        for file in () if self.snapshot is None else self.snapshot.files("path", "size_bytes"):
            path = unquote(file["path"])
            check_no_clone(path, where=self.home.where)
            yield path, file["size_bytes"]
