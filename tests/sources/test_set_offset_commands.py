"""The ``microbatch set-offset`` that an error of a source names: pasted as it is, it leads on, for every source."""

from __future__ import annotations

import json
import random
import re
import shlex
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_microbatch import connections
from airflow_provider_microbatch.checkpoint.entries import CommitEntry, OffsetEntry
from airflow_provider_microbatch.checkpoint.key import LIVE
from airflow_provider_microbatch.cli.main import main
from airflow_provider_microbatch.exceptions import SourceError
from airflow_provider_microbatch.execution.execution import Execution
from airflow_provider_microbatch.execution.plan import Planner
from airflow_provider_microbatch.sources import OpenSource, Source
from airflow_provider_microbatch.sources.delta import DeltaSource
from airflow_provider_microbatch.sources.iceberg import IcebergSource
from airflow_provider_microbatch.sources.jdbc import JdbcSource
from airflow_provider_microbatch.sources.jdbc import open as by_number
from airflow_provider_microbatch.sources.jdbc.moment import Moment
from airflow_provider_microbatch.sources.jdbc.offset import Place
from airflow_provider_microbatch.sources.kafka import KafkaSource
from airflow_provider_microbatch.sources.python import PythonSource
from tests.execution.world import World, run_identity
from tests.sources.channel_world import Tunnel, TunnelSource
from tests.sources.jdbc_world import timed_orders
from tests.sources.refusing_sources import Behind
from tests.support.delta_orders import OrdersOfDelta
from tests.support.kafka import running
from tests.support.orders_table import OrdersTable
from tests.support.slot_table import PUBLICATION, slot_table

pytestmark = pytest.mark.slow  # a database is started

INTERVAL = "interval-20260101T000000Z-20260102T000000Z"


class Refused:
    """A pipeline whose next plan its source refuses.

    :param root: everything lies below it; its name has a blank.
    """

    def __init__(self, root: Path, closing: ExitStack, patch: pytest.MonkeyPatch, *, lane: str = LIVE) -> None:
        self.world = World(root)
        self.root = root
        self.closing = closing
        self.patch = patch
        self.lane = lane

    def reads(self, source: Source) -> None:
        self.world.sources = {"orders": source}  # type: ignore[dict-item]

    def open(self) -> OpenSource:
        """The source beside the checkpoint."""
        return self._planner.sources.open("orders")

    def committed(self, end: str | None) -> None:
        """A batch of the lane that ended there."""
        checkpoint, lane = self.world.checkpoint, self.world.checkpoint.lane(self.lane)
        checkpoint.claim(pipeline="orders", sources=["orders"], format="v2")
        number = -1 if (newest := lane.offset_log.latest_id()) is None else newest
        for one in (number + 1, number + 2):
            lane.offset_log.add(one, OffsetEntry(ends={"orders": end}, batch_timestamp_ms=one, pipeline="orders"))
            lane.commit_log.add(one, CommitEntry())

    def read_up_to_now(self) -> str:
        """A batch of the lane that has read all that is there; where it ends."""
        end = self.open().latest_offset(None)
        assert isinstance(end, str)
        self.committed(end)
        return end

    def plan(self, number: int = 0) -> None:
        Execution(
            pipeline=self.world.pipeline, checkpoint=self.world.checkpoint, lane=self.lane, clock_ms=lambda: 1
        ).plan(run_identity(number))

    @property
    def _planner(self) -> Planner:
        checkpoint = self.world.checkpoint
        return Planner(
            pipeline=self.world.pipeline, checkpoint=checkpoint, lane=checkpoint.lane(self.lane), clock_ms=lambda: 1
        )


def a_polled_source_that_was_made_anew(case: Refused) -> None:
    case.reads(Behind(newest=5))
    case.committed("9")


def a_data_source_of_pyspark_that_was_made_anew(case: Refused) -> None:
    (case.root / "head").write_text("3")
    case.reads(PythonSource("number_streams:Numbers", options={"path": str(case.root / "head")}))
    case.committed('{"n": 9}')


def a_channel_that_went_before_it_was_read(case: Refused) -> None:
    tunnel = Tunnel()
    for _ in range(9):
        tunnel.put(random.Random(0))
    case.reads(TunnelSource())
    case.committed('{"c0":{"after":"0","rows":1},"c1":{"after":"0","rows":1}}')
    tunnel.gone = {"c0"}


class Topic:
    """:param case: reads it."""

    def __init__(self, case: Refused) -> None:
        self.broker = running()
        case.patch.setenv("AIRFLOW__MICROBATCH__TRUSTED_SERVERS", self.broker.address)
        self.name = self.broker.topic(partitions=2)
        self.send(4)
        case.reads(KafkaSource(bootstrap_servers=self.broker.address, topics=[self.name], timeout=60, packages=[]))

    def send(self, count: int) -> None:
        self.broker.send(self.name, [str(number) for number in range(count)], partition=0)

    def at(self, *offsets: int) -> str:
        return json.dumps({self.name: {str(number): at for number, at in enumerate(offsets)}}, separators=(",", ":"))


