"""A table of PostgreSQL that is written anew, or lies in another database, and who may be asked of it."""

from __future__ import annotations

import json
import re
import shlex
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_microbatch import connections
from airflow_provider_microbatch.cli.main import main
from airflow_provider_microbatch.exceptions import SourceChangedError, SourceError
from airflow_provider_microbatch.execution.engine import Code, Handle
from airflow_provider_microbatch.runtime.job import Job
from airflow_provider_microbatch.sources.jdbc import JdbcSource
from airflow_provider_microbatch.sources.jdbc import session as session_module
from airflow_provider_microbatch.sources.jdbc.moment import Moment
from airflow_provider_microbatch.sources.jdbc.transactions import Ended, check_written_here, running_now
from tests.execution.world import World
from tests.sources.jdbc_world import (
    INSERT,
    check_not_gone_on_from,
    ids,
    in_two_partitions,
    opener,
    timed_orders,
    without,
    write_anew,
)
from tests.support.inline_engine import InlineEngine
from tests.support.orders_table import OrdersTable
from tests.support.postgres import postgres
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow  # a database is started

FAR = ("CREATE FOREIGN DATA WRAPPER nothing", "CREATE SERVER far FOREIGN DATA WRAPPER nothing")


@pytest.fixture
def orders() -> Iterator[OrdersTable]:
    with timed_orders() as table:
        yield table


@pytest.fixture
def opened(tmp_path: Path, orders: OrdersTable) -> Callable[..., Any]:
    return opener(tmp_path, orders, timestamp="updated_at")


@pytest.mark.parametrize("statement", ["ALTER TABLE orders ALTER note TYPE int USING 1", "TRUNCATE orders"])
def test_rows_that_only_look_gone_are_not_skipped(opened: Any, orders: OrdersTable, statement: str) -> None:
    """Their transactions are others: an empty batch would take the place of a good one."""
    orders.execute("INSERT INTO orders (note) SELECT 'x' FROM generate_series(1, 5)")
    skips = opened(on_missing="skip")
    end = skips.latest_offset(None)
    told = dict(skips.read(None, end).arguments["told"])
    orders.execute(statement)
    said = r"'orders': 5 of 5 rows .*written anew since.*microbatch rewind"
    for look in (skips.read, skips.left_out, partial(skips.verify, told=told)):
        with pytest.raises(SourceChangedError, match=said):
            look(None, end)
    assert "written anew" in skips.not_replayable(None, end)


def test_of_a_table_with_one_partition_written_anew_its_rows_do_not_count_as_gone(
    opened: Any, orders: OrdersTable
) -> None:
    in_two_partitions(orders, range(1, 6), border=4)
    skips = opened(on_missing="skip")
    end = skips.latest_offset(None)
    told = dict(skips.read(None, end).arguments["told"])
    write_anew(orders, "upper")
    for look in (skips.read, skips.left_out, partial(skips.verify, told=told)):
        with pytest.raises(SourceChangedError, match=r"'orders': 2 of 5 rows .*partition, was written anew since"):
            look(None, end)


@pytest.mark.parametrize("has_gaps", [False, True])
def test_a_table_with_one_partition_written_anew_is_not_gone_on_with(
    opened: Any, orders: OrdersTable, has_gaps: bool
) -> None:
    """The rows of the other partition have the transactions that they had."""
    in_two_partitions(orders, range(2, 20_000, 2) if has_gaps else range(1, 6), border=4)
    source = opened(timestamp=None) if has_gaps else opened()
    end = source.latest_offset(None)
    write_anew(orders, "upper")
    for look in (source.has_new, source.latest_offset, source.lag):
        with pytest.raises(SourceError, match=r"orders, or a partition of it, was written anew.*set-offset"):
            look(end)


