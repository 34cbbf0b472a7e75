"""An Iceberg table of orders that a source reads, written by pyiceberg, in a catalog of SQLite."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.table import Table

from airflow_provider_microbatch import connections
from airflow_provider_microbatch.connections import Connection
from airflow_provider_microbatch.iceberg_catalog import properties_of
from tests.support.iceberg_table import CONN_ID, NAMESPACE, connection_of

SCHEMA = pa.schema([("id", pa.int64()), ("note", pa.string())])


class OrdersOfIceberg:
    """:param folder: of the lake. The table is made in it, without a row.

    :param format_version: of the table.
    """

    def __init__(self, folder: Path, *, format_version: int = 2) -> None:
        self.connection: Connection = connection_of(folder)
        self.conn_id = CONN_ID
        self.name = f"{NAMESPACE}.orders"
        self._folder = folder
        self._number = itertools.count()
        name, properties = properties_of(self.connection)
        self.catalog: Catalog = load_catalog(name, **properties)
        self.catalog.create_namespace_if_not_exists(NAMESPACE)
        self.make(format_version=format_version)

    def make(self, *, format_version: int = 2) -> None:
        """The table, without a row."""
        self.catalog.create_table(
            self.name,
            SCHEMA,
            location=f"file://{self._folder}/orders-{next(self._number)}",
            properties={"format-version": str(format_version)},
        )
        self._number = itertools.count()

    @property
    def table(self) -> Table:
        """As it is now."""
        return self.catalog.load_table(self.name)

    @property
    def head(self) -> int:
        """The id of its newest snapshot."""
        snapshot = self.table.current_snapshot()
        assert snapshot is not None
        return snapshot.snapshot_id

    def append(self, count: int = 1, *, branch: str = "main") -> list[int]:
        """One snapshot with one file of so many orders; their ids."""
        ids = [next(self._number) for _ in range(count)]
        table = self.table
        rows = pa.Table.from_pylist([{"id": id, "note": "x"} for id in ids], schema=SCHEMA)
        table.append(rows, branch=branch)
        return ids

    def expire(self, *ids: int) -> None:
        """Forget snapshots, as the table's own retention does."""
        self.table.maintenance.expire_snapshots().by_ids(list(ids)).commit()

    def upgrade(self) -> None:
        """Format 2 from here on. What is in has no sequence number."""
        with self.table.transaction() as change:
            change.upgrade_table_version(2)

    def drop(self) -> None:
        """The table is gone from its catalog."""
        self.catalog.drop_table(self.name)


@contextmanager
def iceberg_orders(folder: Path) -> Iterator[OrdersOfIceberg]:
    """A table, whose connection is found by its id."""
    found = OrdersOfIceberg(folder)
    before = list(connections._found_by)
    connections.find_by(lambda _: found.connection)
    try:
        yield found
    finally:
        connections._found_by[:] = before
        found.catalog.close()
