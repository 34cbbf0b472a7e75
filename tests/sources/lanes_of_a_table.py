"""Lanes of a table of a database, the logs that they have, and the rows that they read."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from airflow_provider_microbatch.checkpoint.entries import Offset
from airflow_provider_microbatch.checkpoint.key import LIVE, BatchKey
from airflow_provider_microbatch.exceptions import SourceError
from airflow_provider_microbatch.sources import UNLIMITED, OpenSource, ReadLimit, SourceContext
from airflow_provider_microbatch.sources.intervals import CommittedRange, HeldRange, Interval, IntervalSurvey
from airflow_provider_microbatch.sources.jdbc import JdbcSource
from airflow_provider_microbatch.sources.jdbc.moment import Moment
from airflow_provider_microbatch.stores.posix import PosixStore
from tests.sources.jdbc_world import ids
from tests.support.orders_in_mariadb import OrdersInMariaDb
from tests.support.orders_table import OrdersTable

HOUR_MS = 3_600_000
T0 = 1_790_000_000_000 // HOUR_MS * HOUR_MS  # 2026-09-21 14:00 UTC


class InPostgres:
    """:param table: where rows are."""

    options: ClassVar[dict[str, Any]] = {}

    def __init__(self, table: OrdersTable) -> None:
        self.table, self.connection = table, table.connection

    def ids(self, source: OpenSource, start: str | None, end: str | None) -> list[int]:
        return ids(self.table, source, start, end)

    def all(self) -> list[int]:
        with self.table.connect() as session:
            return [id for (id,) in session.execute("SELECT id FROM orders")]

    def at(self, hour: float) -> str:
        return f"to_timestamp({round(T0 + hour * HOUR_MS)} / 1000.0)"

    def anywhere(self, chance: random.Random) -> str:
        return f"clock_timestamp() - interval '{chance.random() * 20} s'"


class InMariaDb:
    """:param table: where rows are."""

    options: ClassVar[dict[str, Any]] = {"database": "mariadb", "late_seconds": 0.000001}

    def __init__(self, table: OrdersInMariaDb) -> None:
        self.table, self.connection = table, table.connection

    def ids(self, source: OpenSource, start: str | None, end: str | None) -> list[int]:
        return self.table.ids(source, start, end)

    def all(self) -> list[int]:
        return [id for (id,) in self.table.execute("SELECT id FROM orders")]

    def at(self, hour: float) -> str:
        return f"from_unixtime({round(T0 + hour * HOUR_MS)} / 1000)"

    def anywhere(self, chance: random.Random) -> str:
        return "current_timestamp(6)"


Orders = InPostgres | InMariaDb


class Lanes:
    """Lanes of one source of ``orders``.

    :param folder: of the checkpoint.
    :param source: the definition.
    """

    def __init__(self, folder: Path, database: Orders, source: JdbcSource) -> None:
        self._database, self._source = database, source
        self._store = PosixStore(folder)
        self.logs: dict[str, list[HeldRange]] = {LIVE: []}

    def open(self, lane: str = LIVE) -> OpenSource:
        """The source as a new process sees it."""
        context = SourceContext(
            name="orders",
            log=self._store.scoped("log"),
            state=self._store.scoped("state"),
            clock_ms=lambda: 0,
            lane=lane,
            committed=self._committed,
            connect=lambda _: self._database.connection,
        )
        return self._source.open(context)

    def _committed(self, lane: str) -> Iterable[CommittedRange]:
        log = self.logs[lane]
        for one in reversed(log):
            if one.start != one.end:
                is_by_hand = Moment.of(one.end or "").below is None
                yield CommittedRange(start=one.start, end=one.end, is_read=not is_by_hand)
        if log and log[0].key.id:
            yield CommittedRange(start=None, end=log[0].start, is_read=True)

    def retain(self, kept: int) -> None:
        """Remove all but the newest batches of the live lane."""
        del self.logs[LIVE][:-kept]

    @property
    def held(self) -> Mapping[str, Sequence[HeldRange]]:
        """What the logs of all lanes have."""
        return {lane: list(ranges) for lane, ranges in self.logs.items()}

    def live(self, limit: ReadLimit = UNLIMITED) -> list[int]:
        """Plan the next live batch. The rows that it has."""
        source = self.open()
        before = self.logs[LIVE][-1].end if self.logs[LIVE] else source.initial_offset()
        end = source.latest_offset(before, limit)
        return [] if end == before else self.put(LIVE, before, end)

    def interval(self, lane: str, interval: Interval) -> list[int]:
        """Plan the batch of an interval. The rows that it has."""
        start, end = self.open(lane).plan_interval(interval, self.held)
        return [] if start == end else self.put(lane, start, end)

    def survey(self, lane: str, interval: Interval) -> IntervalSurvey:
        return self.open(lane).survey_interval(interval, self.held)

    def put(self, lane: str, start: Offset | None, end: Offset | None) -> list[int]:
        """Put a range into the log of its lane, and read it."""
        self.hold(lane, start, end)
        source = self.open(lane)
        found = self._database.ids(source, start, end)
        assert source.describe(start, end).rows == len(found)
        return found

    def hold(self, lane: str, start: Offset | None, end: Offset | None) -> None:
        """Put a range into the log of its lane."""
        log = self.logs.setdefault(lane, [])
        log.append(HeldRange(key=BatchKey(lane, log[-1].key.id + 1 if log else 0), start=start, end=end))

    def again(self) -> dict[str, list[int]]:
        """What replays of all batches have, by batch."""
        return {
            str(one.key): self._database.ids(self.open(lane), one.start, one.end)
            for lane, log in self.logs.items()
            for one in log
        }


def insert(orders: Orders, *hours: float) -> None:
    for hour in hours:
        orders.table.execute(f"INSERT INTO orders (updated_at) VALUES ({orders.at(hour)})")


def hours(start: float, end: float, *, late: tuple[tuple[float, float], ...] = ()) -> Interval:
    def ms(hour: float) -> int:
        return round(T0 + hour * HOUR_MS)

    return Interval(start_ms=ms(start), end_ms=ms(end), late=tuple((ms(a), ms(b)) for a, b in late))


def by_hand_at(lanes: Lanes, place: Moment | str | None) -> str:
    """A position by hand, as the live lane's next range would begin there; a time alone, or None for the first of
    all."""
    offset = (place if isinstance(place, Moment) else Moment(time=place)).text()
    log = lanes.logs[LIVE]
    lanes.hold(LIVE, log[-1].end if log else lanes.open().initial_offset(), offset)
    return offset


def here(lanes: Lanes) -> None:
    """Go on as the error of a live plan says, where the rows are the same."""
    with pytest.raises(SourceError) as said:
        lanes.live()
    offered = [Moment.of(offset) for offset in re.findall("--offset '([^']*)'", str(said.value))]
    by_hand_at(lanes, next(place for place in offered if place.time is not None))


def made_again(orders: Orders) -> None:
    """The same rows under another identity."""
    if isinstance(orders, InMariaDb):
        orders.table.execute("OPTIMIZE TABLE orders")
        return
    orders.table.execute("CREATE TABLE kept AS SELECT * FROM orders")
    orders.table.execute("DROP TABLE orders CASCADE")
    orders.table.execute("CREATE TABLE orders (id bigserial PRIMARY KEY, note text, updated_at timestamptz)")
    orders.table.execute("INSERT INTO orders (id, note, updated_at) SELECT id, note, updated_at FROM kept")
