"""A table as delta-rs describes it: its identity, its newest version, and its files at a version."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from airflow_provider_microbatch.exceptions import SourceError
from airflow_provider_microbatch.sources.delta.commits import File

if TYPE_CHECKING:
    from deltalake import DeltaTable

_TEXTS = {"string", "long", "integer", "short", "byte", "boolean", "date"}
"""Types of partition columns whose text means the same to every reader."""
_PLAIN = _TEXTS | {"float", "double", "binary", "timestamp", "timestamp_ntz"}
_PARTITION = "partition."
"""What comes before a partition column's name, among the columns by which delta-rs describes files."""
_OF_COLUMNS = {"delta.typeChanges", "__COLLATIONS"}
_MERGED = "microbatch/merged"
"""The application transaction that DeltaSink leaves in a table into which it merges changes."""


class Snapshot:
    """The table at one version.

    :param table: as delta-rs has opened it.
    """

    def __init__(self, table: DeltaTable) -> None:
        self._table = table
        self.version = table.version()

    @property
    def id(self) -> str:
        """Distinguishes this table from another one at the same place."""
        return str(self._table.metadata().id)

    @property
    def properties(self) -> Mapping[str, str]:
        """The table's properties."""
        return self._table.metadata().configuration

    @property
    def has_change_feed(self) -> bool:
        """Whether the log tells how rows change."""
        return has_change_feed(self.properties)

    @property
    def is_merged(self) -> bool:
        """Whether a pipeline merges changes into the table."""
        return self._table.transaction_version(_MERGED) is not None

    @property
    def partition_columns(self) -> tuple[str, ...]:
        """The partition columns, in their order."""
        return tuple(self._table.metadata().partition_columns)

    @cached_property
    def schema(self) -> Mapping[str, Any]:
        """The schema in the JSON form that Delta has from Spark."""
        schema: Mapping[str, Any] = json.loads(self._table.schema().to_json())
        return schema

    @property
    def is_plain(self) -> bool:
        """Whether any Parquet reader that knows the schema and each file's partition reads its files as Delta does."""
        return (
            self.properties.get("delta.columnMapping.mode", "none") == "none"
            and all(_is_plain(column["type"]) for column in self.schema["fields"])
            and not any(f'"{word}"' in json.dumps(self.schema) for word in _OF_COLUMNS)
            and all(
                column["type"] in _TEXTS for column in self.schema["fields"] if column["name"] in self.partition_columns
            )
        )

    def files(self) -> list[File]:
        """All files, always in the same order: that of Spark's own source, the oldest first.

        :raises SourceError: if the log describes them by what is none of its types.
        """
        from deltalake.exceptions import DeltaError

        with _reporting(self._table.table_uri, self.version, DeltaError):
            adds = self._table.get_add_actions(flatten=True)
            # Bounds of columns stay where they are: a table has many, and Python knows not all dates.
            columns = {name: adds.column(name) for name in adds.schema.names}
            count = len(columns["path"])
            read = [columns[name].to_pylist() for name in ("modification_time", "path", "size_bytes")]
            rows = columns["num_records"].to_pylist() if "num_records" in columns else [None] * count
            partitions = {
                name.removeprefix(_PARTITION): _texts(values)
                for name, values in columns.items()
                if name.startswith(_PARTITION)
            }
            partly = self._partly()
        every = zip(*read, rows, range(count), strict=True)
        return [
            File(
                path=path,
                size=size,
                rows=rows_of,
                partition={name: texts[number] for name, texts in partitions.items()},
                is_whole=not partly or _name(path) not in partly,
            )
            for _, path, size, rows_of, number in sorted(every, key=lambda one: one[:2])
        ]

    def _partly(self) -> set[str]:
        """Names of files from which a deletion vector removes rows."""
        if "deletionVectors" not in (self._table.protocol().reader_features or ()):
            return set()
        return {
            _name(path) for batch in self._table.deletion_vectors() for path in batch.column("filepath").to_pylist()
        }


def has_change_feed(properties: Mapping[str, str]) -> bool:
    """Whether a table with these properties tells how rows change."""
    return properties.get("delta.enableChangeDataFeed", "false").lower() == "true"


def snapshot_of(root: str, version: int | None = None) -> Snapshot:
    """Return the table as it is now, or at a version.

    :param root: its folder.
    :raises SourceError: if there is no table, or its log no longer tells that version.
    """
    try:
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError
    except ImportError as error:
        raise SourceError(
            "deltalake is not installed, which plans for Delta tables. Run: pip install "
            "'airflow-provider-microbatch[delta]'"
        ) from error
    if not Path(root, "_delta_log").is_dir():
        raise SourceError(f"{root} is no Delta table: it has no folder _delta_log. Mount it, or correct the path.")
    with _reporting(root, version, DeltaError):
        return Snapshot(DeltaTable(Path(root).as_uri(), version=version))


@contextmanager
def _reporting(root: str, version: int | None, kind: type[Exception]) -> Iterator[None]:
    at = "" if version is None else f" at version {version}"
    try:
        yield
    except (kind, OSError, ValueError) as error:
        raise SourceError(f"the Delta table {root} cannot be read{at}: {' '.join(str(error).split())}") from error


def _is_plain(kind: Any) -> bool:
    if isinstance(kind, str):
        return kind in _PLAIN or kind.startswith("decimal(")
    if kind["type"] == "struct":
        return all(_is_plain(column["type"]) for column in kind["fields"])
    if kind["type"] == "array":
        return _is_plain(kind["elementType"])
    return kind["type"] == "map" and _is_plain(kind["keyType"]) and _is_plain(kind["valueType"])


def _texts(values: Any) -> list[str | None]:
    """A partition's values as the log has them.

    :param values: an array of Arrow's.
    """
    from arro3.core import DataType

    if DataType.is_temporal(values.type):  # Python's dates end at the year 9999
        values = values.cast(DataType.utf8())
    return [
        None if one is None else str(one).lower() if isinstance(one, bool) else str(one) for one in values.to_pylist()
    ]


def _name(path: str) -> str:
    return unquote(path).rpartition("/")[2]