def a_partition_that_ends_before_the_position(case: Refused) -> None:
    topic = Topic(case)
    case.read_up_to_now()
    case.committed(topic.at(9, 0))


def records_that_retention_took(case: Refused) -> None:
    topic = Topic(case)
    case.read_up_to_now()
    topic.send(4)
    topic.broker.delete_before(topic.name, 0, 6)


def files_that_a_vacuum_took(case: Refused) -> None:
    orders = OrdersOfDelta(case.root / "orders")
    case.reads(DeltaSource(str(orders.root)))
    orders.append()
    case.read_up_to_now()
    orders.append()
    orders.table.optimize.compact()
    orders.table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)


def a_version_of_delta_that_is_no_append(case: Refused) -> None:
    orders = OrdersOfDelta(case.root / "orders")
    case.reads(DeltaSource(str(orders.root)))
    orders.append()
    case.read_up_to_now()
    orders.table.delete()


def a_table_of_delta_that_was_made_anew(case: Refused) -> None:
    orders = OrdersOfDelta(case.root / "orders")
    case.reads(DeltaSource(str(orders.root)))
    orders.append()
    case.read_up_to_now()
    shutil.rmtree(orders.root)
    OrdersOfDelta(orders.root).append()


class Iceberg:
    """:param case: reads it."""

    def __init__(self, case: Refused) -> None:
        from tests.support.iceberg_orders import OrdersOfIceberg

        self.orders = OrdersOfIceberg(case.root / "lake of others")
        made = self.orders.connection
        connections.find_by(lambda _: made)
        known = {"conn_type": made.conn_type, "extra": dict(made.extra)}
        case.patch.setenv(f"AIRFLOW_CONN_{made.conn_id.upper()}", json.dumps(known))
        case.reads(IcebergSource(self.orders.conn_id, "shop.orders"))
        self.orders.append()
        case.read_up_to_now()


def snapshots_that_have_expired(case: Refused) -> None:
    iceberg, snapshots = Iceberg(case), list[int]()
    for _ in range(3):
        iceberg.orders.append()
        snapshots.append(iceberg.orders.head)
    iceberg.orders.expire(*snapshots[:2])


class Database:
    """:param case: reads the table."""

    def __init__(self, case: Refused, **by: Any) -> None:
        self.case = case
        self.by = by
        self.orders: OrdersTable = case.closing.enter_context(timed_orders())
        to = self.orders.connection
        known = {"conn_type": "postgres", "host": to.host, "port": to.port, "schema": to.schema, "login": to.login}
        case.patch.setenv("AIRFLOW_CONN_ORDERS_DB", json.dumps(known))
        self.execute("INSERT INTO orders (note) SELECT 'x' FROM generate_series(1, 5)")
        self.read("orders")

    def read(self, table: str) -> None:
        self.case.reads(JdbcSource(table, self.orders.conn_id, driver=None, **self.by))

    def execute(self, *statements: str) -> None:
        for statement in statements:
            self.orders.execute(statement)


def a_table_that_was_renamed(case: Refused, **by: Any) -> None:
    database = Database(case, **by)
    case.read_up_to_now()
    database.execute("ALTER TABLE orders RENAME TO sold")
    database.read("sold")


def a_table_that_begins_again(case: Refused) -> None:
    database = Database(case)
    case.read_up_to_now()
    database.execute("DELETE FROM orders WHERE id > 2", "SELECT setval('orders_id_seq', 2)")


def many_gaps(case: Refused) -> Database:
    case.patch.setattr(by_number, "MOST_GAPS", 1)
    database = Database(case)
    database.execute("INSERT INTO orders (id) SELECT 10 * n FROM generate_series(1, 5) AS n")
    return database


def a_table_with_gaps_that_was_written_anew(case: Refused) -> None:
    database = many_gaps(case)
    case.read_up_to_now()
    database.execute("ALTER TABLE orders ALTER note TYPE int USING 1")


def a_database_that_was_restored(case: Refused) -> None:
    many_gaps(case)
    place = Place.of(case.read_up_to_now())
    assert place.sparse is not None
    case.committed(replace(place, sparse=replace(place.sparse, below=place.sparse.below + 10**6)).text())


def a_table_by_time_that_was_renamed(case: Refused) -> None:
    a_table_that_was_renamed(case, timestamp="updated_at")


def a_table_by_time_that_was_written_anew(case: Refused) -> None:
    database = Database(case, timestamp="updated_at")
    case.read_up_to_now()
    database.execute("ALTER TABLE orders ALTER note TYPE int USING 1")


