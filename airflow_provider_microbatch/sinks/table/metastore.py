"""Reads tables and partitions from Spark's catalog, and changes them by statements."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.sinks.table.hive_metastore import VERSION, names_partitions, replace_at_once
from airflow_provider_microbatch.sinks.table.partition_values import Values, spelled, values_of
from airflow_provider_microbatch.sinks.table.stage_table import Owner
from airflow_provider_microbatch.sinks.table.statement_steps import StatementSteps
from airflow_provider_microbatch.sinks.table.statements import StatementError, Statements, literal, quoted

OWNER = "microbatch.owner"
PIPELINE = "microbatch.pipeline"

_MISSING = ("TABLE_OR_VIEW_NOT_FOUND", "SCHEMA_NOT_FOUND", "PARTITIONS_NOT_FOUND")
_OF_HIVE = ("path", "serialization.format")
"""Storage properties that are no options of the reader."""
_IN_FOLDER = "SET spark.sql.hive.manageFilesourcePartitions = false"
"""Tables that are made after it have the partitions that Spark finds in their folders."""


@dataclass(frozen=True, kw_only=True)
class TableInfo:
    """A table, as ``DESCRIBE TABLE EXTENDED … AS JSON`` (Spark 4.0) describes it.

    :param columns: name and type (Spark's JSON) of each.
    :param kind: ``MANAGED`` if dropping the table removes its files, or ``EXTERNAL``; None if Spark does not tell.
    :param provider: the format; None for a table of Hive's own kinds, or a view.
    :param location: the table's folder; None if it is not on this file system.
    :param properties: its table properties.
    :param options: options of its reader.
    :param partitioned_by: partition columns.
    :param names_partitions: whether the metastore names its partitions; otherwise Spark finds them in its folder.
    """

    columns: tuple[tuple[str, Any], ...]
    provider: str | None
    location: Path | None
    kind: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)
    partitioned_by: tuple[str, ...] = ()
    names_partitions: bool = False

    @property
    def owner(self) -> Owner | None:
        """The attempt that made the table, if it is a stage table."""
        try:
            return Owner.from_dict(json.loads(self.properties.get(OWNER, "null")))
        except ValueError:
            return None

    def same_shape(self, other: TableInfo) -> bool:
        """Whether files of one table can be read as files of the other: then a new location is enough."""
        return self._shape() == other._shape()

    def _shape(self) -> tuple[object, ...]:
        return (self.columns, self.provider, dict(self.options), self.partitioned_by, self.names_partitions)


@dataclass(frozen=True)
class Metastore:
    """:param statements: runs statements.
    :param namespace: namespace of all tables; None for the default one.
    :param steps: runs statements that change something; None if nothing is to be changed.
    :param uri: address by which the metastore itself is spoken to; None if all is done by statements.
    """

    statements: Statements
    namespace: str | None
    steps: StatementSteps | None = None
    uri: str | None = None

    def table(self, name: str) -> TableInfo | None:
        """The table; None if there is none."""
        found = self._describe([f"DESCRIBE TABLE EXTENDED {self.name(name)} AS JSON"])
        return found[0] if found else None

    def partition(self, name: str, key: BatchKey) -> Path | None:
        """The folder of the batch's partition; None if there is none."""
        found = self.places(name, key, [()])
        return found[()] if found else None

    def places(self, name: str, key: BatchKey, which: Sequence[Values]) -> dict[Values, Path | None] | None:
        """The folders to which partitions of the batch lead; None for one that is not on this file system.

        :return: None if one of the partitions is not there.
        """
        table = self.name(name)
        asked = [f"DESCRIBE TABLE EXTENDED {table} {_partition(key, one)} AS JSON" for one in which]
        found = self._describe(asked)
        return None if found is None else {one: info.location for one, info in zip(which, found, strict=True)}

    def partitions(self, name: str, key: BatchKey, columns: Sequence[str]) -> set[Values]:
        """The partitions of the batch.

        :param columns: the partition columns behind those that name the batch.
        """
        found = self._partitions(name, _partition(key))
        return {values_of("/".join(path.split("/")[-len(columns) :]), columns) for path in found}

    def batches(self, name: str, lane: str) -> list[int]:
        """Ids of the lane for which the table has partitions, ascending."""
        found = self._partitions(name, f"PARTITION (lane = {literal(lane)})")
        return sorted(int(path.rpartition("batch_id=")[2]) for path in found)

    def kinds(self, columns: str, names: Sequence[str]) -> list[str]:
        """Types of some of a table's columns.

        :param columns: all columns, as DDL.
        :param names: those that are asked for.
        :raises StatementError: ``FIELD_NOT_FOUND`` if one is missing.
        """
        asked = ", ".join(f"typeof(a.{quoted(name)}) AS {quoted(name)}" for name in names)
        ((row,),) = self.statements.run([f"SELECT {asked} FROM (SELECT CAST(NULL AS STRUCT<{columns}>) AS a)"])
        return [row[name] for name in names]

    def columns(self, columns: str) -> tuple[tuple[str, Any], ...]:
        """Name and type of the columns that a table would have, in the form that :attr:`TableInfo.columns` has.

        :param columns: the columns, as DDL.
        """
        view = quoted("microbatch_columns")  # of the call's own session, and no other one's
        made = f"CREATE TEMPORARY VIEW {view} AS SELECT a.* FROM (SELECT CAST(NULL AS STRUCT<{columns}>) AS a)"
        _, (row,) = self.statements.run([made, f"DESCRIBE TABLE EXTENDED {view} AS JSON"])
        return _info(json.loads(row["json_metadata"])).columns

    def named(self, prefix: str) -> list[str]:
        """Tables whose name begins with ``prefix``."""
        scope = f"IN {quoted(self.namespace)} " if self.namespace else ""
        try:
            (rows,) = self.statements.run([f"SHOW TABLES {scope}LIKE {literal(prefix + '*')}"])
        except StatementError as error:
            if error.condition in _MISSING:
                return []
            raise
        return sorted(row["tableName"] for row in rows)

    def create(
        self,
        name: str,
        columns: str,
        *,
        provider: str,
        location: Path,
        properties: Mapping[str, str],
        options: Mapping[str, str],
        partitioned_by: Sequence[str] = (),
        names_partitions: bool = True,
        if_not_exists: bool = False,
    ) -> None:
        """Make an external table: dropping it never removes a file.

        :param columns: the columns, as DDL.
        :param names_partitions: whether the metastore is to name the table's partitions; otherwise Spark finds them in
            the table's folder.
        """
        parts = [
            f"CREATE TABLE {'IF NOT EXISTS ' if if_not_exists else ''}{self.name(name)} ({columns})",
            f"USING {provider}",
            f"OPTIONS ({_pairs(options)})" if options else "",
            f"PARTITIONED BY ({', '.join(map(quoted, partitioned_by))})" if partitioned_by else "",
            f"LOCATION {_address(location)}",
            f"TBLPROPERTIES ({_pairs(properties)})",
        ]
        before = [] if names_partitions else [_IN_FOLDER]
        self._change([*before, " ".join(part for part in parts if part)])

    def rename(self, name: str, new: str) -> None:
        """Rename a table, in one call of the metastore. :raises StatementError: if ``new`` is taken."""
        self._change([f"ALTER TABLE {self.name(name)} RENAME TO {self.name(new)}"])

    def move(self, name: str, location: Path) -> None:
        """Point the table at other files. One call of the metastore."""
        self._change([f"ALTER TABLE {self.name(name)} SET LOCATION {_address(location)}"])

    def replace_at_once(self, name: str, by: str, *, version: str) -> bool:
        """Make the table what another one is, in one call of the metastore; see :func:`hive_metastore.replace_at_once`.

        :return: False if that cannot be done, and nothing was.
        """
        if self.uri is None or self.steps is None:
            return False
        call = partial(replace_at_once, self.uri, namespace=self.namespace, table=name, by=by, version=version)
        return self.steps.run_on_condition(call)

    def names_partitions_of(self, name: str, info: TableInfo) -> bool:
        """Whether the metastore names partitions of the table. Spark tells it of those alone that it has named itself,
        and of those that another engine has named the metastore itself is asked, if its address is known."""
        if info.names_partitions or self.uri is None or not info.partitioned_by:
            return info.names_partitions
        return names_partitions(self.uri, namespace=self.namespace, table=name)

    def give_version(self, name: str) -> None:
        """Give the table, if there is one, another version: calls for the last one can do nothing from then on."""
        if self.table(name) is not None:
            self._change([f"ALTER TABLE {self.name(name)} SET TBLPROPERTIES ({_pairs({VERSION: str(uuid.uuid4())})})"])

    def add_partition(self, name: str, key: BatchKey, location: Path) -> None:
        """Add the batch's partition unless there is one. One call of the metastore."""
        self.add_partitions(name, key, {(): location})

    def add_partitions(self, name: str, key: BatchKey, locations: Mapping[Values, Path]) -> None:
        """Add those partitions of the batch that there are not. One call of the metastore: all are added, or none."""
        added = " ".join(f"{_partition(key, one)} LOCATION {_address(where)}" for one, where in locations.items())
        # Spark would make a call for each hundred.
        before = [f"SET spark.sql.addPartitionInBatch.size = {len(locations)}"] if len(locations) > 1 else []
        self._change([*before, f"ALTER TABLE {self.name(name)} ADD IF NOT EXISTS {added}"])

    def move_partition(self, name: str, key: BatchKey, location: Path) -> None:
        """Point the batch's partition at other files. One call of the metastore."""
        self._change([self.moving(name, key, location)])

    def moving(self, name: str, key: BatchKey, location: Path, values: Values = ()) -> str:
        """The statement that points a partition of the batch at other files."""
        return f"ALTER TABLE {self.name(name)} {_partition(key, values)} SET LOCATION {_address(location)}"

    def drop_partition(self, name: str, key: BatchKey) -> None:
        """Remove the batch's partition from the table, if there is one. One call of the metastore; no file of an
        external table is removed."""
        self.drop_partitions(name, key, [()])

    def drop_partitions(self, name: str, key: BatchKey, which: Iterable[Values]) -> None:
        """Remove those of the batch's partitions that there are, by one call of the metastore each."""
        dropped = ", ".join(_partition(key, one) for one in which)
        self._change([f"ALTER TABLE {self.name(name)} DROP IF EXISTS {dropped}"])

    def drop(self, *names: str) -> None:
        """Drop those of the tables that exist."""
        self._change([f"DROP TABLE IF EXISTS {self.name(name)}" for name in names])

    def name(self, table: str) -> str:
        """The table's name in a statement."""
        return quoted(self.namespace, table)

    def _partitions(self, name: str, clause: str) -> list[str]:
        try:
            (rows,) = self.statements.run([f"SHOW PARTITIONS {self.name(name)} {clause}"])
        except StatementError as error:
            if error.condition in _MISSING:
                return []
            raise
        return [row["partition"] for row in rows]

    def _change(self, statements: list[str]) -> None:
        if self.steps is None:
            raise SinkError(f"{statements[0]}: only who holds the table's lock may change it.")
        self.steps.run(statements)

    def _describe(self, statements: Sequence[str]) -> list[TableInfo] | None:
        try:
            described = self.statements.run(statements)
        except StatementError as error:
            if error.condition in _MISSING:
                return None
            raise
        return [_info(json.loads(row["json_metadata"])) for (row,) in described]


def _info(told: Mapping[str, Any]) -> TableInfo:
    location = str(told.get("location", ""))
    return TableInfo(
        columns=tuple((column["name"], column["type"]) for column in told.get("columns", ())),
        provider=told.get("provider"),
        location=Path("/" + location.removeprefix("file:").lstrip("/")) if location.startswith("file:") else None,
        kind=told.get("type"),
        properties=told.get("table_properties", {}),
        options={key: value for key, value in told.get("storage_properties", {}).items() if key not in _OF_HIVE},
        partitioned_by=tuple(told.get("partition_columns", ())),
        names_partitions=told.get("partition_provider") == "Catalog",
    )


def _partition(key: BatchKey, values: Values = ()) -> str:
    return f"PARTITION (lane = {literal(key.lane)}, batch_id = {key.id}{spelled(values)})"


def _pairs(values: Mapping[str, str]) -> str:
    return ", ".join(f"{literal(key)} = {literal(value)}" for key, value in values.items())


def _address(location: Path) -> str:
    return literal(f"file://{location}")
