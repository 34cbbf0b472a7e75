"""Parquet files by the keys of their rows: which have some of them, and files that are written anew without these."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from airflow_provider_microbatch.sinks.merged.keys import Keys
from airflow_provider_microbatch.sinks.placed.arrow_types import fitted
from airflow_provider_microbatch.sinks.placed.data_files import DataFiles

_ROWS = 65_536
_GROUP_BYTES = 32 * 1024**2
_FILE_BYTES = 512 * 1024**2
"""Sizes of a row group and of a file, in memory; on disk they are a fraction of it."""
SMALL_BYTES = 4 * 1024**2
MANY = 16
"""So many small files are joined when a file is written anyway: each publish leaves one."""


@dataclass(frozen=True, kw_only=True)
class Rewritten:
    """:param gone: files whose rows are in other files now, or nowhere.
    :param made: the new files, with their bytes.
    """

    gone: Sequence[str]
    made: Mapping[str, int]


def rows_of(files: DataFiles, path: str, schema: Any) -> Iterator[Any]:
    """All rows of a file, a piece at a time, with the columns of the schema."""
    import pyarrow as pa

    with _opened(files, path) as file:
        names = [name for name in file.schema_arrow.names if name in schema.names]
        for part in file.iter_batches(batch_size=_ROWS, columns=names):
            yield fitted(pa.Table.from_batches([part]), schema)


def rows_with(files: DataFiles, paths: Iterable[str], keys: Keys, schema: Any) -> Iterator[Any]:
    """The rows of files that have one of the keys, a piece at a time."""
    for path in paths:
        marks = _marks(files, path, keys)
        if marks is not None:
            yield from _filtered(files, path, marks, schema)


def rewritten(
    files: DataFiles,
    there: Mapping[str, int],
    *,
    without: Keys,
    put: Any,
    schema: Any,
    name: Callable[[], str],
    may_go: Callable[[str], bool] = lambda path: True,
) -> Rewritten:
    """Write what the files have without the rows of these keys, and rows in place of those, to new files.

    :param there: paths, with their bytes.
    :param put: the rows that come in, as an Arrow table.
    :param name: makes a path for a new file.
    :param may_go: whether a file that has none of the keys may be joined with others.
    """
    import pyarrow.compute as pc

    marked = {path: marks for path in there if (marks := _marks(files, path, without)) is not None}
    small = [path for path, size in there.items() if size < SMALL_BYTES and path not in marked and may_go(path)]
    joined = small if len(small) >= MANY else []

    def pieces() -> Iterator[Any]:
        for path, marks in marked.items():
            yield from _filtered(files, path, pc.invert(marks), schema)
        for path in joined:
            yield from rows_of(files, path, schema)
        yield put

    return Rewritten(gone=[*marked, *joined], made=_written(files, pieces(), schema, name))


@contextmanager
def _opened(files: DataFiles, path: str) -> Iterator[Any]:
    from pyarrow import parquet

    # Others may have stored times in 96 bits, which Arrow would read as nanoseconds: these end in the year 2262.
    with parquet.ParquetFile(files.source(path), coerce_int96_timestamp_unit="us") as file:
        yield file


def _marks(files: DataFiles, path: str, keys: Keys) -> Any:
    """For each row of a file whether it has one of the keys; None if none has."""
    with _opened(files, path) as file:
        if not keys.may_be_in(file.metadata):
            return None
        marks = keys.marks(fitted(file.read(columns=keys.names), keys.schema))
        return marks if marks.true_count else None


def _filtered(files: DataFiles, path: str, marks: Any, schema: Any) -> Iterator[Any]:
    at = 0
    for rows in rows_of(files, path, schema):
        yield rows.filter(marks.slice(at, rows.num_rows))
        at += rows.num_rows


def _written(files: DataFiles, pieces: Iterable[Any], schema: Any, name: Callable[[], str]) -> dict[str, int]:
    """New files of these rows, with their bytes."""
    from pyarrow import parquet

    made = dict[str, int]()
    groups = _groups(pieces)
    group = next(groups, None)
    while group is not None:
        path, size = name(), 0
        with files.writing(path) as target, parquet.ParquetWriter(target, schema, compression="snappy") as writer:
            while group is not None and size < _FILE_BYTES:
                writer.write_table(group)
                size += group.nbytes
                group = next(groups, None)
        made[path] = files.size(path)
    return made


def _groups(pieces: Iterable[Any]) -> Iterator[Any]:
    """The rows as tables of the size of a row group."""
    import pyarrow as pa

    held, size = list[Any](), 0
    for piece in pieces:
        if piece.num_rows:
            held.append(piece)
            size += piece.nbytes
        if size >= _GROUP_BYTES:
            yield pa.concat_tables(held)
            held, size = [], 0
    if held:
        yield pa.concat_tables(held)
