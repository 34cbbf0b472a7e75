"""Tables with versions, as the contract of sources knows systems (tests/contract/test_source.py)."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from airflow_provider_microbatch.sources import Source
from airflow_provider_microbatch.sources.delta import DeltaSource
from airflow_provider_microbatch.sources.iceberg import IcebergSource
from tests.support.delta_orders import OrdersOfDelta
from tests.support.iceberg_orders import iceberg_orders


class DeltaTables:
    """A Delta table, at most two files a batch."""

    keeps_a_log = False
    counts = True

    def __init__(self, root: Path, stack: ExitStack, *, change_feed: bool = False) -> None:
        self._table = OrdersOfDelta(root / "orders", change_feed=change_feed)
        self.source: Source = DeltaSource(str(self._table.root), change_feed=change_feed, max_files=2)

    def arrive(self) -> None:
        self._table.append()

    def break_it(self) -> None:
        self._table.root.rename(self._table.root.with_name("elsewhere"))


class IcebergTables:
    """An Iceberg table, at most two files a batch."""

    keeps_a_log = False
    counts = True

    def __init__(self, root: Path, stack: ExitStack) -> None:
        self._table = stack.enter_context(iceberg_orders(root / "lake"))
        self.source: Source = IcebergSource(self._table.conn_id, "shop.orders", max_files=2, packages=["not:needed:1"])

    def arrive(self) -> None:
        self._table.append()

    def break_it(self) -> None:
        self._table.drop()