def test_a_row_that_comes_late_is_read_though_a_partition_was_added_and_vacuum_wrote_other_files(
    opened: Any, orders: OrdersTable
) -> None:
    in_two_partitions(orders, [1, 2, 4, 5], border=4, to=100)
    source = opened()
    orders.execute("UPDATE orders SET updated_at = '2026-01-01' WHERE id >= 4")  # far before the window
    with orders.connect() as slow:
        slow.execute("INSERT INTO orders (id) VALUES (9)")
        orders.execute("INSERT INTO orders (id) VALUES (3)")
        end = source.latest_offset(None)
    with orders.connect(autocommit=True) as session:
        session.execute("VACUUM FULL orders")
    orders.execute("CREATE TABLE added PARTITION OF orders FOR VALUES FROM (100) TO (200)")
    orders.execute("INSERT INTO orders (id, updated_at) SELECT 100, max(updated_at) FROM orders")
    assert ids(orders, source, end, source.latest_offset(end)) == [9, 100]


def test_rows_that_are_deleted_are_skipped_though_vacuum_writes_other_files(opened: Any, orders: OrdersTable) -> None:
    in_two_partitions(orders, range(1, 6), border=4)
    skips = opened(on_missing="skip")
    end = skips.latest_offset(None)
    without(orders, [1, 5])
    assert dict(skips.read(None, end).arguments["told"]) == {"left_out": 2}
    assert skips.not_replayable(None, end) is None


@pytest.mark.parametrize("change", ["UPDATE orders SET note = 'y' WHERE id = 2", "DELETE FROM orders WHERE id = 2"])
def test_a_row_that_goes_is_skipped_though_a_partition_was_added_and_another_row_came_late(
    opened: Any, orders: OrdersTable, change: str
) -> None:
    in_two_partitions(orders, range(1, 6), border=4, to=100)
    skips = opened(on_missing="skip")
    with orders.connect() as slow:
        slow.execute("INSERT INTO orders (id) VALUES (9)")
        orders.execute("INSERT INTO orders (id) VALUES (10)")
        end = skips.latest_offset(None)
    orders.execute(change)
    orders.execute("CREATE TABLE added PARTITION OF orders FOR VALUES FROM (100) TO (200)")
    assert dict(skips.read(None, end).arguments["told"]) == {"left_out": 1}
    assert skips.not_replayable(None, end) is None


def test_rows_whose_ids_have_come_again_are_not_skipped(opened: Any, orders: OrdersTable) -> None:
    orders.execute("INSERT INTO orders (note) SELECT 'x' FROM generate_series(1, 5)")
    skips = opened(on_missing="skip")
    place = Moment.of(skips.latest_offset(None))
    end = replace(place, below=(place.below or 0) - 2**32).text()
    with pytest.raises(SourceChangedError, match=r"5 of 5 rows .*transactions have begun since"):
        skips.read(None, end)
    assert "transactions have begun since" in skips.not_replayable(None, end)


def test_another_cluster_and_the_server_of_before_a_failover_are_named_and_a_failover_goes_on(
    opened: Any, orders: OrdersTable
) -> None:
    orders.execute(INSERT)
    source = opened()
    written = json.loads(source.latest_offset(None))
    name, oid, file, system, timeline, database, by, numbers = written["of"]

    def of(*cluster: object) -> str:
        return json.dumps({**written, "of": [name, oid, file, *cluster]})

    older = (
        of(),
        of(system, timeline),
        of(by),
        of(system, timeline, database, by),
    )  # of older versions, and where the role may not ask
    for position in (*older, of(system, timeline - 1, database, by, numbers)):  # and of before the failover
        assert not source.has_new(position)
        assert source.latest_offset(position) == position
        assert source.not_replayable(None, position) is None
    for position, said in (
        (of(system + 1, timeline), f"another database cluster, of system identifier {system}, and {system + 1} then"),
        (of(system, timeline + 1), f"timeline {timeline}, and was on {timeline + 1}"),
        (of(system, timeline, database + 1), f"another database of the cluster, of oid {database}, and {database + 1}"),
    ):
        for look in (source.has_new, source.latest_offset, source.lag):
            with pytest.raises(SourceError, match=rf"{said}.* set-offset"):
                look(position)
        assert said in source.not_replayable(None, position)


