"""A slot of a real PostgreSQL: whole transactions, read as often as is asked, and moved on behind what is read."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import SourceChangedError, SourceError
from airflow_provider_microbatch.runtime.slot import lsn_of, lsn_text
from airflow_provider_microbatch.runtime.slot_rows import SlotError
from airflow_provider_microbatch.sources import OpenSource, ReadLimit
from airflow_provider_microbatch.sources.intervals import CommittedRange, HeldRange
from airflow_provider_microbatch.sources.slot import open as slot_open
from airflow_provider_microbatch.sources.slot.offset import Place
from airflow_provider_microbatch.sources.slot.server import Server
from tests.support.slot_table import PUBLICATION, SlotTable, slot_table

pytestmark = pytest.mark.slow
INSERT = "INSERT INTO orders (note) VALUES ('x')"


@pytest.fixture
def table() -> Iterator[SlotTable]:
    with slot_table() as found:
        yield found


@pytest.fixture
def opened(table: SlotTable, tmp_path: Path) -> Callable[..., OpenSource]:
    return table.opener(tmp_path)


def changes(source: OpenSource, start: str | None, end: str | None) -> list[tuple[Any, ...]]:
    return [(row["_op"], row["id"], row["note"]) for row in source.rows(start, end)]


def committed(
    *ranges: tuple[str | None, str | None, bool], reading: tuple[str | None, str] | None = None
) -> dict[str, Any]:
    """Surroundings with logs: of the ranges, newest first, whether they are in a table, and one that is being read."""
    found = [CommittedRange(start=start, end=end, is_read=is_read) for start, end, is_read in ranges]
    held = [] if reading is None else [HeldRange(key=BatchKey("live", 9), start=reading[0], end=reading[1])]
    return {"committed": lambda _: iter(found), "being_read": lambda: held}


def two_batches(table: SlotTable, source: OpenSource) -> tuple[str, str]:
    table.execute(INSERT)
    first = source.latest_offset(None)
    table.execute(INSERT)
    second = source.latest_offset(first)
    assert first is not None
    assert second is not None
    return first, second


def test_whole_transactions_in_the_order_of_their_commits(table: SlotTable, opened: Callable[..., OpenSource]) -> None:
    source = opened()
    with table.orders.connect() as slow:
        slow.execute("INSERT INTO orders VALUES (1, 'slow'), (2, 'slow')")
        table.execute("INSERT INTO orders VALUES (3, 'fast')", "UPDATE orders SET note = 'faster' WHERE id = 3")
        first = source.latest_offset(None)
        assert changes(source, None, first) == [("insert", 3, "fast"), ("update", 3, "faster")]
        slow.execute("DELETE FROM orders WHERE id = 1")
    with table.orders.connect() as taken_back:
        taken_back.execute(INSERT.encode())
        taken_back.rollback()
    assert changes(source, None, first) == [("insert", 3, "fast"), ("update", 3, "faster")]
    second = source.latest_offset(first)
    assert changes(source, first, second) == [("insert", 1, "slow"), ("insert", 2, "slow"), ("delete", 1, "slow")]
    assert source.is_after(second, first)
    assert source.in_words(first, second) == {"changes": 3}


def test_a_limit_never_cuts_a_transaction(table: SlotTable, opened: Callable[..., OpenSource]) -> None:
    source = opened(max_changes=3)
    for size in (2, 1, 1, 5, 1):
        table.execute(*[INSERT] * size)
    position, sizes = None, []
    while (end := source.latest_offset(position)) != position:
        sizes.append(len(changes(source, position, end)))
        position = end
    assert sizes == [3, 1, 5, 1]
    assert source.latest_offset(None, ReadLimit(rows=1)) == source.latest_offset(None, ReadLimit(splits=2))


def test_behind_a_position_inside_of_a_commit_lies_the_next_transaction(
    table: SlotTable, opened: Callable[..., OpenSource]
) -> None:
    source = opened()
    first, second = two_batches(table, source)
    (row,) = source.rows(None, first)
    by_hand = Place(lsn=row["_lsn"] + 1).text()
    source.check_offset(by_hand)
    assert Place.of(source.latest_offset(by_hand) or "") == Place.of(second)
    assert changes(source, by_hand, second) == [("insert", 2, "x")]


def test_transactions_of_other_tables_make_no_batch_and_hide_none(
    table: SlotTable, opened: Callable[..., OpenSource]
) -> None:
    source = opened()
    table.execute("CREATE TABLE other (n int PRIMARY KEY)", f'ALTER PUBLICATION "{PUBLICATION}" ADD TABLE other')
    for number in range(20):
        table.execute(f"INSERT INTO other VALUES ({number})")
    assert not source.has_new(None)
    assert source.latest_offset(None) is None
    table.execute(INSERT)
    assert source.has_new(None)
    end = source.latest_offset(None, ReadLimit(rows=1))
    assert changes(source, None, end) == [("insert", 1, "x")]
    table.execute("INSERT INTO other VALUES (-1)")
    assert source.latest_offset(end) == end


def test_the_slot_moves_on_behind_what_is_committed_and_a_passed_batch_is_refused(
    table: SlotTable, opened: Callable[..., OpenSource]
) -> None:
    source = opened()
    first, second = two_batches(table, source)
    assert changes(source, first, second) == changes(source, first, second)
    stood = table.moved_to()
    source.commit(first)
    assert table.moved_to() == stood, "the logs have nothing as committed"
    for _ in range(2):
        opened(committed((None, first, True))).commit(first)
        assert table.moved_to() == lsn_text(Place.of(first).lsn)
    assert source.not_replayable(first, second) is None
    assert changes(source, first, second) == [("insert", 2, "x")]
    assert "cannot be read any more" in str(source.not_replayable(None, first))
    with pytest.raises(SourceChangedError, match=r"'orders'.*moves on after each commit"):
        source.read(None, first)


def test_the_slot_stays_before_what_is_set_aside_or_read_again(
    table: SlotTable, opened: Callable[..., OpenSource]
) -> None:
    first, second = two_batches(table, opened())
    stood = table.moved_to()
    opened(committed((first, second, True), (None, first, False))).commit(second)
    assert table.moved_to() == stood
    opened(committed((first, second, True), (None, first, True), reading=(first, second))).commit(second)
    assert table.moved_to() == lsn_text(Place.of(first).lsn)
    opened(committed((first, second, True), (None, first, True))).commit(second)
    assert table.moved_to() == lsn_text(Place.of(second).lsn)


def test_a_slot_that_is_held_tells_what_it_has_the_server_keep(
    table: SlotTable, opened: Callable[..., OpenSource]
) -> None:
    first, second = two_batches(table, opened())
    source = opened(committed((first, second, True), (None, first, False)))
    source.commit(second)
    table.execute("CREATE TABLE other AS SELECT n, repeat('x', 100) FROM generate_series(1, 1000) AS n")
    told = source.lag_in_words(second)
    assert told["kept_bytes"] >= told["bytes"] + Place.of(second).lsn - Place.of(first).lsn
    at_the_end = source.lag_in_words(Place(lsn=2**40).text())
    assert at_the_end["bytes"] == 0
    assert at_the_end["kept_bytes"] > 50_000


def test_a_command_that_comes_while_the_slot_is_moved_on_sees_that_or_is_seen(
    table: SlotTable, opened: Callable[..., OpenSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = two_batches(table, opened())
    stood = table.moved_to()
    looks = iter([[CommittedRange(start=None, end=first, is_read=True)], []])  # and then a command is at the checkpoint
    opened({"committed": lambda _: next(looks)}).commit(first)
    assert table.moved_to() == stood
    assert opened().why_not_again(None, first) is None

    def dies(*_: Any) -> None:
        assert "moves on after each commit" in str(opened().why_not_again(None, first)), "a command asks now"
        raise InterruptedError

    with monkeypatch.context() as killed:
        killed.setattr(Server, "move_on", dies)
        with pytest.raises(InterruptedError):
            opened(committed((None, first, True))).commit(first)
    assert table.moved_to() == stood
    opened(committed((None, first, True))).commit(first)
    assert table.moved_to() != stood


def test_one_slot_for_two_pipelines_is_noticed_before_a_row_is_missing(
    table: SlotTable, opened: Callable[..., OpenSource]
) -> None:
    source = opened()
    first, second = two_batches(table, source)
    arguments = source.read(None, second).arguments
    opened(committed((first, second, True), (None, first, True))).commit(second)
    for ask in (source.has_new, source.latest_offset):
        with pytest.raises(SourceError, match=r"somebody else reads the slot.*set-offset"):
            ask(first)
    with pytest.raises(SourceChangedError, match="one slot is for one pipeline"):
        source.read(first, second)
    # It was moved on between the plan and Spark's reading.
    with pytest.raises(SlotError, match="gives 0 changes of orders, and 1 were planned"):
        list(slot_open.rows_of({**arguments, "changes": 1}, ""))


def test_what_somebody_else_lets_go_of_while_a_batch_is_planned_is_noticed(
    table: SlotTable, opened: Callable[..., OpenSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = opened()
    first, second = two_batches(table, source)
    table.execute(INSERT)

    def meanwhile(*_: Any) -> None:
        opened(committed((first, second, True), (None, first, True))).commit(second)

    monkeypatch.setattr(Server, "settled_to", meanwhile)
    with pytest.raises(SourceError, match="somebody else reads the slot"):
        source.latest_offset(first)


def test_a_slot_that_was_dropped_or_made_anew_is_an_error_with_a_way_on(
    table: SlotTable, opened: Callable[..., OpenSource]
) -> None:
    source = opened()
    first, _ = two_batches(table, source)
    table.drop_slot()
    with pytest.raises(SourceError, match=r"there is no slot.*lost.*pg_create_logical_replication_slot"):
        source.has_new(first)
    table.make_slot()
    with pytest.raises(SourceError, match="dropped and made anew") as error:
        source.latest_offset(first)
    here = Place(lsn=Place.of(first).lsn).text()
    assert "--allow-skip" in str(error.value)
    with pytest.raises(SourceError, match="moved on"):
        source.check_offset(here)


def test_a_slot_that_held_back_too_much_is_an_error_that_says_so(
    table: SlotTable, opened: Callable[..., OpenSource]
) -> None:
    source = opened()
    first, _ = two_batches(table, source)
    with table.orders.connect(autocommit=True) as server:
        server.execute("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'")
        server.execute("SELECT pg_reload_conf()")
        try:
            for _ in range(4):
                server.execute("SELECT pg_logical_emit_message(false, 'tests', 'x')")
                server.execute("SELECT pg_switch_wal()")
            server.execute("CHECKPOINT")
            with pytest.raises(SourceError, match=r"invalidated.*max_slot_wal_keep_size"):
                source.has_new(first)
            assert "invalidated" in str(source.why_not_again(None, first))
        finally:
            server.execute("ALTER SYSTEM RESET max_slot_wal_keep_size")
            server.execute("SELECT pg_reload_conf()")


def test_log_of_others_moves_the_slot_on_by_a_batch_without_rows(
    table: SlotTable, opened: Callable[..., OpenSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slot_open, "IDLE_BYTES", 50_000)
    source = opened()
    table.execute(INSERT)
    position = source.latest_offset(None)
    assert not source.has_new(position)
    table.execute("CREATE TABLE other AS SELECT n, repeat('x', 100) FROM generate_series(1, 1000) AS n")
    assert source.lag_in_words(position)["bytes"] > 50_000
    replaced = opened({"moves_alone": False})
    assert not replaced.has_new(position), "where each batch replaces the table, its rows would be gone by that"
    assert replaced.latest_offset(position) == position
    assert source.has_new(position)
    end = source.latest_offset(position)
    assert changes(source, position, end) == []
    assert source.lag_in_words(end)["bytes"] < 50_000
    assert not source.has_new(end)
    table.execute(INSERT)
    assert changes(source, end, source.latest_offset(end)) == [("insert", 2, "x")]


def test_a_batch_of_other_sources_with_which_the_slot_moved_on_is_read_again(
    table: SlotTable, opened: Callable[..., OpenSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of the slot is in it. Who takes it back, though, plans from its start, which the slot has left."""
    monkeypatch.setattr(slot_open, "IDLE_BYTES", 0)
    source = opened()
    table.execute(INSERT)
    first = source.latest_offset(None)
    table.execute("CREATE TABLE other AS SELECT n, repeat('x', 100) FROM generate_series(1, 1000) AS n")
    moved = source.latest_offset(first)
    assert Place.of(moved).changes == 0
    opened(committed((first, moved, True), (None, first, True))).commit(moved)
    assert table.moved_to() == lsn_text(Place.of(moved).lsn)
    assert source.not_replayable(first, moved) is None
    assert changes(source, first, moved) == []
    assert "has moved on" in str(source.why_not_again(first, moved))
    by_hand = Place(lsn=Place.of(moved).lsn).text()
    assert "has moved on" in str(source.not_replayable(first, by_hand)), "nobody has counted what lies before it"