def a_database_by_time_that_was_restored(case: Refused) -> None:
    Database(case, timestamp="updated_at")
    place = Moment.of(case.read_up_to_now())
    case.committed(replace(place, below=(place.below or 0) + 10**6).text())


class Slot:
    """:param case: reads it, and has read up to where it is."""

    def __init__(self, case: Refused) -> None:
        self.table = case.closing.enter_context(slot_table())
        to = self.table.orders.connection
        known = {"conn_type": "postgres", "host": to.host, "port": to.port, "schema": to.schema, "login": to.login}
        case.patch.setenv("AIRFLOW_CONN_ORDERS_DB", json.dumps(known))
        case.reads(self.table.source())
        self.change()
        self.end = case.read_up_to_now()

    def change(self) -> None:
        self.table.execute("INSERT INTO orders (note) VALUES ('x')")


def a_slot_that_somebody_else_reads(case: Refused) -> None:
    slot = Slot(case)
    slot.change()
    slot.table.one("SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())::text", slot.table.slot)


def a_slot_that_was_made_anew(case: Refused) -> None:
    slot = Slot(case)
    slot.table.drop_slot()
    slot.change()
    slot.table.make_slot()


def a_table_of_a_slot_that_was_made_anew(case: Refused) -> None:
    Slot(case).table.execute(
        "DROP TABLE orders",
        "CREATE TABLE orders (id bigserial PRIMARY KEY, note text)",
        "ALTER TABLE orders REPLICA IDENTITY FULL",
        f'ALTER PUBLICATION "{PUBLICATION}" ADD TABLE orders',
    )


CASES: Sequence[Any] = (
    a_polled_source_that_was_made_anew,
    pytest.param(a_data_source_of_pyspark_that_was_made_anew, marks=pytest.mark.slow),
    a_channel_that_went_before_it_was_read,
    pytest.param(a_partition_that_ends_before_the_position, marks=pytest.mark.slow),
    pytest.param(records_that_retention_took, marks=pytest.mark.slow),
    files_that_a_vacuum_took,
    a_version_of_delta_that_is_no_append,
    a_table_of_delta_that_was_made_anew,
    pytest.param(snapshots_that_have_expired, marks=pytest.mark.slow),
    a_table_that_was_renamed,
    a_table_that_begins_again,
    a_table_with_gaps_that_was_written_anew,
    a_database_that_was_restored,
    a_table_by_time_that_was_renamed,
    a_table_by_time_that_was_written_anew,
    a_database_by_time_that_was_restored,
    a_slot_that_somebody_else_reads,
    a_slot_that_was_made_anew,
    a_table_of_a_slot_that_was_made_anew,
)


@pytest.fixture
def closing(monkeypatch: pytest.MonkeyPatch) -> Iterator[ExitStack]:
    monkeypatch.setattr(connections, "_found_by", [*connections._found_by])  # a command sets its own
    with ExitStack() as stack:
        yield stack


def commands(error: pytest.ExceptionInfo[SourceError]) -> list[str]:
    """What the error names, each of them whole."""
    found = re.findall(r"`(microbatch set-offset [^`]+)`", str(error.value))
    assert len(found) == str(error.value).count("set-offset") == str(error.value).count("--offset")
    return found


def pasted(command: str) -> int:
    return main(shlex.split(command)[1:])


@pytest.mark.parametrize("make", CASES)
def test_what_a_source_says_leads_on_as_it_is_pasted(
    make: Callable[[Refused], None],
    tmp_path: Path,
    closing: ExitStack,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    case = Refused(tmp_path / "of Joe's", closing, monkeypatch)
    make(case)
    with pytest.raises(SourceError) as refused:
        case.plan()
    found = commands(refused)
    assert found
    shutil.copytree(case.root / "checkpoint", tmp_path / "before")
    for command in found:
        assert pasted(command) == 0, capsys.readouterr()
        case.plan(1)
        shutil.rmtree(case.root / "checkpoint")
        shutil.copytree(tmp_path / "before", case.root / "checkpoint")


def test_the_command_names_the_lane_whose_plan_was_refused(
    tmp_path: Path, closing: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = Refused(tmp_path, closing, monkeypatch)
    a_polled_source_that_was_made_anew(live)
    case = Refused(tmp_path, closing, monkeypatch, lane=INTERVAL)
    a_polled_source_that_was_made_anew(case)
    with pytest.raises(SourceError) as refused:
        case.plan()
    before = live.world.checkpoint.offset_log.latest_id()
    for command in commands(refused)[:1]:
        assert command.endswith(f" --lane {INTERVAL}")
        assert pasted(command) == 0
    case.plan(1)
    assert case.world.checkpoint.lane(INTERVAL).offset_log.latest_id() == 3
    assert live.world.checkpoint.offset_log.latest_id() == before