def test_a_database_made_of_another_as_its_template_is_not_taken_for_it(opened: Any, orders: OrdersTable) -> None:
    copy = f"copy_of_{orders.connection.schema}"
    orders.execute(INSERT)
    ends = {by: opened(timestamp=by).latest_offset(None) for by in ("updated_at", None)}
    connections.find_by(lambda _: replace(orders.connection, schema="postgres"))
    with OrdersTable(replace(orders.connection, schema="postgres")).connect(autocommit=True) as session:
        session.execute(f'CREATE DATABASE "{copy}" TEMPLATE "{orders.connection.schema}"')
    connections.find_by(lambda _: replace(orders.connection, schema=copy))
    for by, end in ends.items():
        for look in (opened(timestamp=by).has_new, opened(timestamp=by).latest_offset):
            with pytest.raises(SourceError, match=r"another database of the cluster.* set-offset"):
                look(end)


@pytest.mark.parametrize(
    ("then", "now", "kept", "where"),
    [
        ({}, {"timestamp": "made_at"}, {"t", "k"}, "the columns were merely renamed"),
        ({}, {"column": "turn"}, {"t"}, "or before was read"),
        ({}, {"column": None}, {"t"}, "or before was read"),
        ({"timestamp": None}, {"timestamp": None, "column": "turn"}, {"n", "gaps"}, "the column was merely renamed"),
    ],
    ids=["time", "key", "no key", "number"],
)
def test_a_position_by_other_columns_is_not_gone_on_from(
    opened: Any, orders: OrdersTable, then: dict[str, Any], now: dict[str, Any], kept: set[str], where: str
) -> None:
    orders.execute("ALTER TABLE orders ADD made_at timestamptz DEFAULT '2026-01-01', ADD turn int NOT NULL DEFAULT 1")
    orders.execute("INSERT INTO orders (note, turn) SELECT 'x', 9 - n FROM generate_series(1, 5) AS n")
    end = opened(**then).latest_offset(None)
    part = {name: value for name, value in json.loads(end).items() if name in kept}
    check_not_gone_on_from(opened(**now), end, table=r"public\.orders", kept=json.dumps(part), where=where)


def test_a_position_by_number_and_one_by_time_are_told_apart(opened: Any, orders: OrdersTable) -> None:
    orders.execute(INSERT)
    by_time, by_number = opened(), opened(timestamp=None)
    with pytest.raises(SourceError, match=r"was read by numbers.*leave timestamp= out as it was, or .* another name"):
        by_time.latest_offset(by_number.latest_offset(None))
    with pytest.raises(SourceError, match=r"was read by timestamps.*name timestamp= as it was, or .* another name"):
        by_number.latest_offset(by_time.latest_offset(None))


def test_a_role_that_may_not_ask_for_the_cluster_reads_all_the_same(opened: Any, orders: OrdersTable) -> None:
    role = f"reader_of_{orders.connection.schema}"
    for statement in (
        "REVOKE EXECUTE ON FUNCTION pg_control_system() FROM public",
        f"CREATE ROLE {role} LOGIN",
        f"GRANT SELECT ON orders TO {role}",
        INSERT,
    ):
        orders.execute(statement)
    connections.find_by(lambda _: replace(orders.connection, login=role))
    source = opened()
    end = source.latest_offset(None)
    assert json.loads(end)["of"][3:] == ["updated_at, id", [3, 1]]
    assert ids(orders, source, None, end) == [1]
    assert not source.has_new(end)


def test_a_standby_is_refused_until_it_is_promoted_to_a_timeline_of_its_own(opened: Any, orders: OrdersTable) -> None:
    source = opened()
    with postgres(is_replica=True) as standby:
        elsewhere = replace(orders.connection, port=standby.port, schema="postgres")
        connections.find_by(lambda _: elsewhere)
        for look in (source.check, partial(source.latest_offset, None), partial(source.has_new, None)):
            with pytest.raises(SourceError, match=r"'orders': .* is a standby.*'orders_db' must lead to the primary"):
                look()
        with OrdersTable(elsewhere).connect(autocommit=True) as session:
            session.execute("SELECT pg_promote()")
            session.execute("CREATE TABLE orders (id bigserial PRIMARY KEY, updated_at timestamptz DEFAULT now())")
            session.execute("INSERT INTO orders DEFAULT VALUES")
        end = source.latest_offset(None)
        assert source.describe(None, end).rows == 1
        timeline = json.loads(end)["of"][4]
        assert timeline == 2


