"""An Iceberg table, a checkpoint and a source over them."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from airflow_provider_microbatch.sources import OpenSource, SourceContext
from airflow_provider_microbatch.sources.iceberg import IcebergSource
from airflow_provider_microbatch.stores.posix import PosixStore
from tests.support.iceberg_orders import OrdersOfIceberg


class World:
    """:param folder: the table goes below it, and the checkpoint.
    :param orders: the table, if it is there already.
    """

    def __init__(self, folder: Path, *, orders: OrdersOfIceberg | None = None) -> None:
        self.orders = orders or OrdersOfIceberg(folder / "my lake")
        self.position: str | None = None
        self.now_ms = 0
        self._checkpoint = folder / "checkpoint"
        self._closing = ExitStack()

    def open(self, *, table: str = "shop.orders", **arguments: Any) -> OpenSource:
        """A fresh process's view of the source."""
        store = PosixStore(self._checkpoint)
        context = SourceContext(
            name="orders",
            log=store.scoped("sources/orders"),
            state=store.scoped("source_state/orders"),
            clock_ms=lambda: self.now_ms,
            connect=lambda _: self.orders.connection,
            at_end=self._closing.callback,
        )
        return IcebergSource(self.orders.conn_id, table, **arguments).open(context)

    def plan(self, **arguments: Any) -> tuple[str | None, str | None]:
        """The next batch, as it comes into the offset log."""
        source = self.open(**arguments)
        start, end = self.position, source.latest_offset(self.position)
        self.position = end
        return (source.initial_offset() if start is None else start), end

    def close(self) -> None:
        """Its catalogs."""
        self._closing.close()
