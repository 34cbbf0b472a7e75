"""A snapshot is handed over to its slot: each row of before, then each change behind, none twice and none missing."""

from __future__ import annotations

import json
import shutil
import stat
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_microbatch import connections
from airflow_provider_microbatch.exceptions import CorruptEntryError, SourceChangedError, SourceError
from airflow_provider_microbatch.runtime.slot_rows import SlotError
from airflow_provider_microbatch.sources import OpenSource
from airflow_provider_microbatch.sources.slot import copying
from airflow_provider_microbatch.sources.slot import snapshot as snapshots
from airflow_provider_microbatch.stores.posix import PosixStore
from airflow_provider_microbatch.upkeep.commands.draft import Draft
from tests.support.slot_table import SlotTable, slot_table
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow


@pytest.fixture
def table() -> Iterator[SlotTable]:
    with slot_table() as found:
        found.drop_slot()
        yield found


@pytest.fixture
def opened(table: SlotTable, tmp_path: Path) -> Callable[..., OpenSource]:
    opener = table.opener(tmp_path)
    return lambda **options: opener(**{"snapshot": str(tmp_path / "snapshots"), **options})


def ids(source: OpenSource, start: str | None, end: str | None) -> list[tuple[str, int]]:
    return [(row["_op"], row["id"]) for row in source.rows(start, end)]


def before_the_copy(patch: pytest.MonkeyPatch, act: Callable[[], Any]) -> None:
    """Act when the slot is made, and its rows are yet to be copied."""
    copied = snapshots.copied

    def later(*given: Any, **named: Any) -> Any:
        act()
        return copied(*given, **named)

    patch.setattr(snapshots, "copied", later)


def slots(table: SlotTable) -> Any:
    return table.one("SELECT count(*) FROM pg_replication_slots WHERE slot_name = %s", table.slot)


