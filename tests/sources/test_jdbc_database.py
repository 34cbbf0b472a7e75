"""A table of PostgreSQL that is written anew, or lies in another database, and who may be asked of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_microbatch import connections
from airflow_provider_microbatch.exceptions import SourceChangedError, SourceError
from airflow_provider_microbatch.sources.jdbc.moment import Moment
from airflow_provider_microbatch.sources.jdbc.transactions import check_told
from tests.sources.jdbc_world import INSERT, ids, opener
from tests.support.orders_table import OrdersTable, orders_table
from tests.support.postgres import postgres


@pytest.fixture
def orders() -> Iterator[OrdersTable]:
    with orders_table() as table:
        table.execute("ALTER TABLE orders ADD updated_at timestamptz DEFAULT clock_timestamp()")
        table.execute("CREATE INDEX ON orders (updated_at, id)")
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
    name, oid, file, system, timeline = written["of"]

    def of(*cluster: int) -> str:
        return json.dumps({**written, "of": [name, oid, file, *cluster]})

    for position in (of(), of(system, timeline - 1)):  # of an older version, and of before the failover
        assert not source.has_new(position)
        assert source.latest_offset(position) == position
        assert source.not_replayable(None, position) is None
    for position, said in (
        (of(system + 1, timeline), f"another database cluster, of system identifier {system}, and {system + 1} then"),
        (of(system, timeline + 1), f"timeline {timeline}, and was on {timeline + 1}"),
    ):
        for look in (source.has_new, source.latest_offset, source.lag):
            with pytest.raises(SourceError, match=rf"{said}.* set-offset"):
                look(position)
        assert said in source.not_replayable(None, position)


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
    assert len(json.loads(end)["of"]) == 3
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
        *_, timeline = json.loads(end)["of"]
        assert timeline == 2


def test_foreign_tables_among_partitions_are_refused(orders: OrdersTable) -> None:
    for statement in (
        "CREATE FOREIGN DATA WRAPPER nothing",
        "CREATE SERVER far FOREIGN DATA WRAPPER nothing",
        "CREATE TABLE parted (id int) PARTITION BY HASH (id)",
        "CREATE FOREIGN TABLE there PARTITION OF parted FOR VALUES WITH (MODULUS 1, REMAINDER 0) SERVER far",
    ):
        orders.execute(statement)
    with orders.connect() as session, pytest.raises(SourceError, match="partitions that are foreign tables"):
        check_told(session, '"parted"')
