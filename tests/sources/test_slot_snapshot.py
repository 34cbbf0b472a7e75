"""A snapshot is handed over to its slot: each row of before, then each change behind, none twice and none missing."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_microbatch.exceptions import SourceChangedError, SourceError
from airflow_provider_microbatch.sources import OpenSource
from airflow_provider_microbatch.sources.slot import snapshot as snapshots
from airflow_provider_microbatch.stores.posix import PosixStore
from airflow_provider_microbatch.upkeep.commands.draft import Draft
from tests.support.slot_table import SlotTable, slot_table

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


def test_rows_of_before_come_first_and_then_what_changed_meanwhile(
    table: SlotTable, opened: Callable[..., OpenSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "ROWS_OF_A_FILE", 2)
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
    copied = snapshots.Snapshots._copied

    def later(*given: Any) -> Any:
        table.execute("INSERT INTO orders VALUES (2)", "DELETE FROM orders WHERE id = 1")
        return copied(*given)

    monkeypatch.setattr(snapshots.Snapshots, "_copied", later)
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


def test_who_dies_while_copying_leaves_a_slot_that_the_next_one_makes_anew(
    table: SlotTable, opened: Callable[..., OpenSource], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    table.execute("INSERT INTO orders VALUES (1)")

    def full(*_: Any) -> int:
        raise OSError("No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(snapshots, "_written", full)
        with pytest.raises(OSError, match="No space"):
            opened().latest_offset(None)
    stood = table.moved_to()
    table.execute("INSERT INTO orders VALUES (2)")
    end = opened().latest_offset(None)
    assert table.moved_to() != stood
    assert ids(opened(), None, end) == [("snapshot", 1), ("snapshot", 2)]
    assert len(list((tmp_path / "snapshots").iterdir())) == 1, "what was half copied is gone"


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