def test_another_session_at_the_slot_is_waited_for(table: SlotTable, opened: Callable[..., OpenSource]) -> None:
    source = opened()
    table.execute("INSERT INTO orders SELECT n, repeat('x', 200) FROM generate_series(1, 5000) AS n")
    end = source.latest_offset(None)
    found: list[int] = []
    readers = [threading.Thread(target=lambda: found.append(len(changes(source, None, end)))) for _ in range(4)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert found == [5_000] * 4


@pytest.mark.parametrize(
    ("statement", "options", "match"),
    [
        ("ALTER TABLE orders ADD more int", {}, r"more: such columns.*on_schema_change='ignore'"),
        ("SELECT", {"schema": "id long, note string, nothing int"}, "nothing: such columns"),
        ("SELECT", {"schema": "id int, note string"}, "id of orders is of bigint, which is not read as integer"),
        ("SELECT", {"key": ["note"]}, r"primary key of orders is \(id\)"),
        ("ALTER TABLE orders REPLICA IDENTITY DEFAULT", {}, r"large values in note.*REPLICA IDENTITY FULL"),
        (f'ALTER PUBLICATION "{PUBLICATION}" DROP TABLE orders', {}, "does not have orders"),
        ("SELECT", {"publication": "other"}, "no publication other.*CREATE PUBLICATION"),
        ("ALTER TABLE orders RENAME TO elsewhere", {}, "no table orders"),
    ],
)
def test_a_table_whose_changes_cannot_be_read_so_is_refused_before_a_plan(
    table: SlotTable, opened: Callable[..., OpenSource], statement: str, options: dict[str, Any], match: str
) -> None:
    table.execute(statement)
    with pytest.raises(SourceError, match=match):
        opened(**options).check()


def test_a_publication_that_was_made_again_is_an_error_with_a_way_on(
    table: SlotTable, opened: Callable[..., OpenSource]
) -> None:
    source = opened()
    table.execute(INSERT)
    first = source.latest_offset(None)
    arguments = source.read(None, first).arguments
    table.execute(f'DROP PUBLICATION "{PUBLICATION}"')
    table.execute(INSERT)
    table.execute(f'CREATE PUBLICATION "{PUBLICATION}" FOR TABLE orders')
    for look in (lambda: source.has_new(first), lambda: source.latest_offset(first)):
        with pytest.raises(SourceError, match=r"made again.*new table.*pg_replication_slot_advance") as error:
            look()
    with pytest.raises(SlotError, match="made again"):
        list(slot_open.rows_of({**arguments, "end": Place.of(first or "").lsn + 2**20}, ""))
    (statement,) = re.findall(r"`(SELECT .*?)`", str(error.value))
    table.one(statement.replace("SELECT", "SELECT to_jsonb(x) FROM", 1) + " AS x")
    with pytest.raises(SourceError, match=r"has moved on.*set-offset"):
        source.latest_offset(first)
    table.execute(INSERT)
    here = Place(lsn=lsn_of(table.moved_to())).text()
    assert changes(source, here, source.latest_offset(here)) == [("insert", 3, "x")]


def test_a_table_that_was_made_anew_stops_the_plan(table: SlotTable, opened: Callable[..., OpenSource]) -> None:
    source = opened()
    first, _ = two_batches(table, source)
    table.execute("DROP TABLE orders", "CREATE TABLE orders (id bigserial PRIMARY KEY, note text)")
    with pytest.raises(SourceError, match=r"table orders was made anew"):
        source.latest_offset(first)


def test_a_change_of_a_while_in_which_nothing_told_the_key_is_refused_and_can_be_passed_over(
    table: SlotTable, opened: Callable[..., OpenSource]
) -> None:
    table.execute(
        "ALTER TABLE orders ADD no int NOT NULL UNIQUE", INSERT.replace("note", "no, note").replace("'x'", "1, 'x'")
    )
    source = opened(schema="id long, no int, note string")
    first = source.latest_offset(None)
    table.execute(
        "ALTER TABLE orders REPLICA IDENTITY USING INDEX orders_no_key",
        "UPDATE orders SET id = 60",
        "ALTER TABLE orders REPLICA IDENTITY FULL",
    )
    second = source.latest_offset(first)
    with pytest.raises(SlotError, match=r"had not the whole key \(id\).*REPLICA IDENTITY FULL.*set-offset"):
        list(source.rows(first, second))
    table.execute("UPDATE orders SET id = 70")
    third = source.latest_offset(second)
    assert changes(source, second, third) == [("delete", 60, "x"), ("insert", 70, "x")]


def test_columns_that_come_and_go_are_left_out_and_null(table: SlotTable, opened: Callable[..., OpenSource]) -> None:
    source = opened(on_schema_change="ignore")
    table.execute(INSERT)
    table.execute("ALTER TABLE orders ADD more int", "INSERT INTO orders (note, more) VALUES ('y', 1)")
    table.execute("ALTER TABLE orders DROP note", "INSERT INTO orders (more) VALUES (2)")
    source.check()
    end = source.latest_offset(None)
    assert changes(source, None, end) == [("insert", 1, "x"), ("insert", 2, "y"), ("insert", 3, None)]


def test_a_table_that_is_emptied_is_a_row_if_it_is_told_so(table: SlotTable, opened: Callable[..., OpenSource]) -> None:
    table.execute(INSERT, "TRUNCATE orders", INSERT)
    end = opened().latest_offset(None)
    found = changes(opened(on_truncate="row"), None, end)
    assert found == [("insert", 1, "x"), ("truncate", None, None), ("insert", 2, "x")]
    with pytest.raises(SlotError, match="emptied by TRUNCATE"):
        changes(opened(), None, end)


def test_changes_of_partitions_are_those_of_their_table(table: SlotTable, opened: Callable[..., OpenSource]) -> None:
    table.execute(
        "DROP TABLE orders",
        "CREATE TABLE orders (id bigint PRIMARY KEY, note text) PARTITION BY RANGE (id)",
        "CREATE TABLE low PARTITION OF orders FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE high PARTITION OF orders FOR VALUES FROM (10) TO (20)",
        *(f"ALTER TABLE {one} REPLICA IDENTITY FULL" for one in ("orders", "low", "high")),
        f'ALTER PUBLICATION "{PUBLICATION}" ADD TABLE orders',
    )
    with pytest.raises(SourceError, match="publish_via_partition_root"):
        opened().check()
    table.execute(f'ALTER PUBLICATION "{PUBLICATION}" SET (publish_via_partition_root)')
    source = opened()
    source.check()
    table.execute("INSERT INTO orders VALUES (1, 'x'), (11, 'x')", "UPDATE orders SET id = 12 WHERE id = 1")
    found = changes(source, None, source.latest_offset(None))
    assert found == [("insert", 1, "x"), ("insert", 11, "x"), ("delete", 1, "x"), ("insert", 12, "x")]


def test_of_a_partition_its_own_replica_identity_counts(table: SlotTable, opened: Callable[..., OpenSource]) -> None:
    table.execute(
        "DROP TABLE orders",
        "CREATE TABLE orders (id bigint PRIMARY KEY, no int NOT NULL) PARTITION BY RANGE (id)",
        "CREATE TABLE low PARTITION OF orders FOR VALUES FROM (0) TO (1000)",
        "CREATE UNIQUE INDEX low_no ON low (no)",
        "ALTER TABLE orders REPLICA IDENTITY NOTHING",
        f'ALTER PUBLICATION "{PUBLICATION}" ADD TABLE orders',
        f'ALTER PUBLICATION "{PUBLICATION}" SET (publish_via_partition_root)',
    )
    source = opened(schema="id long, no int")
    source.check()
    table.execute("INSERT INTO orders VALUES (1, 1)", "UPDATE orders SET no = 2", "UPDATE orders SET id = 3")
    first = source.latest_offset(None)
    assert [row["_op"] for row in source.rows(None, first)] == ["insert", "update", "delete", "insert"]
    table.execute(
        "ALTER TABLE low REPLICA IDENTITY USING INDEX low_no",
        "UPDATE orders SET id = 60",
        "ALTER TABLE low REPLICA IDENTITY FULL",
    )
    second = source.latest_offset(first)
    with pytest.raises(SlotError, match=r"had not the whole key \(id\)"):
        list(source.rows(first, second))


def test_large_values_that_an_update_leaves_are_told_whole(table: SlotTable, opened: Callable[..., OpenSource]) -> None:
    source, large = opened(schema="id long, note string, more int"), "ü" * 5000
    table.execute("ALTER TABLE orders ADD more int", "ALTER TABLE orders ALTER note SET STORAGE EXTERNAL")
    table.execute(f"INSERT INTO orders VALUES (1, '{large}', 1)", "UPDATE orders SET more = 2")
    source.check()
    assert changes(source, None, source.latest_offset(None)) == [("insert", 1, large), ("update", 1, large)]
