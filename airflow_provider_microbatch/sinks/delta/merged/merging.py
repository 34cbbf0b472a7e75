"""What one commit does to a table into which changes are merged."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.runtime.changes import DELETED
from airflow_provider_microbatch.sinks.arrow_types import fitted
from airflow_provider_microbatch.sinks.delta.adding import add_of
from airflow_provider_microbatch.sinks.delta.columns import Columns, arrow_schema
from airflow_provider_microbatch.sinks.delta.home import Home
from airflow_provider_microbatch.sinks.delta.log import MERGED, Snapshot
from airflow_provider_microbatch.sinks.delta.removing import check_name, check_no_clone, is_of
from airflow_provider_microbatch.sinks.delta.table import Change
from airflow_provider_microbatch.sinks.merge import Merge
from airflow_provider_microbatch.sinks.merged.files import rewritten, rows_of, rows_with
from airflow_provider_microbatch.sinks.merged.history import History
from airflow_provider_microbatch.sinks.merged.keys import Keys
from airflow_provider_microbatch.sinks.merged.newest import Newest, NewestRecords
from airflow_provider_microbatch.sinks.merged.order import newest
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
    merge: Merge
    records: NewestRecords
    history: History
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
        before = self._before()
        where = f"the changes that are merged into the Delta table {self.home.where}"
        new = columns.missing({"fields": before.fields}, policy="add_columns", where=where)
        fields, files_now, actions = [*before.fields, *new], before.files, list[Any]()
        schema = arrow_schema({"type": "struct", "fields": fields})
        if set(self.merge.keys) <= set(schema.names):  # else no batch has had a frame yet
            keys, put = self._newest_now(key, schema, before, self._came(key, schema, files), out)
            if keys:
                files_now = self._written(before.files, keys, put, schema)
                actions = list(self._actions(keys, put))
        is_known = self.snapshot is not None and self.snapshot.merged is not None
        if is_known and files_now is before.files and not new:
            return Change(actions=actions)
        now = Newest(keys=self.merge.keys, sequence_by=self.merge.sequence_by, fields=fields, files=files_now)
        return Change(actions=actions, transactions={MERGED: self.records.put(now, version=self.version)})

    def _written(self, files: Mapping[str, int], keys: Keys, put: Any, schema: Any) -> Mapping[str, int]:
        """The files of the newest changes, with those of the keys replaced."""
        done = rewritten(
            self.home,
            files,
            without=keys,
            put=put,
            schema=schema,
            name=lambda: self.records.new_file(self.version),
        )
        return {**{path: size for path, size in files.items() if path not in done.gone}, **done.made}

    def _before(self) -> Newest:
        if self.snapshot is None or self.snapshot.merged is None:
            return Newest(keys=self.merge.keys, sequence_by=self.merge.sequence_by, files={})
        return self.records.get(self.snapshot.merged)

    def _newest_now(self, key: BatchKey, schema: Any, before: Newest, came: Any, out: int | None) -> tuple[Keys, Any]:
        """The keys whose newest change becomes another one or none, and these changes."""
        import pyarrow as pa
        import pyarrow.compute as pc

        names = list(self.merge.keys)
        of_keys = pa.schema([schema.field(name) for name in names])
        went = [] if out is None else self.history.files_of(key, out)
        theirs = (rows for path in went for rows in rows_of(self.home, path, of_keys))
        touched = Keys(pa.concat_tables([came.select(names), *theirs]), names)
        current = _whole(rows_with(self.home, before.files, touched, schema), schema)
        is_out = is_of(current, key)
        lost, stays = current.filter(is_out), current.filter(pc.invert(is_out))
        left = list[Any]()
        if lost.num_rows and self.snapshot is not None:
            left = [*self.history.changes(self.snapshot, Keys(lost, names), schema, but=key)]
        best = newest(pa.concat_tables([stays, *left, came]), self.merge)
        moved = Keys(pa.concat_tables([lost, best.filter(is_of(best, key))]), names)
        return moved, best.filter(moved.marks(best))

    def _came(self, key: BatchKey, schema: Any, files: Sequence[str]) -> Any:
        """The newest change of each key that the batch brings. Of the others, none can ever matter: a replay replaces
        them all."""
        import pyarrow.compute as pc

        came = _whole((rows for path in files for rows in rows_of(self.home, path, schema)), schema)
        for name in (*self.merge.keys, *self.merge.sequence_by):
            if count := pc.sum(pc.is_null(came.column(name), nan_is_null=True)).as_py():
                raise SinkError(
                    f"{count:,} of the changes of batch {key} have no value in {name!r}, by "
                    f"which changes are merged into the Delta table {self.home.where}. Nothing was published; have the "
                    "transform leave them out, or give them one."
                )
        return newest(came, self.merge)

    def _actions(self, keys: Keys, put: Any) -> Iterator[Any]:
        """What the commit does to the files that readers look at."""
        import pyarrow.compute as pc
        from deltalake.transaction import RemoveAction

        there = dict(self._files())
        columns = self.shown.schema if self.snapshot is None else self.snapshot.schema
        schema = arrow_schema(columns)
        rows = fitted(put.filter(pc.invert(put.column(DELETED))), schema)
        done = rewritten(
            self.home,
            there,
            without=keys,
            put=rows,
            schema=schema,
            name=lambda: f"{ROWS}{uuid.uuid4().hex}.parquet",
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


def _whole(pieces: Iterator[Any], schema: Any) -> Any:
    import pyarrow as pa

    return pa.concat_tables([schema.empty_table(), *pieces])