@pytest.mark.parametrize("how", ["PARTITION OF made FOR VALUES WITH (MODULUS 1, REMAINDER 0)", "() INHERITS (made)"])
def test_foreign_tables_among_partitions_and_children_are_refused(orders: OrdersTable, how: str) -> None:
    for statement in (
        *FAR,
        f"CREATE TABLE made (id int) {'PARTITION BY HASH (id)' if 'PARTITION' in how else ''}",
        f"CREATE FOREIGN TABLE there {how} SERVER far",
    ):
        orders.execute(statement)
    with (
        orders.connect() as session,
        pytest.raises(SourceError, match=r"foreign tables, whose rows do not tell.*Read these where"),
    ):
        check_written_here(session, '"made"')


@contextmanager
def subscribed(orders: OrdersTable, publisher: OrdersTable) -> Iterator[None]:
    """Have ``orders`` filled by the subscription ``copied`` to a table of another database."""
    to = publisher.connection
    publisher.execute("CREATE PUBLICATION all_of_it FOR TABLE orders")
    publisher.execute("SELECT pg_create_logical_replication_slot('copied', 'pgoutput')")
    try:
        orders.execute(
            f"CREATE SUBSCRIPTION copied CONNECTION 'host={to.host} port={to.port} dbname={to.schema} user={to.login}' "
            "PUBLICATION all_of_it WITH (create_slot = false)"
        )
        yield
    finally:
        orders.execute("ALTER SUBSCRIPTION copied DISABLE")
        orders.execute("ALTER SUBSCRIPTION copied SET (slot_name = NONE)")
        orders.execute("DROP SUBSCRIPTION copied")
        # Which its receiver may hold for a moment longer.
        publisher.execute(
            "SELECT pg_terminate_backend(active_pid, 10000) FROM pg_replication_slots WHERE slot_name = 'copied'"
        )
        publisher.execute("SELECT pg_drop_replication_slot('copied')")


@pytest.mark.parametrize("by", [None, "updated_at"], ids=["number", "timestamp"])
def test_a_table_that_is_filled_by_logical_replication_is_refused_as_long_as_it_is(
    opened: Any, orders: OrdersTable, by: str | None
) -> None:
    role = f"reader_of_{orders.connection.schema}"
    orders.execute(f"CREATE ROLE {role} LOGIN")
    with timed_orders() as publisher:
        orders.execute(f"GRANT SELECT (id, note) ON orders TO {role}")
        connections.find_by(lambda _: replace(orders.connection, login=role))
        source = opened(timestamp=by)
        with pytest.raises(SourceError, match=r"permission denied.* GRANT SELECT ON TABLE to this role"):
            source.check()
        orders.execute(f"GRANT SELECT ON orders TO {role}")
        with subscribed(orders, publisher):
            orders.execute(INSERT)
            for look in (source.check, partial(source.has_new, None), partial(source.latest_offset, None)):
                with pytest.raises(SourceError, match=r"'orders': .*by subscription 'copied'.* Read the table at the"):
                    look()
            orders.execute("ALTER SUBSCRIPTION copied DISABLE")
            assert source.has_new(None)
            source.check()


@pytest.mark.parametrize("has_gaps", [False, True])
def test_a_child_by_inheritance_that_was_written_anew_is_not_gone_on_with(
    opened: Any, orders: OrdersTable, has_gaps: bool
) -> None:
    orders.execute("CREATE TABLE child (id bigint DEFAULT nextval('orders_id_seq') PRIMARY KEY) INHERITS (orders)")
    orders.execute("CREATE TABLE grandchild (PRIMARY KEY (id)) INHERITS (child)")
    numbers = list(range(1, 20_000, 2) if has_gaps else range(1, 6))
    for table, some in (("orders", numbers[:2]), ("child", numbers[2:3]), ("grandchild", numbers[3:])):
        orders.execute(f"INSERT INTO {table} (id) SELECT unnest(%s::int[])", some)
    source = opened(timestamp=None) if has_gaps else opened()
    end = source.latest_offset(None)
    assert source.describe(None, end).rows == len(numbers)
    write_anew(orders, "grandchild")
    for look in (source.has_new, source.latest_offset, source.lag):
        with pytest.raises(SourceError, match=r"orders, or a partition of it, was written anew.*set-offset"):
            look(end)