def test_rows_of_before_come_first_and_then_what_changed_meanwhile(
    table: SlotTable, opened: Callable[..., OpenSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "ROWS_OF_A_FILE", 2)
    table.execute("INSERT INTO orders VALUES (1, 'a'), (2, NULL), (3, E'\\t\\\\N\\n')")
    source = opened()
    source.check()
    assert source.has_new(None)
    end = source.latest_offset(None)
    assert opened().latest_offset(None) == end, "it is made once"
    table.execute("UPDATE orders SET note = 'b' WHERE id = 1")
    found = list(source.rows(None, end))
    assert [(row["id"], row["note"]) for row in found] == [(1, "a"), (2, None), (3, "\t\\N\n")]
    assert list(opened().rows(None, end)) == found, "it is read again as it was"
    assert source.in_words(None, end) == {"changes": 3}
    (change,) = source.rows(end, source.latest_offset(end))
    assert (change["_op"], change["id"], change["note"]) == ("update", 1, "b")
    assert max((row["_lsn"], row["_number"]) for row in found) < (change["_lsn"], change["_number"])


def test_what_is_committed_while_rows_are_copied_comes_by_the_slot(
    table: SlotTable, opened: Callable[..., OpenSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    table.execute("INSERT INTO orders VALUES (1)")
    before_the_copy(
        monkeypatch, lambda: table.execute("INSERT INTO orders VALUES (2)", "DELETE FROM orders WHERE id = 1")
    )
    end = opened().latest_offset(None)
    assert ids(opened(), None, end) == [("snapshot", 1)]
    assert ids(opened(), end, opened().latest_offset(end)) == [("insert", 2), ("delete", 1)]


def test_while_others_write_each_row_is_in_the_snapshot_or_in_the_slot(
    table: SlotTable, opened: Callable[..., OpenSource]
) -> None:
    stopped, written = threading.Event(), 0

    def write() -> None:
        nonlocal written
        with table.orders.connect(autocommit=True) as session:
            while not stopped.is_set():
                session.execute("INSERT INTO orders DEFAULT VALUES")
                written += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        end = opened().latest_offset(None)
    finally:
        stopped.set()
        writer.join()
    source = opened(max_changes=None)
    found = ids(source, None, end) + ids(source, end, source.latest_offset(end))
    assert sorted(id for _, id in found) == list(range(1, written + 1))
    assert [op for op, _ in found] == sorted((op for op, _ in found), reverse=True)


def full(*_: Any) -> int:
    raise OSError("No space left on device")


def test_who_dies_while_copying_leaves_a_slot_that_the_next_one_makes_anew(
    table: SlotTable, opened: Callable[..., OpenSource], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    table.execute("INSERT INTO orders VALUES (1)")
    copied = snapshots.copied

    def and_dies(*given: Any, **named: Any) -> Any:
        copied(*given, **named)
        full()

    for module, name, dies in ((copying, "_written", full), (snapshots, "copied", and_dies)):
        with monkeypatch.context() as killed:
            killed.setattr(snapshots.Snapshots, "_undo", lambda *_: None)
            killed.setattr(module, name, dies)
            with pytest.raises(OSError, match="No space"):
                opened().latest_offset(None)
        assert len(list((tmp_path / "snapshots").iterdir())) == 1
        assert slots(table) == 1
    table.execute("INSERT INTO orders VALUES (2)")
    end = opened().latest_offset(None)
    assert table.moved_to() == json.loads(end or "")["lsn"]
    assert ids(opened(), None, end) == [("snapshot", 1), ("snapshot", 2)]
    assert len(list((tmp_path / "snapshots").iterdir())) == 1, "what was copied for nobody is gone"


def test_a_copy_that_fails_leaves_no_slot_that_would_hold_back_the_log(
    table: SlotTable, opened: Callable[..., OpenSource], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(copying, "_written", full)
    with pytest.raises(OSError, match="No space"):
        opened().latest_offset(None)
    assert slots(table) == 0
    assert list((tmp_path / "snapshots").iterdir()) == []


def test_a_slot_that_another_has_made_after_a_try_that_failed_is_not_dropped(
    table: SlotTable, opened: Callable[..., OpenSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any) -> Any:
        raise SourceError("permission denied")

    for step in ("_new_slot", "_folder"):
        with monkeypatch.context() as failing:
            failing.setattr(snapshots.Snapshots, step, refused)
            failing.setattr(snapshots.Snapshots, "_undo", lambda *_: None)
            with pytest.raises(SourceError, match="permission denied"):
                opened().latest_offset(None)
        table.drop_slot()
    table.make_slot()
    stood = table.moved_to()
    with pytest.raises(SourceError, match=r"there is a slot .* already"):
        opened().latest_offset(None)
    assert table.moved_to() == stood


def test_one_process_at_a_time_makes_a_slot(
    table: SlotTable, opened: Callable[..., OpenSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    table.execute("INSERT INTO orders VALUES (1)")
    refused: list[str] = []

    def another() -> None:
        with pytest.raises(SourceError, match="another process is making slot") as error:
            opened().latest_offset(None)
        refused.append(str(error.value))

    before_the_copy(monkeypatch, another)
    end = opened().latest_offset(None)
    assert len(refused) == 1
    assert ids(opened(), None, end) == [("snapshot", 1)]


def test_who_has_lost_its_lock_and_finds_another_slot_puts_nothing_on_record(
    table: SlotTable, opened: Callable[..., OpenSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    table.execute("INSERT INTO orders VALUES (1)")

    def made_anew() -> None:
        table.drop_slot()
        table.make_slot()

    with monkeypatch.context() as meanwhile:
        before_the_copy(meanwhile, made_anew)
        with pytest.raises(SourceError, match="not as it was made here"):
            opened().latest_offset(None)
    assert slots(table) == 1, "it is not its own"
    table.drop_slot()
    assert ids(opened(), None, opened().latest_offset(None)) == [("snapshot", 1)]


def test_who_finds_the_record_of_another_copy_keeps_no_slot_of_its_own(
    table: SlotTable, opened: Callable[..., OpenSource], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    end = opened().latest_offset(None)
    store = PosixStore(tmp_path / "checkpoint")
    of_another = store.get("snapshot")
    assert of_another is not None
    store.delete("snapshot")
    before_the_copy(monkeypatch, lambda: store.put_if_absent("snapshot", of_another))
    with pytest.raises(SourceError, match="another process has put its own copy on record"):
        opened().latest_offset(None)
    assert slots(table) == 0
    assert opened().latest_offset(None) == end


def test_a_migration_that_runs_while_the_slot_is_made_waits_for_nobody(
    table: SlotTable, opened: Callable[..., OpenSource]
) -> None:
    """It has written, so the slot waits for it, and then it alters the table."""
    table.execute("CREATE TABLE migrations (id int)")
    found: list[Any] = []
    maker = threading.Thread(target=lambda: found.append(opened().latest_offset(None)))
    with table.orders.connect() as migration:
        migration.execute("INSERT INTO migrations VALUES (1)")
        maker.start()
        wait_until(lambda: table.one("SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted)"))
        migration.execute("SET LOCAL lock_timeout = '5s'")
        migration.execute("ALTER TABLE orders ALTER note SET NOT NULL")
    maker.join(30)
    assert found, "it is made when the migration is done"


ALTERED = {
    "written anew": "ALTER TABLE orders ALTER id TYPE int",
    "emptied": "TRUNCATE orders",
    "renamed column": "ALTER TABLE orders RENAME note TO remark",
    "other table": "ALTER TABLE orders RENAME TO elsewhere; CREATE TABLE orders (id bigint PRIMARY KEY, note text)",
}


@pytest.mark.parametrize("statement", ALTERED.values(), ids=ALTERED.keys())
def test_rows_of_a_table_that_was_altered_since_the_moment_are_not_copied(
    table: SlotTable, opened: Callable[..., OpenSource], monkeypatch: pytest.MonkeyPatch, statement: str
) -> None:
    table.execute("INSERT INTO orders VALUES (1)")
    before_the_copy(monkeypatch, lambda: table.execute(*statement.split("; ")))
    with pytest.raises(SourceError, match=r"orders was altered while slot .* look again"):
        opened().latest_offset(None)
    assert slots(table) == 0


def test_columns_of_a_domain_are_copied(table: SlotTable, opened: Callable[..., OpenSource]) -> None:
    table.execute(
        "CREATE DOMAIN text_or_not AS text",
        "CREATE DOMAIN mail AS text_or_not CHECK (value LIKE '%@%')",
        "ALTER TABLE orders ADD m mail, ADD more mail[]",
        "INSERT INTO orders VALUES (1, 'note', 'a@b', '{c@d}')",
    )
    source = opened(schema="id long, note string, m string, more string")
    (row,) = source.rows(None, source.latest_offset(None))
    assert (row["m"], row["more"]) == ("a@b", "{c@d}")


def test_a_table_that_stays_locked_is_waited_for_no_longer_than_some_time(
    table: SlotTable, opened: Callable[..., OpenSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "LOCK_SECONDS", 0.2)
    with table.orders.connect() as other:
        before_the_copy(monkeypatch, lambda: other.execute("LOCK TABLE orders"))
        with pytest.raises(SourceError, match=r"orders is locked by somebody who alters it.*look again"):
            opened().latest_offset(None)
    assert slots(table) == 0


def test_a_role_whose_statements_are_limited_copies_for_as_long_as_it_takes(
    table: SlotTable, opened: Callable[..., OpenSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    table.execute("INSERT INTO orders SELECT n, repeat('x', 1000) FROM generate_series(1, 20000) AS n")
    written = copying._written

    def slow(*given: Any) -> int:
        time.sleep(0.6)
        return written(*given)

    monkeypatch.setattr(copying, "_written", slow)
    table.execute("ALTER ROLE CURRENT_USER SET statement_timeout = '500ms'")
    try:
        assert opened().latest_offset(None) is not None
    finally:
        table.execute("ALTER ROLE CURRENT_USER RESET statement_timeout")


def test_columns_of_a_snapshot_are_known_by_their_names(table: SlotTable, opened: Callable[..., OpenSource]) -> None:
    table.execute("ALTER TABLE orders ADD more text, ADD twice bigint GENERATED ALWAYS AS (2 * id) STORED")
    table.execute("INSERT INTO orders VALUES (1, 'note', 'more')")
    end = opened(on_schema_change="ignore", schema="id long, note string, more string").latest_offset(None)

    def read(schema: str) -> dict[str, Any]:
        (row,) = opened(on_schema_change="ignore", schema=schema).rows(None, end)
        return {name: value for name, value in row.items() if not name.startswith("_")}

    assert read("id long, more string, note string") == {"id": 1, "more": "more", "note": "note"}
    later = "id long, later int, twice long"
    assert read(later) == {"id": 1, "later": None, "twice": None}, "no change would have them, either"
    with pytest.raises(
        SlotError, match=r"line 1 of .*rows-00000.json has a value in note that the schema's type cannot"
    ):
        read("id long, note int")


def test_a_column_that_was_not_copied_is_not_read_as_null(table: SlotTable, opened: Callable[..., OpenSource]) -> None:
    table.execute("INSERT INTO orders VALUES (1, 'note')")
    end = opened(on_schema_change="ignore", schema="id long").latest_offset(None)
    with pytest.raises(SourceChangedError, match="copied without note"):
        opened().read(None, end)
    assert "copied without note" in str(opened().not_replayable(None, end))


@pytest.mark.parametrize(
    "changed",
    [{"files": [["../../secret", 1]]}, {"note": "../../secret"}, {"note": f"{1:016x}-{'0' * 32}"}],
    ids=["file", "folder", "other slot"],
)
def test_a_record_opens_no_other_files_than_those_of_its_slot(
    table: SlotTable, opened: Callable[..., OpenSource], tmp_path: Path, changed: dict[str, Any]
) -> None:
    table.execute("INSERT INTO orders VALUES (1)")
    end = opened().latest_offset(None)
    record = tmp_path / "checkpoint" / "snapshot"
    record.write_text(json.dumps({**json.loads(record.read_text()), **changed}))
    with pytest.raises(CorruptEntryError, match="no copy of this slot, or has files of other names"):
        opened().read(None, end)


def test_the_copy_is_for_its_user_alone(table: SlotTable, opened: Callable[..., OpenSource], tmp_path: Path) -> None:
    table.execute("INSERT INTO orders VALUES (1)")
    opened().latest_offset(None)
    (folder,) = (tmp_path / "snapshots").iterdir()
    assert [stat.S_IMODE(one.stat().st_mode) for one in (folder, *folder.iterdir())] == [0o700, 0o600]


def test_a_slot_of_somebody_else_is_not_touched(table: SlotTable, opened: Callable[..., OpenSource]) -> None:
    table.make_slot()
    stood = table.moved_to()
    for _ in range(2):
        with pytest.raises(SourceError, match=r"'orders': there is a slot .* already"):
            opened().latest_offset(None)
    assert table.moved_to() == stood


def test_who_only_looks_makes_no_slot(table: SlotTable, tmp_path: Path) -> None:
    draft = Draft(PosixStore(tmp_path / "checkpoint"))
    source = table.opener(tmp_path)({"state": draft}, snapshot=str(tmp_path / "snapshots"))
    with pytest.raises(SourceError, match="'orders': the plan of the first batch makes slot"):
        source.latest_offset(None)
    assert table.one("SELECT count(*) FROM pg_replication_slots WHERE slot_name = %s", table.slot) == 0


def test_a_table_without_rows_has_an_empty_snapshot(table: SlotTable, opened: Callable[..., OpenSource]) -> None:
    end = opened().latest_offset(None)
    assert ids(opened(), None, end) == []
    assert not opened().has_new(end)


def test_a_snapshot_whose_files_are_gone_is_an_error(
    table: SlotTable, opened: Callable[..., OpenSource], tmp_path: Path
) -> None:
    table.execute("INSERT INTO orders VALUES (1)")
    end = opened().latest_offset(None)
    shutil.rmtree(tmp_path / "snapshots")
    with pytest.raises(SourceChangedError, match="lacks rows-00000"):
        opened().read(None, end)
    assert "lacks" in str(opened().not_replayable(None, end))


def test_rows_that_a_policy_hides_from_the_role_stop_the_copy(
    table: SlotTable, opened: Callable[..., OpenSource]
) -> None:
    table.execute(
        "CREATE ROLE reads LOGIN REPLICATION",
        "GRANT SELECT ON orders TO reads",
        "INSERT INTO orders VALUES (1, 'shown'), (2, 'hidden')",
        "CREATE POLICY shown ON orders FOR SELECT TO reads USING (note = 'shown')",
        "ALTER TABLE orders ENABLE ROW LEVEL SECURITY",
    )
    as_it_was = table.orders.connection
    connections.find_by(lambda _: replace(as_it_was, login="reads"))
    try:
        with pytest.raises(SourceError, match=r"row-level security policy for table \"orders\".*BYPASSRLS"):
            opened().latest_offset(None)
        table.execute("ALTER ROLE reads BYPASSRLS")
        assert ids(opened(), None, opened().latest_offset(None)) == [("snapshot", 1), ("snapshot", 2)]
    finally:
        table.drop_slot()
        table.execute("DROP OWNED BY reads", "DROP ROLE reads")
