"""Tables with a schema of their own, which somebody else has made: what their columns take of a row, by the rules of
each system, told in Python."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import Any, ClassVar

from deltalake import DeltaTable, Field, Schema

from airflow_provider_microbatch import connections
from airflow_provider_microbatch.sinks import Sink
from airflow_provider_microbatch.sinks.delta import DeltaSink
from airflow_provider_microbatch.sinks.postgres import PostgresSink
from tests.postgres import database
from tests.support import iceberg_table

Row = dict[str, Any]


class TableOfOthers(ABC):
    """The columns are n bigint, id int, amount decimal(6,2), name text NOT NULL; and those that say whose a row is."""

    told: ClassVar[dict[str, str]]
    """How the system writes these types."""
    too_late = "amount.* which the rows of this attempt were not held against"
    """What is said of a stage that was made before :meth:`narrow`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.make()

    @abstractmethod
    def make(self) -> None:
        """As whoever owns it does."""

    @property
    @abstractmethod
    def sink(self) -> Sink:
        """The sink of it."""

    @abstractmethod
    def rows(self) -> list[Row]:
        """What a reader finds."""

    @abstractmethod
    def narrow(self) -> None:
        """Its owner lets it take fewer rows: none without an amount."""

    def takes(self, row: Row) -> bool:
        """Whether the row goes in as it is."""
        amount = row["amount"]
        if amount is not None:
            cents = Decimal(repr(amount)).quantize(Decimal("0.01"), ROUND_HALF_UP)
            if float(cents) != amount or abs(cents) >= 10_000:
                return False
        return row["name"] is not None and (row["id"] is None or -(2**31) <= row["id"] < 2**31)


class OfDelta(TableOfOthers):
    """With a constraint."""

    told: ClassVar = {"id": "int", "amount": "decimal(6,2)", "name": "varchar(6)"}

    def make(self) -> None:
        fields = [
            Field("n", "long"),
            Field("id", "integer"),
            Field("amount", "decimal(6,2)"),  # type: ignore[arg-type]
            Field("name", "string", nullable=False, metadata={"__CHAR_VARCHAR_TYPE_STRING": "varchar(6)"}),
            Field("lane", "string"),
            Field("batch_id", "long"),
        ]
        self.place.mkdir(parents=True)
        made = DeltaTable.create(self.place.as_uri(), Schema(fields))
        made.alter.add_constraint({"nobody": "name <> 'ghost' AND (id >= 0 OR id IS NULL)"})

    @property
    def place(self) -> Path:
        return self.root / "delta"

    @property
    def sink(self) -> Sink:
        return DeltaSink(str(self.place))

    def rows(self) -> list[Row]:
        found: list[Row] = DeltaTable(self.place.as_uri()).to_pyarrow_table().to_pylist()
        return found

    def narrow(self) -> None:
        DeltaTable(self.place.as_uri()).alter.add_constraint({"paid": "amount IS NOT NULL"})

    def constrain(self, name: str, condition: str) -> None:
        """By hand: delta-rs makes a condition of its own of what it is given."""
        log = sorted((self.place / "_delta_log").glob("*.json"))
        metadata = next(
            line["metaData"] for line in map(json.loads, log[-1].read_text().splitlines()) if "metaData" in line
        )
        metadata["configuration"][f"delta.constraints.{name}"] = condition
        (self.place / "_delta_log" / f"{len(log):020}.json").write_text(json.dumps({"metaData": metadata}) + "\n")

    def takes(self, row: Row) -> bool:
        if not super().takes(row) or len(row["name"]) > 6:
            return False
        return row["name"] != "ghost" and (row["id"] is None or row["id"] >= 0)


class OfIceberg(TableOfOthers):
    """In a catalog of SQLite."""

    told: ClassVar = {"id": "int", "amount": "decimal(6, 2)", "name": "string"}

    def make(self) -> None:
        from pyiceberg.schema import Schema as IcebergSchema
        from pyiceberg.types import DecimalType, IntegerType, LongType, NestedField, StringType

        kinds = {
            "n": LongType(), "id": IntegerType(), "amount": DecimalType(6, 2), "name": StringType(),
            "lane": StringType(), "batch_id": LongType(),
        }  # fmt: skip
        fields = (
            NestedField(field_id=at, name=name, field_type=kind, required=name == "name")
            for at, (name, kind) in enumerate(kinds.items(), start=1)
        )
        connections.find_by(lambda _: iceberg_table.connection_of(self.root))
        catalog = iceberg_table.opened_in(self.root)._log.catalog.get()
        catalog.create_namespace_if_not_exists(iceberg_table.NAMESPACE)
        catalog.create_table(
            f"{iceberg_table.NAMESPACE}.orders", IcebergSchema(*fields), location=f"file://{self.root}/orders"
        )

    @property
    def sink(self) -> Sink:
        return iceberg_table.sink_in(self.root)

    def rows(self) -> list[Row]:
        look = iceberg_table.opened_in(self.root)._log.look()
        assert look is not None
        found: list[Row] = look.table.scan().to_arrow().to_pylist()
        return found

    def narrow(self) -> None:
        look = iceberg_table.opened_in(self.root)._log.look()
        assert look is not None
        with look.table.update_schema(allow_incompatible_changes=True) as change:
            change.update_column("amount", required=True)


class OfPostgres(TableOfOthers):
    """Whose names are short."""

    too_late = 'null value in column "amount"'
    told: ClassVar = {"id": "integer", "amount": "numeric(6,2)", "name": "character varying(5)"}

    def make(self) -> None:
        connections.find_by(database.connection_of)
        self.run(
            f"CREATE TABLE {self.table} (n bigint, id integer, amount numeric(6, 2), name varchar(5) NOT NULL, "
            "_batch_lane text NOT NULL, _batch_id bigint NOT NULL)"
        )

    @property
    def table(self) -> str:
        return database.table_in(self.root)

    @property
    def sink(self) -> Sink:
        return PostgresSink(database.CONN_ID, self.table, stages=str(self.root / "stages"))

    def rows(self) -> list[Row]:
        names = ("n", "id", "amount", "name")
        return [dict(zip(names, row, strict=True)) for row in database.rows(self.table, ", ".join(names))]

    def narrow(self) -> None:
        self.run(f"ALTER TABLE {self.table} ALTER amount SET NOT NULL")

    def run(self, statement: str) -> None:
        with database.connect() as connection:
            connection.execute(statement.encode())

    def takes(self, row: Row) -> bool:
        return super().takes(row) and len(row["name"]) <= 5 and "\0" not in row["name"]


TABLES = {"delta": OfDelta, "iceberg": OfIceberg, "postgres": OfPostgres}
