"""Changes end as if each had come once and in order, whatever came when, was replaced or was taken out: held against a
plain dictionary, on the real server."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import DefinitionError, SinkError
from airflow_provider_microbatch.sinks.merge import Merge
from airflow_provider_microbatch.sinks.postgres.open import OpenPostgres
from tests.postgres import database
from tests.postgres.stages import write_lines
from tests.sinks.stages import BATCH, CHECKPOINT, EXPECTED, batch_of, expect

MERGE = Merge(keys=("id", "shop"), sequence_by=("ts", "seq"), delete_when="op = 'D'", leave_out=("op",))
COLUMNS = {
    "op": "string",
    "id": "bigint",
    "shop": "string",
    "ts": "bigint",
    "seq": "int",
    "note": "string",
    "_deleted": "boolean",
}


@dataclass(frozen=True, order=True)
class Change:
    """In the order of its fields behind the key the higher one wins."""

    id: int = field(compare=False)
    shop: str = field(compare=False)
    ts: int
    seq: int
    deleted: bool
    note: str | None = field(compare=False)

    @property
    def cells(self) -> Sequence[str | None]:
        op, deleted = ("D", "true") if self.deleted else ("U", "false")
        return op, str(self.id), self.shop, str(self.ts), str(self.seq), self.note, deleted


def expected(changes: Iterator[Change]) -> dict[tuple[int, str], tuple[Any, ...]]:
    """What a dictionary has after them, in their order."""
    table: dict[tuple[int, str], Change] = {}
    for change in sorted(changes):
        table[change.id, change.shop] = change
    return {key: (*key, one.ts, one.seq, one.note) for key, one in table.items() if not one.deleted}


changes = st.builds(
    Change,
    id=st.integers(0, 2),
    shop=st.sampled_from(["a", "B"]),
    ts=st.integers(0, 3),
    seq=st.integers(0, 2),
    deleted=st.booleans(),
    note=st.none() | st.sampled_from(["", "x", "y"]),
)


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[str, int, list[Change]]]:
    """What is done, to which batch, with which changes. Two changes of a key with one sequence are the same: those that
    differ have an order of their own, which a test beside this one holds."""
    seen: dict[tuple[object, ...], Change] = {}

    def same(change: Change) -> Change:
        return seen.setdefault((change.id, change.shop, change.ts, change.seq), change)

    done, done_ids = list[tuple[str, int, list[Change]]](), set[int]()
    for _ in range(draw(st.integers(1, 7))):
        doing = draw(st.sampled_from(["publish", "publish", "replace", "withdraw"] if done_ids else ["publish"]))
        id = len(done) + 10 if doing == "publish" else draw(st.sampled_from(sorted(done_ids)))
        done_ids = done_ids - {id} if doing == "withdraw" else done_ids | {id}
        found = [] if doing == "withdraw" else [same(one) for one in draw(st.lists(changes, max_size=8))]
        done.append((doing, id, found))
    return done


worlds = itertools.count()


@pytest.mark.slow
@given(history=histories())
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_comes_out_is_what_a_dictionary_has_after_the_changes_in_order(
    tmp_path: Path, history: list[tuple[str, int, list[Change]]]
) -> None:
    folder = tmp_path / str(next(worlds))
    sink = database.sink_in(folder, merge=MERGE)
    held: dict[int, list[Change]] = {}
    epochs: dict[int, int] = {}
    for doing, id, found in history:
        key = BatchKey("live", id)
        if doing == "withdraw":
            assert sink.withdraw(expect(key), epochs[id])
            del held[id]
        else:
            epochs[id] = epochs.get(id, 0) + 1
            write_lines(sink, epochs[id], COLUMNS, [one.cells for one in found], batch=batch_of(key), files=2)
            getattr(sink, doing)(expect(key), epochs[id])
            held[id] = found
        wanted = expected(itertools.chain.from_iterable(held.values()))
        assert database.rows(database.table_in(folder), "id, shop, ts, seq, note", 'id, shop COLLATE "C"') == [
            wanted[key] for key in sorted(wanted)
        ]


def table_after(folder: Path, *batches: Sequence[Change]) -> list[tuple[Any, ...]]:
    sink = database.sink_in(folder, merge=MERGE)
    for id, found in enumerate(batches):
        key = BatchKey("live", id)
        write_lines(sink, 1, COLUMNS, [one.cells for one in found], batch=batch_of(key))
        sink.publish(expect(key), 1)
    return database.rows(database.table_in(folder), "id, shop, ts, seq, note")


def change(**given: Any) -> Change:
    values: Mapping[str, Any] = {"id": 1, "shop": "a", "ts": 1, "seq": 1, "deleted": False, "note": "x", **given}
    return Change(**values)


@pytest.mark.parametrize(
    ("one", "other", "left"),
    [
        (change(note="x"), change(note="y"), [(1, "a", 1, 1, "y")]),
        (change(), change(deleted=True), []),
        (change(ts=2), change(ts=1, seq=9, note="late"), [(1, "a", 2, 1, "x")]),
        (change(ts=2, deleted=True), change(ts=1, note="late"), []),
    ],
    ids=["text decides last", "a deletion wins a tie", "the first column decides first", "no late change comes back"],
)
@pytest.mark.parametrize("how", ["in this order", "in the other", "in one batch"])
def test_of_two_changes_the_same_one_wins_in_whatever_order_they_come(
    tmp_path: Path, one: Change, other: Change, left: list[tuple[Any, ...]], how: str
) -> None:
    batches = {"in this order": ([one], [other]), "in the other": ([other], [one]), "in one batch": ([other, one],)}
    assert table_after(tmp_path, *batches[how]) == left


def test_a_late_change_that_does_not_win_leaves_the_row_as_it_is(tmp_path: Path) -> None:
    """No new version of the row, and no trigger."""
    sink = database.sink_in(tmp_path, merge=MERGE)
    versions = []
    for id, ts in enumerate((5, 4, 6)):
        key = BatchKey("live", id)
        write_lines(sink, 1, COLUMNS, [change(ts=ts, note=f"{ts}").cells], batch=batch_of(key))
        sink.publish(expect(key), 1)
        versions.append(database.rows(database.table_in(tmp_path), "xmin::text, ts"))
    assert versions[0] == versions[1]
    assert versions[2][0][1] == 6


@pytest.mark.parametrize("column", ["id", "ts"])
def test_a_key_or_sequence_that_is_null_fails_the_batch_and_names_it(tmp_path: Path, column: str) -> None:
    sink = database.sink_in(tmp_path, merge=MERGE)
    cells = [None if name == column else cell for name, cell in zip(COLUMNS, change().cells, strict=True)]
    write_lines(sink, 1, COLUMNS, [change().cells, cells])
    with pytest.raises(SinkError, match=rf'null value in column "{column}".*line 2'):
        sink.publish(EXPECTED, 1)


def test_a_table_without_a_unique_constraint_over_the_keys_is_refused_before_anything_runs(tmp_path: Path) -> None:
    table = database.table_in(tmp_path)
    with database.connect() as connection:
        connection.execute(f"CREATE TABLE {table} (id bigint PRIMARY KEY, shop text)".encode())
    wanted = r'no unique constraint over its keys; ALTER TABLE .* PRIMARY KEY \("id", "shop"'
    with pytest.raises(SinkError, match=wanted):
        database.sink_in(tmp_path, merge=MERGE).check()


def test_a_column_that_comes_later_is_kept_with_the_changes_too(tmp_path: Path) -> None:
    sink = database.sink_in(tmp_path, merge=Merge(keys=("id",), sequence_by="ts"))  # type: ignore[arg-type]
    write_lines(sink, 1, {"id": "bigint", "ts": "int"}, [("1", "1")])
    sink.publish(EXPECTED, 1)
    with database.connect() as connection:
        connection.execute(f"ALTER TABLE {database.table_in(tmp_path)} ADD COLUMN note text".encode())
    later = BatchKey("live", 8)
    write_lines(sink, 1, {"id": "bigint", "note": "string", "ts": "int"}, [("1", "new", "2")], batch=batch_of(later))
    sink.publish(expect(later), 1)
    assert database.rows(database.table_in(tmp_path), "id, ts, note") == [(1, 2, "new")]
    assert sink.withdraw(expect(later), 1)
    assert database.rows(database.table_in(tmp_path), "id, ts, note") == [(1, 1, None)]


def published(sink: OpenPostgres, id: int, columns: Mapping[str, str], *cells: str | None) -> None:
    key = BatchKey("live", id)
    write_lines(sink, 1, columns, [cells], batch=batch_of(key))
    sink.publish(expect(key), 1)


def altered(folder: Path, what: str, table: str = "Orders") -> None:
    with database.connect() as connection:
        connection.execute(f"ALTER TABLE {database.table_in(folder, table)} {what}".encode())


@pytest.mark.parametrize("old", [None, "int"], ids=["the changes had no such column", "it was null there"])
def test_another_order_is_refused_of_which_the_kept_changes_know_nothing(tmp_path: Path, old: str | None) -> None:
    """A null would come before every value: no later change of an old key would ever win."""
    columns = {"id": "bigint", "lsn": "int", **({"ts": old} if old else {})}
    before = database.sink_in(tmp_path, merge=Merge(keys=("id",), sequence_by=("lsn",)))
    published(before, 7, columns, "1", "1", *([None] if old else []))
    if not old:
        altered(tmp_path, "ADD COLUMN ts int")
    sink = database.sink_in(tmp_path, merge=Merge(keys=("id",), sequence_by=("ts",)))
    later = {"id": "bigint", "lsn": "int", "ts": "int"}
    with pytest.raises(SinkError, match=r"microbatch_changes_Orders.*has no value of 'ts'.*sequence_by.*Nothing was"):
        published(sink, 8, later, "1", "2", "5")
    with database.connect() as connection:
        table = database.table_in(tmp_path, "microbatch_changes_Orders")
        if old:
            connection.execute(f"UPDATE {table} SET ts = 0".encode())
        else:
            connection.execute(f"ALTER TABLE {table} ADD COLUMN ts int DEFAULT 0".encode())
    sink.publish(expect(BatchKey("live", 8)), 1)
    assert database.rows(database.table_in(tmp_path), "id, lsn, ts") == [(1, 2, 5)]


def test_a_column_that_was_made_wider_loses_nothing_on_its_way_through_the_changes(tmp_path: Path) -> None:
    sink = database.sink_in(tmp_path, merge=Merge(keys=("id",), sequence_by=("ts",), leave_out=("ts",)))
    published(sink, 7, {"id": "bigint", "ts": "int", "price": "decimal(10,2)"}, "1", "1", "1.25")
    altered(tmp_path, "ALTER COLUMN price TYPE numeric(18, 4)")
    wider = {"id": "bigint", "ts": "int", "price": "decimal(18,4)"}
    with pytest.raises(SinkError, match=r"ALTER TABLE .* ALTER COLUMN \"price\" TYPE numeric\(18,4\)"):
        published(sink, 8, wider, "1", "2", "1.2345")
    altered(tmp_path, "ALTER COLUMN price TYPE numeric(18, 4)", "microbatch_changes_Orders")
    sink.publish(expect(BatchKey("live", 8)), 1)
    assert database.rows(database.table_in(tmp_path)) == [(1, Decimal("1.2345"))]
    published(sink, 9, {**wider, "ts": "smallint"}, "1", "3", "1.5")
    with pytest.raises(SinkError, match=r"ALTER COLUMN \"ts\" TYPE bigint"):
        published(sink, 10, {**wider, "ts": "bigint"}, "1", "4", "1.5")


def test_a_change_that_differs_only_in_the_last_digits_counts_whatever_the_database_shows_of_them(
    tmp_path: Path,
) -> None:
    sink = database.sink_in(tmp_path, merge=Merge(keys=("id",), sequence_by=("ts",), leave_out=("ts",)))
    with database.connect() as connection:
        connection.execute("ALTER DATABASE postgres SET extra_float_digits = 0")
    try:
        for number, value in enumerate((0.3, 0.1 + 0.2)):
            published(sink, number, {"id": "bigint", "ts": "int", "value": "double"}, "1", str(number), repr(value))
    finally:
        with database.connect() as connection:
            connection.execute("ALTER DATABASE postgres RESET extra_float_digits")
    assert database.rows(database.table_in(tmp_path), "value") == [(0.1 + 0.2,)]


def test_what_was_put_out_of_a_merged_table_is_kept_and_dropped_by_the_janitor(tmp_path: Path) -> None:
    sink = database.sink_in(tmp_path, merge=MERGE)
    write_lines(sink, 1, COLUMNS, [change().cells])
    sink.publish(EXPECTED, 1)
    write_lines(sink, 2, COLUMNS, [change(id=2).cells])
    sink.replace(EXPECTED, 2)
    assert database.rows(database.table_in(tmp_path), "id") == [(2,)]
    assert len(sink.drop_replaced(CHECKPOINT, older_seconds=0, dry_run=True)) == 1
    assert database.tables_of_ours(tmp_path) == {"kept"}
    assert len(sink.drop_replaced(CHECKPOINT, older_seconds=0)) == 1
    assert database.tables_of_ours(tmp_path) == set()
    assert BATCH.key == EXPECTED.key


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ({"keys": (), "sequence_by": "ts"}, "keys names no column"),
        ({"keys": ("id", "id"), "sequence_by": "ts"}, "keys names a column twice"),
        ({"keys": "id", "sequence_by": 5}, "sequence_by must be names"),
        ({"keys": "id", "sequence_by": "ts", "delete_when": " "}, "delete_when must be a condition"),
        ({"keys": "id", "sequence_by": "ts", "leave_out": "id"}, "leave_out names id"),
    ],
)
def test_a_wrong_merge_is_refused_where_it_is_written(wrong: dict[str, Any], match: str) -> None:
    with pytest.raises(DefinitionError, match=match):
        Merge(**wrong)
