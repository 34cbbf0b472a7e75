"""The data files of a table: how they are read and written, wherever the table lies."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from airflow_provider_microbatch.checkpoint.key import BatchKey, is_name, is_whole
from airflow_provider_microbatch.sinks.file.arguments import RESERVED_COLUMNS
from airflow_provider_microbatch.sinks.file.posix import check_no_link, make_folders, sync


@dataclass(frozen=True, kw_only=True)
class Footer:
    """What is known of a data file without its rows.

    :param size: in bytes.
    :param modified_ms: when it was written, milliseconds since the epoch.
    :param metadata: as Arrow reads it.
    """

    size: int
    modified_ms: int
    metadata: Any


class DataFiles(Protocol):
    """The data files of a table. All paths are relative to the table's folder."""

    def source(self, path: str) -> Any:
        """The data file, as Arrow takes it: a path or an open file.

        :raises FileNotFoundError: if it is gone; who reads an open file meets that, too.
        """

    def size(self, path: str) -> int:
        """Bytes of a data file. :raises FileNotFoundError: if it is gone."""

    def footer(self, path: str) -> Footer:
        """What is known of a data file without its rows. :raises FileNotFoundError: if it is gone."""

    def writing(self, path: str) -> AbstractContextManager[Path]:
        """A place for Arrow to write a new data file to. If the context ends without an error, the file is there
        durably."""

    def remove(self, path: str) -> None:
        """Remove a data file that no commit names, as far as that can be done."""


@dataclass(frozen=True)
class FolderFiles:
    """The data files of a table on a file system.

    :param root: the table's folder.
    """

    root: Path

    def source(self, path: str) -> Path:
        return self.root / path

    def size(self, path: str) -> int:
        return (self.root / path).stat().st_size

    def footer(self, path: str) -> Footer:
        from pyarrow import parquet

        file = self.root / path
        found = file.stat()
        return Footer(
            size=found.st_size, modified_ms=found.st_mtime_ns // 1_000_000, metadata=parquet.read_metadata(file)
        )

    @contextlib.contextmanager
    def writing(self, path: str) -> Iterator[Path]:
        file = self.root / path
        check_no_link(self.root, file.parent)
        make_folders(file.parent)
        yield file
        sync(file)
        sync(file.parent)

    def remove(self, path: str) -> None:
        with contextlib.suppress(OSError):
            (self.root / path).unlink()


def is_of(table: Any, key: BatchKey) -> Any:
    """A mask of the rows that are the batch's."""
    import pyarrow.compute as pc

    lane, number = RESERVED_COLUMNS
    found = pc.and_(pc.equal(table.column(lane), key.lane), pc.equal(table.column(number), key.id))
    return pc.fill_null(found, False).combine_chunks()


def rows_by_batch(table: Any) -> Counter[BatchKey]:
    """How many of the rows are of each batch; others are of none."""
    found, (lane, number) = Counter[BatchKey](), RESERVED_COLUMNS
    for one in table.group_by([lane, number]).aggregate([([], "count_all")]).to_pylist():
        if is_name(one[lane]) and is_whole(one[number]) and one[number] >= 0:
            found[BatchKey(one[lane], one[number])] += one["count_all"]
    return found
