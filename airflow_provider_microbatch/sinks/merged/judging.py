"""Which change of a key is the newest when a batch has come in or gone out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.runtime.changes import DELETED
from airflow_provider_microbatch.sinks.merge import Merge
from airflow_provider_microbatch.sinks.merged.files import rewritten, rows_of, rows_with
from airflow_provider_microbatch.sinks.merged.history import History
from airflow_provider_microbatch.sinks.merged.keys import Keys
from airflow_provider_microbatch.sinks.merged.newest import Newest, NewestRecords
from airflow_provider_microbatch.sinks.merged.order import newest
from airflow_provider_microbatch.sinks.merged.versions import versions
from airflow_provider_microbatch.sinks.placed.arrow_types import fitted
from airflow_provider_microbatch.sinks.placed.data_files import DataFiles, is_of


@dataclass(frozen=True, kw_only=True)
class Moved:
    """:param keys: keys whose newest change is another one now, or none; where each version of a key is a row, keys of
        which another change counts than before.
    :param put: these changes, deletions among them, as an Arrow table; where each version is a row, all of these keys.
    """

    merge: Merge
    keys: Keys
    put: Any

    def rows(self, schema: Any) -> Any:
        """What readers of the table get of them."""
        import pyarrow.compute as pc

        merge = self.merge
        if merge.bounds:
            made = versions(self.put, merge, [name for name in schema.names if name not in merge.leave_out])
        else:
            made = self.put.filter(pc.invert(self.put.column(DELETED)))
        # The table may have a column that is left out: from before, or somebody else's of that name.
        return fitted(made.select([name for name in made.column_names if name not in merge.leave_out]), schema)


@dataclass(frozen=True, kw_only=True)
class Judging:
    """One try to bring a batch's changes in or out.

    :param files: of the table.
    :param batches: finds all batches that are in, with the numbers of their manifests.
    :param where: the table, for messages.
    """

    merge: Merge
    files: DataFiles
    records: NewestRecords
    history: History
    batches: Callable[[], Iterable[tuple[BatchKey, int]]]
    where: str

    def before(self, number: int | None) -> Newest:
        """The newest changes as a commit has named them; None: no changes were merged yet.

        :raises FileNotFoundError: if their record is gone.
        """
        if number is None:
            merge = self.merge
            return Newest(keys=merge.keys, sequence_by=merge.sequence_by, bounds=merge.bounds, files={})
        return self.records.get(number)

    def moved(
        self, key: BatchKey, before: Newest, schema: Any, *, files: Sequence[str], out: int | None
    ) -> Moved | None:
        """The keys whose newest change becomes another one or none, and these changes; None if there is no such key.

        :param schema: the columns of all changes, as Arrow has them.
        :param files: files of the changes that come in.
        :param out: number of the manifest of the batch's output that goes out; None if there is none.
        :raises FileNotFoundError: if a file is gone.
        :raises SinkError: if the changes cannot be compared.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        names = list(self.merge.keys)
        if not set(names) <= set(schema.names):
            return None  # no batch has had a frame yet
        came = self._came(key, schema, files)
        of_keys = pa.schema([schema.field(name) for name in names])
        went = [] if out is None else self.history.files_of(key, out)
        theirs = (rows for path in went for rows in rows_of(self.files, path, of_keys))
        touched = Keys(pa.concat_tables([came.select(names), *theirs]), names)
        current = _whole(rows_with(self.files, before.files, touched, schema), schema)
        is_out = is_of(current, key)
        lost, stays = current.filter(is_out), current.filter(pc.invert(is_out))
        left = list[Any]()
        if lost.num_rows:
            left = [*self.history.changes(self.batches(), Keys(lost, names), schema, but=key)]
        best = newest(pa.concat_tables([stays, *left, came]), self.merge)
        moved = Keys(pa.concat_tables([lost, best.filter(is_of(best, key))]), names)
        return Moved(merge=self.merge, keys=moved, put=best.filter(moved.marks(best))) if moved else None

    def recorded(
        self,
        before: Newest,
        moved: Moved | None,
        *,
        number: int | None,
        fields: Sequence[Mapping[str, Any]],
        schema: Any,
        version: int,
    ) -> int:
        """The number of the record of the newest changes of after: that of before, if nothing has become another.

        :param number: of the record of before; None if there is none.
        :param fields: the columns of all changes.
        :param schema: the same, as Arrow has them.
        :param version: the version that they are to be committed with.
        """
        if number is not None and moved is None and list(fields) == list(before.fields):
            return number
        files = before.files if moved is None else self._written(before, moved, schema, version=version)
        return self.records.put(replace(before, fields=fields, files=files), version=version)

    def _written(self, before: Newest, moved: Moved, schema: Any, *, version: int) -> Mapping[str, int]:
        """The files of the newest changes, with those of the moved keys replaced."""
        done = rewritten(
            self.files,
            before.files,
            without=moved.keys,
            put=moved.put,
            schema=schema,
            name=lambda: self.records.new_file(version),
        )
        return {**{path: size for path, size in before.files.items() if path not in done.gone}, **done.made}

    def _came(self, key: BatchKey, schema: Any, files: Sequence[str]) -> Any:
        """The newest change of each key that the batch brings. Of the others, none can ever matter: a replay replaces
        them all."""
        import pyarrow.compute as pc

        came = _whole((rows for path in files for rows in rows_of(self.files, path, schema)), schema)
        for name in (*self.merge.keys, *self.merge.sequence_by):
            if count := pc.sum(pc.is_null(came.column(name), nan_is_null=True)).as_py():
                raise SinkError(
                    f"{count:,} of the changes of batch {key} have no value in {name!r}, by "
                    f"which changes are merged into {self.where}. Nothing was published; have the "
                    "transform leave them out, or give them one."
                )
        return newest(came, self.merge)


def _whole(pieces: Iterator[Any], schema: Any) -> Any:
    import pyarrow as pa

    return pa.concat_tables([schema.empty_table(), *pieces])