def waits_for_a_lock(orders: OrdersTable, asking: threading.Thread) -> None:
    """Return once a thread's session does so."""
    waiting = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    wait_until(lambda: bool(orders.rows(waiting)) or not asking.is_alive())
    assert asking.is_alive()


@pytest.mark.parametrize("by", [None, "updated_at"], ids=["number", "timestamp"])
def test_a_plan_that_waits_for_a_table_that_is_written_anew_sees_its_rows(
    opened: Any, orders: OrdersTable, by: str | None
) -> None:
    orders.execute("INSERT INTO orders (note) SELECT 'x' FROM generate_series(1, 5)")
    source, found = opened(timestamp=by), list[str | None]()
    plan = threading.Thread(target=lambda: found.append(source.latest_offset(None)))
    with orders.connect() as writes:
        writes.execute("ALTER TABLE orders ALTER note TYPE int USING 1")
        plan.start()
        waits_for_a_lock(orders, plan)
    plan.join()
    assert source.describe(None, found[0]).rows == 5


@pytest.mark.parametrize("autocommit", [False, True])
def test_nor_does_a_session_of_sparks_see_it_empty(opened: Any, orders: OrdersTable, autocommit: bool) -> None:
    """Whatever isolation is the default: rows are there again for who counts them afterwards."""
    orders.execute("INSERT INTO orders (note) SELECT 'x' FROM generate_series(1, 5)")
    begin = opened().read(None, opened().latest_offset(None)).arguments["options"]["sessionInitStatement"]
    defaults, found = "-c default_transaction_isolation=serializable", list[Any]()
    with orders.connect() as writes, orders.connect(autocommit=autocommit, options=defaults) as reads:
        reads.execute(begin)
        writes.execute("ALTER TABLE orders ALTER note TYPE int USING 1")
        read = threading.Thread(target=lambda: found.extend(reads.execute("SELECT id FROM orders").fetchall()))
        read.start()
        waits_for_a_lock(orders, read)
        writes.commit()
        read.join()
    assert len(found) == 5


@pytest.mark.parametrize("by", [None, "updated_at"], ids=["number", "timestamp"])
def test_nobody_waits_for_a_table_for_ever(
    opened: Any, orders: OrdersTable, by: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "LOCK_SECONDS", 0.1)
    source = opened(timestamp=by)
    with orders.connect() as locks:
        locks.execute("LOCK TABLE orders")
        let_go = threading.Timer(30, locks.rollback)
        let_go.start()
        for look in (source.check, partial(source.has_new, None), partial(source.latest_offset, None)):
            with pytest.raises(SourceError, match=r"'orders': PostgreSQL says: .* lock timeout"):
                look()
        let_go.cancel()


@pytest.mark.parametrize("made", ["FOREIGN TABLE there (id int, updated_at timestamptz) SERVER far",
                                  "MATERIALIZED VIEW there AS SELECT * FROM orders"])  # fmt: skip
@pytest.mark.parametrize("by", [None, "updated_at"], ids=["number", "timestamp"])
def test_what_is_written_elsewhere_is_refused(opened: Any, orders: OrdersTable, made: str, by: str | None) -> None:
    for statement in (*FAR, f"CREATE {made}"):
        orders.execute(statement)
    source = opened("there", timestamp=by)
    for look in (source.check, partial(source.has_new, None), partial(source.latest_offset, None)):
        with pytest.raises(SourceError, match=r"'orders': \"there\" is no table of this server.*Read it where"):
            look()


