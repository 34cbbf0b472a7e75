"""Features that a table requires of its writers, and that plain Parquet files from Spark do not provide. A table that
requires any of them is refused by name, before anything runs: https://iceberg.apache.org/spec/
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.runtime.intake import needs
from airflow_provider_microbatch.sinks.iceberg.columns import is_of_spark
from airflow_provider_microbatch.sinks.iceberg.look import MERGED
from airflow_provider_microbatch.sinks.iceberg.partitions import Partition, told_of

if TYPE_CHECKING:
    from pathlib import Path

    from pyiceberg.schema import Schema
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.name_mapping import MappedField

NAMES = "schema.name-mapping.default"
"""Spark's plain Parquet has names of columns, but not Iceberg's ids: this property maps names to ids."""


def check(table: Table, *, partitions: Sequence[Partition], root: Path, where: str, held: Collection[str] = ()) -> None:
    """Check that files can be added to the table as it is.

    :param partitions: the partition fields in the sink's definition.
    :param root: the table's folder in the sink's definition.
    :param held: the table's rules for rows that the rows of the files are held against, row by row.
    :raises SinkError: naming what cannot be written, and the way on.
    """
    metadata = table.metadata
    place = plain_path(metadata.location)
    if place != str(root):
        raise SinkError(f"{where} is at {metadata.location}: IcebergSink(…, path={place!r}). Nothing was written.")
    found = list(_unwritable(metadata, held))
    if found:
        raise SinkError(
            f"{where} cannot be written: it has {', '.join(found)}, which files that Spark has written as plain "
            "Parquet do not honour. Change the table (ALTER TABLE …), or give the pipeline another one. (Rows are held "
            "against NOT NULL where the pipeline has dead_letters=….) Nothing was written."
        )
    told = told_of(metadata.spec(), metadata.schema())
    if told != [str(one) for one in partitions]:
        raise SinkError(
            f"{where} is partitioned by {told}, and the sink says {[str(one) for one in partitions]}: "
            f"IcebergSink(…, partition_by={told}). Nothing was written."
        )


def check_not_merged(table: Table, *, where: str) -> None:
    """:raises SinkError: if changes are merged into the table: the next change of a key would take an added row away,
    and nobody could take out the changes of a batch."""
    if MERGED in table.metadata.properties:
        raise SinkError(
            f"changes are merged into {where}. Give the sink its merge=… again, or write to another table. Nothing was "
            "written."
        )


def check_may_merge(table: Table, *, where: str) -> None:
    """:raises SinkError: if a merge could not write rows of the table anew as they are."""
    schema = table.schema()
    told = told_of(table.metadata.spec(), schema)
    if told:
        raise SinkError(
            f"changes cannot be merged into {where}, which is partitioned by {told}. Nothing was written; give the "
            "pipeline a table without partitions."
        )
    kinds = {name: schema.find_field(id).field_type for name, id in sorted(_columns(schema).items())}
    odd = [f"{name} ({kind})" for name, kind in kinds.items() if kind.is_primitive and not is_of_spark(kind)]
    # Files, and the changes of before, have columns by name.
    odd += [f"{name} (renamed)" for name in kinds if name in _renamed(table.metadata)]
    if odd:
        raise SinkError(
            f"changes cannot be merged into {where}, which has the columns {', '.join(odd)}: a merge writes files "
            "anew, and cannot do so with these. Nothing was written; change the table back, or give the pipeline "
            "another one."
        )


def plain_path(location: str) -> str:
    """The path of a folder of this machine, from any spelling of Iceberg's writers; any other address unchanged."""
    if location.startswith("file:"):
        location = "/" + location.removeprefix("file:").lstrip("/")
    return location.rstrip("/")


def _unwritable(metadata: TableMetadata, held: Collection[str]) -> Iterator[str]:
    if metadata.format_version != 2:
        yield f"the format version {metadata.format_version} (written is 2)"
    if "encryption.key-id" in metadata.properties:
        yield "encryption"
    schema = metadata.schema()
    for name in sorted(_columns(schema)):
        if schema.find_field(name).required and not name.endswith(".key") and needs(name) not in held:
            yield f"the column {name} that is NOT NULL"
    for one in metadata.spec().fields:
        if str(one.transform) not in ("identity", "year", "month", "day", "hour"):
            yield f"a partition by {one.transform} of {schema.find_column_name(one.source_id)}"
        elif "." in (schema.find_column_name(one.source_id) or ""):
            yield f"a partition by a part of a column, {schema.find_column_name(one.source_id)}"
    yield from _ambiguous(metadata)


def _ambiguous(metadata: TableMetadata) -> Iterator[str]:
    """Column names that, in files without ids, would mean one column now and another later."""
    mapping = metadata.name_mapping()
    schema, ids = metadata.schema(), defaultdict[str, set[int]](set)
    for each in metadata.schemas:
        for name, id in _columns(each).items():
            ids[name].add(id)
    for name, id in sorted(_columns(schema).items()):
        if len(ids[name]) > 1:
            yield f"the column {name} that was once another one's name (renamed, or dropped and added again)"
        elif mapping is not None and _mapped(mapping, name) != id:
            yield f"the column {name} that the property {NAMES} does not name"


def _renamed(metadata: TableMetadata) -> set[str]:
    """Columns that had another name. Old schemas may have been removed: the names in files without ids stay."""
    names, now = defaultdict[int, set[str]](set), _columns(metadata.schema())
    for each in metadata.schemas:
        for name, id in _columns(each).items():
            names[id].add(name)
    mapping = metadata.name_mapping()
    mapped = {one.field_id for one in mapping if len(one.names) > 1} if mapping is not None else set()
    return {name for name, id in now.items() if len(names[id]) > 1 or id in mapped}


def _mapped(fields: Iterable[MappedField], name: str) -> int | None:
    """The id that the mapping gives to that column in files without ids. A dot may be a part of a column's name."""
    for one in fields:
        if name in one.names:
            return one.field_id
        for outer in one.names:
            found = _mapped(one.fields, name.removeprefix(f"{outer}.")) if name.startswith(f"{outer}.") else None
            if found is not None:
                return found
    return None


def _columns(schema: Schema) -> dict[str, int]:
    """Ids of all columns, nested ones included, by their full names."""
    return {schema.find_column_name(id) or "": id for id in schema.field_ids}
