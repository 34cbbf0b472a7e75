"""A Delta table, a checkpoint and a source over them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from airflow_provider_microbatch.sources import OpenSource, SourceContext
from airflow_provider_microbatch.sources.delta import DeltaSource
from airflow_provider_microbatch.sources.delta.offset import Place
from airflow_provider_microbatch.stores.posix import PosixStore
from tests.support.delta_orders import OrdersOfDelta


class World:
    """:param folder: the table goes below it, and the checkpoint.
    :param made: whether the table is there.
    """

    def __init__(
        self, folder: Path, *, made: bool = True, change_feed: bool = False, partition_by: Sequence[str] = ()
    ) -> None:
        self.root = folder / "orders"
        self.position: str | None = None
        self.now_ms = 0
        self._checkpoint = folder / "checkpoint"
        if made:
            self.orders = OrdersOfDelta(self.root, change_feed=change_feed, partition_by=partition_by)

    def open(self, **arguments: Any) -> OpenSource:
        """A fresh process's view of the source."""
        store = PosixStore(self._checkpoint)
        context = SourceContext(
            name="orders",
            log=store.scoped("sources/orders"),
            state=store.scoped("source_state/orders"),
            clock_ms=lambda: self.now_ms,
        )
        return DeltaSource(str(self.root), **arguments).open(context)

    def plan(self, **arguments: Any) -> tuple[str | None, str | None]:
        """The next batch, as it comes into the offset log."""
        source = self.open(**arguments)
        start, end = self.position, source.latest_offset(self.position)
        self.position = end
        return (source.initial_offset() if start is None else start), end


def place(position: str | None) -> tuple[int, int, bool]:
    """Version and index of a position, and whether it is one in a snapshot."""
    assert position is not None
    found = Place.of(position)
    return found.version, found.index, found.in_snapshot
