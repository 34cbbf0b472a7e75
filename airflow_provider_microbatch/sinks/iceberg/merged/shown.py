"""The files of a snapshot that readers look at."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.sinks.iceberg.removing import read
from airflow_provider_microbatch.sinks.placed.data_files import FolderFiles, Footer

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import FileScanTask, Table


class ShownFiles:
    """Files by the paths that the table has of them, without the rows that others have deleted (merge-on-read); and new
    ones below the table's folder.

    :param table: as it is now.
    :param root: the table's folder.
    :param where: the table, for messages.
    """

    def __init__(self, table: Table, root: Path, *, where: str) -> None:
        self._table = table
        self._new = FolderFiles(root)
        self._where = where
        self._tasks = self._planned()

    @property
    def sizes(self) -> Mapping[str, int]:
        """The files of the snapshot, with their bytes."""
        return {path: task.file.file_size_in_bytes for path, task in self._tasks.items()}

    def entry(self, path: str) -> DataFile:
        """What the snapshot says of a file."""
        return self._tasks[path].file

    def source(self, path: str) -> Any:
        from pyiceberg.manifest import FileFormat

        task = self._tasks.get(path)
        if task is None:
            return self._new.source(path)
        if task.delete_files or task.file.file_format != FileFormat.PARQUET or not self._is_read_by_names(task.file):
            return io.BytesIO(self._without_deleted(task))
        return self._table.io.new_input(path).open()

    def size(self, path: str) -> int:
        return self._new.size(path)

    def footer(self, path: str) -> Footer:
        return self._new.footer(path)

    def writing(self, path: str) -> AbstractContextManager[Path]:
        return self._new.writing(path)

    def remove(self, path: str) -> None:
        self._new.remove(path)

    def _is_read_by_names(self, file: DataFile) -> bool:
        """Whether the names in a Parquet file mean the columns that its ids mean. Others' do not always: Iceberg's
        writers put ``order_x2Did`` for ``order-id``, and readers go by the id. Read by names, such a file would have no
        row of any key, or no value there. The files of this sink, and of others who know no ids, have names alone; of
        the latter, those of a partition may lack its columns (as Hive's do), whose values the table has."""
        from pyarrow import parquet
        from pyiceberg.io.pyarrow import schema_to_pyarrow

        with self._table.io.new_input(file.file_path).open() as data:
            found = dict(_ids(parquet.read_schema(data)))
        if not any(found.values()):
            return self._table.specs()[file.spec_id].is_unpartitioned()
        ids = dict(_ids(schema_to_pyarrow(self._table.schema())))
        ours = set(ids.values())
        return all(ids.get(name) == id for name, id in found.items() if name in ids or id in ours)

    def _planned(self) -> Mapping[str, FileScanTask]:
        head = self._table.metadata.current_snapshot_id
        if head is None:
            return {}
        try:
            return {task.file.file_path: task for task in self._table.scan(snapshot_id=head).plan_files()}
        except (ValueError, NotImplementedError) as error:
            raise self._unreadable(error) from error

    def _without_deleted(self, task: FileScanTask) -> bytes:
        """A file of the rows that are left of a file, as Parquet."""
        import pyarrow as pa
        from pyarrow import parquet
        from pyiceberg.expressions import AlwaysTrue
        from pyiceberg.io.pyarrow import schema_to_pyarrow

        schema, data = schema_to_pyarrow(self._table.schema(), include_field_ids=False), io.BytesIO()
        try:
            parts = list(read(self._table, task, AlwaysTrue()))
        except (ValueError, NotImplementedError) as error:
            raise self._unreadable(error) from error
        parquet.write_table(pa.Table.from_batches(parts) if parts else schema.empty_table(), data)
        return data.getvalue()

    def _unreadable(self, error: Exception) -> SinkError:
        return SinkError(
            f"{self._where} has files that cannot be read here: {error}. Compact the table (CALL "
            "system.rewrite_data_files), and run the batch again. Nothing was changed."
        )


def _ids(fields: Iterable[Any], outer: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], bytes | None]]:
    """The ids that Parquet's fields have, those within others too, by their full names; None: it has none."""
    import pyarrow as pa

    for field in fields:
        name, kind = (*outer, field.name), field.type
        yield name, (field.metadata or {}).get(b"PARQUET:field_id")
        if pa.types.is_struct(kind):
            yield from _ids(kind, name)
        elif pa.types.is_map(kind):
            yield from _ids([kind.key_field, kind.item_field], name)
        elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
            yield from _ids([kind.value_field], name)
