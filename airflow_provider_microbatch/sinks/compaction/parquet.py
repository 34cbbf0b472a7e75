"""Joins Parquet files without a JVM, by Arrow. Only files that one writer wrote with the same columns are joined, and
what comes out is read back and compared: a reader finds each value in the same type as before, or nothing is joined."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.registry import DISTRIBUTION
from airflow_provider_microbatch.sinks.compaction.writer_name import rename_writer
from airflow_provider_microbatch.sinks.file.reading import open_regular

_GROUP_BYTES = 64 * 1024 * 1024
"""Rows are held in memory up to this size, and written as one row group."""
_ROWS = 4_096
"""Rows that are read at once, unless they are large."""
_TEXT = "BYTE_ARRAY"
"""How Parquet stores values of any length."""
_ARROW = b"ARROW:schema"
"""How Arrow would spell the columns: other readers go by the file's own schema, and Arrow has to do so too."""


class ParquetJoining:
    """:raises SinkError: if Arrow is not installed."""

    def __init__(self) -> None:
        try:
            import pyarrow.parquet  # noqa: F401
        except ImportError as error:
            raise SinkError(
                f"Parquet files are joined by pyarrow, which is not installed ({error}). Run: pip install "
                f"'{DISTRIBUTION}[delta]'"
            ) from error

    def kind(self, file: Path) -> Hashable:
        return self.kind_of(file, name=str(file))

    def kind_of(self, source: Any, *, name: str) -> Hashable:
        """The same of a path or an open file.

        :param name: for people.
        """
        with _told(f"{name} cannot be read as Parquet"), ExitStack() as stack:
            found = _opened(stack, source)
            # Spark's own notes too: they say how old dates and times are meant.
            notes = tuple(sorted(_notes(found).items()))
            columns = str(found.schema).partition("\n")[2]  # the first line has an address in memory
            return columns, notes, _codec(found), _writer(found)

    def join(self, files: Sequence[Path], target: Path) -> None:
        from pyarrow import parquet

        with _told(f"{files[0]} and {len(files) - 1} others beside it cannot be joined"):
            with ExitStack() as stack:
                first = _opened(stack, files[0])
                given = {"store_decimal_as_integer": True} if _has(first, "Decimal", "INT32", "INT64") else {}
                writer = stack.enter_context(
                    parquet.ParquetWriter(
                        target,
                        first.schema_arrow.remove_metadata(),
                        compression=_codec(first),
                        store_schema=False,
                        use_deprecated_int96_timestamps=_has(first, "", "INT96"),
                        write_page_index=True,
                        **given,
                    )
                )
                for table in _row_groups(files):
                    writer.write_table(table, row_group_size=table.num_rows)
                writer.add_key_value_metadata(_notes(first))
                name = _writer(first)
            if name is not None:
                rename_writer(target, name, before=_created_by(target))
            _check_same(files, target)


@contextmanager
def _told(what: str) -> Iterator[None]:
    """Raise Arrow's errors of what is in a file as errors of the sink. Those of the file system stay: they have a
    number."""
    from pyarrow import ArrowException

    try:
        yield
    except (ArrowException, UnicodeDecodeError) as error:
        raise SinkError(f"{what}: {error}") from error
    except OSError as error:
        if error.errno is not None:
            raise
        raise SinkError(f"{what}: {error}") from error


def _opened(stack: ExitStack, source: Any, **options: Any) -> Any:
    from pyarrow import parquet

    held = stack.enter_context(open_regular(source) if isinstance(source, Path) else source)
    # Spark may store times in 96 bits, which Arrow would read as nanoseconds: these end in the year 2262.
    return stack.enter_context(parquet.ParquetFile(held, coerce_int96_timestamp_unit="us", **options))


def _notes(file: Any) -> dict[bytes, bytes]:
    return {key: value for key, value in (file.metadata.metadata or {}).items() if key != _ARROW}


def _writer(file: Any) -> str | None:
    """The writer's name, if readers may read values by it: times of 96 bits. Of other columns it says nothing, and a
    joined file of a Delta table may be joined with files of Spark's once more."""
    return str(file.metadata.created_by) if _has(file, "", "INT96") else None


def _created_by(path: Path) -> str:
    with ExitStack() as stack:
        return str(_opened(stack, path).metadata.created_by)


def _codec(file: Any) -> str:
    if not file.metadata.num_row_groups or not file.metadata.num_columns:
        return "snappy"
    found = str(file.metadata.row_group(0).column(0).compression)
    return "none" if found == "UNCOMPRESSED" else found.lower()


def _has(file: Any, logical: str, *physical: str) -> bool:
    columns = (file.schema.column(index) for index in range(len(file.schema)))
    return any(one.physical_type in physical and str(one.logical_type).startswith(logical) for one in columns)


def _row_groups(files: Sequence[Path]) -> Iterator[Any]:
    """The rows of the files in their order, in tables of the size of a row group: the same ones each time."""
    held, size = list[Any](), 0
    for path in files:
        with ExitStack() as stack:
            file = _opened(stack, path)
            for part in file.iter_batches(batch_size=_rows_at_once(stack, path, _texts(file))):
                held.append(part)
                size += part.nbytes
                if size >= _GROUP_BYTES:
                    yield _table(held)
                    held, size = [], 0
    if held:
        yield _table(held)