def test_how_long_a_writer_is_at_work_costs_the_first_plan_by_timestamp_alone(opened: Any, orders: OrdersTable) -> None:
    """Each id is asked for that is younger than it, and once."""
    orders.execute("CREATE SEQUENCE asked")
    orders.execute(
        "CREATE FUNCTION public.pg_xact_status(x xid8) RETURNS text LANGUAGE sql AS "
        "$$ SELECT pg_catalog.pg_xact_status(x) WHERE nextval('asked') > 0 $$"
    )
    orders.execute(f"ALTER DATABASE {orders.connection.schema} SET search_path = public, pg_catalog")

    def asked() -> int:
        ((count,),) = orders.rows("SELECT last_value FROM asked")
        return int(count)

    by_time, by_number = opened(), opened(timestamp=None)
    with orders.connect() as slow, orders.connect(autocommit=True) as session:
        slow.execute(INSERT)
        with slow.transaction():
            slow.execute(INSERT)
        for _ in range(200):
            session.execute(INSERT)
        by_number.latest_offset(by_number.latest_offset(None))
        assert asked() == 1, "of a table whose gaps are listed nobody asks who runs"
        ends = [by_time.latest_offset(None)]
        before = asked()
        assert before > 200
        for _ in range(3):
            orders.execute(INSERT)
            ends.append(by_time.latest_offset(ends[-1]))
        assert asked() - before < 50
    last = by_time.latest_offset(ends[-1])
    assert ids(orders, by_time, ends[-1], last) == [1, 2]


def test_an_id_that_another_server_gives_again_is_waited_for(orders: OrdersTable) -> None:
    """Behind a failover to a standby that lagged: as far as the server of before had come, it had ended."""
    with orders.connect() as slow, orders.connect(autocommit=True) as session:
        slow.execute(INSERT)
        with slow.transaction():
            slow.execute(INSERT)
        orders.execute(INSERT)
        below, ran = running_now(session, Ended())
        assert len(ran) == 2
        assert running_now(session, Ended(below=below)) == (below, ran)
        assert running_now(session, Ended(below=below, running=[(ran[0], ran[1])])) == (below, ran)


class _Rowless(InlineEngine):
    """Reads nothing: what is planned is what counts here."""

    def start(self, handle: Handle, job: Job, code: Code) -> None:
        super().start(handle, replace(job, sources={}), code)


@pytest.mark.parametrize("by", [{}, {"timestamp": "updated_at"}], ids=["number", "timestamp"])
def test_the_command_of_the_error_goes_on_with_a_table_that_was_renamed(
    tmp_path: Path,
    orders: OrdersTable,
    by: dict[str, str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No attempt has read it under its new name, and under the old one it is not there."""
    world, engine, to = World(tmp_path), _Rowless(), orders.connection
    known = {"conn_type": "postgres", "host": to.host, "port": to.port, "schema": to.schema, "login": to.login}
    monkeypatch.setenv("AIRFLOW_CONN_ORDERS_DB", json.dumps(known))

    def run(table: str, number: int) -> None:
        world.sources = {"orders": JdbcSource(table, orders.conn_id, driver=None, **by)}
        world.run(number, engine)

    orders.execute(INSERT)
    run("orders", 0)
    orders.execute("ALTER TABLE orders RENAME TO sold")
    with pytest.raises(SourceError) as said:
        run("sold", 1)
    begin, command = re.findall(r"`(microbatch set-offset [^`]+)`", str(said.value))
    assert main(shlex.split(begin.replace(" --allow-reread", ""))[1:]) == 2
    assert "allow it with --allow-reread" in capsys.readouterr().err, "its rows are in the table already"
    assert main(shlex.split(command)[1:]) == 0, capsys.readouterr()
    told = re.findall("(lost to the table|read again): source", capsys.readouterr().out)
    assert told == ["lost to the table", *(["read again"] if by else [])], "by number the same rows come next"
    orders.execute("INSERT INTO sold (note) VALUES ('y')")
    run("sold", 2)

    position = world.checkpoint.offset_log.get(2)
    assert position is not None
    assert json.loads(position.ends["orders"] or "")["rows"] == 1, "and not the row that was read under the old name"
