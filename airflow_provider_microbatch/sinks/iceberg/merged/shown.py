"""The files of a snapshot that readers look at."""

from __future__ import annotations

import io
from collections.abc import Mapping
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
        if task.delete_files or task.file.file_format != FileFormat.PARQUET:
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