def _rows_at_once(stack: ExitStack, path: Path, columns_of_texts: Sequence[str]) -> int:
    """So many rows as have the size of a row group: huge values may take hardly any room in a file that is packed."""
    rows, texts = _ROWS, _opened(stack, path, read_dictionary=list(columns_of_texts))
    for index in range(texts.metadata.num_row_groups):
        group = texts.metadata.row_group(index)
        count = max(group.num_rows, 1)
        columns = [group.column(number) for number in range(group.num_columns)]
        size = sum(
            _largest(texts, index, one.path_in_schema) * max(one.num_values // count, 1)
            for one in columns
            if one.physical_type == _TEXT and one.has_dictionary_page
        )
        rows = min(rows, _GROUP_BYTES * count // max(group.total_byte_size, 1), 4 * _GROUP_BYTES // max(size, 1))
    return max(rows, 1)


def _texts(file: Any) -> list[str]:
    columns = (file.schema.column(index) for index in range(len(file.schema)))
    return [one.path for one in columns if one.physical_type == _TEXT]


def _largest(texts: Any, group: int, column: str) -> int:
    """Bytes of the largest value of a column's dictionary, which stands there once for all its rows. The size of the
    column does not tell: most dictionaries have many small ones."""
    import pyarrow as pa
    import pyarrow.compute as pc

    largest = 0
    for part in texts.iter_batches(row_groups=[group], columns=[column]):
        values = part.column(0)
        while pa.types.is_nested(values.type):
            values = values.field(0) if pa.types.is_struct(values.type) else values.values
        if pa.types.is_dictionary(values.type):
            largest = max(largest, pc.max(pc.binary_length(values.dictionary)).as_py() or 0)
    return largest


def _table(parts: Sequence[Any]) -> Any:
    import pyarrow as pa

    # Without metadata: files of one kind may differ in how Arrow would spell their columns.
    return pa.Table.from_batches([part.replace_schema_metadata(None) for part in parts]).combine_chunks()


def _check_same(files: Sequence[Path], target: Path) -> None:
    """:raises SinkError: if the joined file does not hold just the rows of the files, in just their types."""
    with ExitStack() as stack:
        joined, first = _opened(stack, target), _opened(stack, files[0])
        if not joined.schema.equals(first.schema):
            raise SinkError(
                "the columns are stored as Arrow does not store them, so that readers could find other types: "
                f"{_first_difference(first.schema, joined.schema)}"
            )
        if (_notes(joined), _writer(joined)) != (_notes(first), _writer(first)):
            raise SinkError(f"{target} has not got the notes and the name of its writer that {files[0]} has")
        index = 0
        for table in _row_groups(files):
            if not _same(table, joined.read_row_group(index)):
                raise SinkError(
                    f"what Arrow reads back of {files[0]} is not what it wrote: a value that it cannot store"
                )
            index += 1
        if index != joined.num_row_groups:
            raise SinkError(f"{target} has other rows than the files that it was joined of")


def _first_difference(before: Any, after: Any) -> str:
    for index in range(min(len(before), len(after))):
        one, other = before.column(index), after.column(index)
        if str(one) != str(other):
            return f"column {one.path!r} is {one.physical_type}, {one.logical_type} and would be " + (
                f"{other.physical_type}, {other.logical_type}"
            )
    return "the columns of nested types"


def _same(one: Any, other: Any) -> bool:
    return one.num_rows == other.num_rows and all(
        _same_values(mine.combine_chunks(), theirs.combine_chunks())
        for mine, theirs in zip(one.columns, other.columns, strict=True)
    )


def _same_values(one: Any, other: Any) -> bool:
    """Whether two arrays are equal, where a number that is none (NaN) equals itself."""
    import pyarrow as pa
    import pyarrow.compute as pc

    one, other = (part.combine_chunks() if isinstance(part, pa.ChunkedArray) else part for part in (one, other))
    if one.equals(other):
        return True
    kind = one.type
    if kind != other.type or len(one) != len(other) or not one.is_null().equals(other.is_null()):
        return False
    if pa.types.is_floating(kind):
        unequal = pc.not_equal(one, other)
        return not pc.any(pc.and_(unequal, pc.invert(pc.and_(pc.is_nan(one), pc.is_nan(other))))).as_py()
    if pa.types.is_struct(kind):
        return all(
            _same_values(pc.struct_field(one, index), pc.struct_field(other, index)) for index in range(kind.num_fields)
        )
    if pa.types.is_map(kind):
        return one.offsets.equals(other.offsets) and all(
            _same_values(mine, theirs) for mine, theirs in ((one.keys, other.keys), (one.items, other.items))
        )
    if pa.types.is_list(kind):
        return pc.list_value_length(one).equals(pc.list_value_length(other)) and _same_values(
            one.flatten(), other.flatten()
        )
    return False
