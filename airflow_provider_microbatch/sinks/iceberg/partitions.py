"""Partition fields of a table, in the sink's notation and in Iceberg's."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_microbatch.exceptions import DefinitionError, SinkError

if TYPE_CHECKING:
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema

IDENTITY = "identity"
TIMES = ("year", "month", "day", "hour")

_FIELD = re.compile(r"(?:(?P<transform>\w+)\((?P<of>[^()]+)\)|(?P<column>[^()]+))")


@dataclass(frozen=True)
class Partition:
    """:param transform: ``identity``, or one of :data:`TIMES`.
    :param column: the column that the field is made of.
    """

    transform: str
    column: str

    @classmethod
    def parse(cls, text: object, *, where: str) -> Partition:
        """:raises DefinitionError: if ``text`` is no partition field that can be written."""
        match = _FIELD.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise DefinitionError(f"{where}: partition_by: {text!r:.100} is no column, and no day(column).")
        transform = match["transform"] or IDENTITY
        if transform not in (IDENTITY, *TIMES):
            raise DefinitionError(
                f"{where}: partition_by: {text!r}: a table can be written that is partitioned by columns, or by "
                f"{', '.join(f'{one}(column)' for one in TIMES)}. Plain Spark cannot compute Iceberg's {transform}."
            )
        return cls(transform, (match["of"] or match["column"]).strip())

    @property
    def name(self) -> str:
        """Name of the field, as Spark calls it."""
        return self.column if self.transform == IDENTITY else f"{self.column}_{self.transform}"

    def __str__(self) -> str:
        return self.column if self.transform == IDENTITY else f"{self.transform}({self.column})"


def spec_of(partitions: tuple[Partition, ...], schema: Schema) -> PartitionSpec:
    """The partition spec for a new table."""
    from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionField, PartitionSpec
    from pyiceberg.transforms import parse_transform

    fields = [
        PartitionField(
            source_id=schema.find_field(partition.column).field_id,
            field_id=PARTITION_FIELD_ID_START + number,
            transform=parse_transform(partition.transform),
            name=partition.name,
        )
        for number, partition in enumerate(partitions)
    ]
    return PartitionSpec(*fields)


def told_of(spec: PartitionSpec, schema: Schema) -> list[str]:
    """A table's partition fields, in the sink's notation."""
    found = []
    for one in spec.fields:
        column = schema.find_column_name(one.source_id) or f"column {one.source_id}"
        found.append(column if str(one.transform) == IDENTITY else f"{one.transform}({column})")
    return found


def value_of(spec: PartitionSpec, schema: Schema, rows: dict[str, Any], *, where: str) -> Any:
    """The partition of a file.

    :param rows: for each source column of the partition, some Python values between which the file's rows lie.
    :raises SinkError: if the file has rows of several partitions.
    """
    from pyiceberg.partitioning import partition_record_value
    from pyiceberg.typedef import Record

    values = []
    for one in spec.fields:
        source = schema.find_field(one.source_id)
        apply = one.transform.transform(source.field_type)
        found = {apply(partition_record_value(one, value, schema)) for value in rows[source.name]}
        if len(found) > 1:
            raise SinkError(f"{where} has rows of several partitions {one.name}. It was not published.")
        values.append(found.pop())
    return Record(*values)
