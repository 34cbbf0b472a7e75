"""Changes end as if each had come once and in order, whatever came when, was replaced or was taken out: held against a
plain dictionary, on the real server."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import DefinitionError, SinkError
from airflow_provider_microbatch.sinks.merge import Merge
from airflow_provider_microbatch.sinks.postgres.open import OpenPostgres
from tests.postgres import database
from tests.postgres.merged import COLUMNS, MergedInPostgres, cells_of
from tests.postgres.stages import write_lines
from tests.sinks.changes import (
    MERGE,
    PAIRS,
    WAYS,
    Change,
    Row,
    change,
    check_like_a_dictionary,
    check_one_wins,
    histories,
)
from tests.sinks.stages import BATCH, CHECKPOINT, EXPECTED, batch_of, expect

worlds = itertools.count()


@pytest.mark.slow
@given(history=histories())
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_comes_out_is_what_a_dictionary_has_after_the_changes_in_order(
    tmp_path: Path, history: list[tuple[str, int, list[Change]]]
) -> None:
    check_like_a_dictionary(MergedInPostgres(tmp_path / str(next(worlds))), history)


@pytest.mark.parametrize(("one", "other", "left"), PAIRS.values(), ids=PAIRS)
@pytest.mark.parametrize("how", WAYS)
def test_of_two_changes_the_same_one_wins_in_whatever_order_they_come(
    tmp_path: Path, one: Change, other: Change, left: list[Row], how: str
) -> None:
    check_one_wins(MergedInPostgres(tmp_path), one, other, left, how=how)


def test_a_late_change_that_does_not_win_leaves_the_row_as_it_is(tmp_path: Path) -> None:
    """No new version of the row, and no trigger."""
    sink = database.sink_in(tmp_path, merge=MERGE)
    versions = []
    for id, ts in enumerate((5, 4, 6)):
        key = BatchKey("live", id)
        write_lines(sink, 1, COLUMNS, [cells_of(change(ts=ts, note=f"{ts}"))], batch=batch_of(key))
        sink.publish(expect(key), 1)
        versions.append(database.rows(database.table_in(tmp_path), "xmin::text, ts"))
    assert versions[0] == versions[1]
    assert versions[2][0][1] == 6


@pytest.mark.parametrize("column", ["id", "ts"])
def test_a_key_or_sequence_that_is_null_fails_the_batch_and_names_it(tmp_path: Path, column: str) -> None:
    sink = database.sink_in(tmp_path, merge=MERGE)
    cells = [None if name == column else cell for name, cell in zip(COLUMNS, cells_of(change()), strict=True)]
    write_lines(sink, 1, COLUMNS, [cells_of(change()), cells])
    with pytest.raises(SinkError, match=rf'null value in column "{column}".*line 2'):
        sink.publish(EXPECTED, 1)


@pytest.mark.parametrize("is_left_out", [False, True])
def test_a_sequence_that_is_no_number_fails_the_batch_and_names_it(tmp_path: Path, is_left_out: bool) -> None:
    merge = Merge(keys=("id",), sequence_by=("half", "at"), leave_out=("at",) if is_left_out else ())
    sink, columns = database.sink_in(tmp_path, merge=merge), {"id": "bigint", "half": "float", "at": "double"}
    published(sink, 0, columns, "1", "Infinity", "1")
    for number, cells in enumerate((("NaN", "1"), ("1", "NaN")), 1):
        with pytest.raises(
            SinkError, match=r"1 of the changes of batch live/\d have NaN in '(half|at)'.*Nothing was pub"
        ):
            published(sink, number, columns, "1", *cells)
    assert database.rows(database.table_in(tmp_path), "id, half") == [(1, float("inf"))]


def test_a_table_without_a_unique_constraint_over_the_keys_is_refused_before_anything_runs(tmp_path: Path) -> None:
    table = database.table_in(tmp_path)
    with database.connect() as connection:
        connection.execute(f"CREATE TABLE {table} (id bigint PRIMARY KEY, shop text)".encode())
    wanted = r'no unique constraint over its keys; ALTER TABLE .* PRIMARY KEY \("id", "shop"'
    with pytest.raises(SinkError, match=wanted):
        database.sink_in(tmp_path, merge=MERGE).check()


def test_an_index_over_the_keys_that_takes_other_texts_for_equal_is_refused_before_anything_runs(
    tmp_path: Path,
) -> None:
    made(tmp_path, "code text PRIMARY KEY, ts int, note text")
    table, sink = database.table_in(tmp_path), database.sink_in(tmp_path, merge=BY_CODE)
    folded = f"{table.rpartition('.')[0]}.folded"
    with database.connect() as connection:
        connection.execute(f'CREATE UNIQUE INDEX ON {table} (code COLLATE "C")'.encode())
        sink.check()
        # This server has no library by which a collation would take capitals for small letters: it is told to be one.
        connection.execute(f"CREATE COLLATION {folded} (locale = 'C')".encode())
        told = "UPDATE pg_collation SET collisdeterministic = false WHERE oid = %s::regcollation"
        connection.execute(told, [folded])
        connection.execute(f"CREATE UNIQUE INDEX by_code ON {table} (code COLLATE {folded}) INCLUDE (ts)".encode())
    with pytest.raises(SinkError, match=r"its unique index .*\.by_code takes other texts for equal"):
        sink.check()


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


def test_which_of_two_changes_wins_depends_on_no_column_that_comes_later(tmp_path: Path) -> None:
    rows = [("1", "1", "C"), ("1", "1", "C+"), ("2", "1", "B", "7")]
    columns = {"id": "bigint", "ts": "int", "unit": "string", "vat": "int"}
    for order in ([0, 1, 2], [2, 1, 0]):
        folder = tmp_path / str(order[0])
        sink = database.sink_in(folder, merge=Merge(keys=("id",), sequence_by=("ts",)))
        for at in order:
            if order[0] == 0 and at == 2:
                altered(folder, "ADD COLUMN vat int")
            published(sink, at, dict(list(columns.items())[: len(rows[at])]), *rows[at])
        assert database.rows(database.table_in(folder), "id, unit") == [(1, "C"), (2, "B")]


def forget_order(folder: Path) -> None:
    """The table is one of before the order was on record."""
    with database.connect() as connection:
        changes = database.table_in(folder, "microbatch_changes_Orders")
        connection.execute(f"COMMENT ON TABLE {changes} IS NULL".encode())


@pytest.mark.parametrize(
    "other",
    [Merge(keys=("id",), sequence_by=("n",)), Merge(keys=("n",), sequence_by=("lsn",))],
    ids=["sequence", "keys"],
)
def test_another_order_or_other_keys_than_those_of_before_are_refused(tmp_path: Path, other: Merge) -> None:
    """A key would stay as it is until it is touched, and a replay of the same changes would make it another one."""
    columns = {"id": "bigint", "lsn": "int", "n": "int"}
    before = database.sink_in(tmp_path, merge=Merge(keys=("id",), sequence_by=("lsn",)))
    published(before, 7, columns, "1", "1", "5")
    altered(tmp_path, "ADD UNIQUE (n)")
    sink = database.sink_in(tmp_path, merge=other)
    with pytest.raises(SinkError, match=r"by keys=\['id'\] and sequence_by=\['lsn'\], and the sink says"):
        sink.check()
    with pytest.raises(SinkError, match=r"Nothing was written; go on by those of before"):
        published(sink, 8, columns, "1", "2", "3")
    before.check()
    forget_order(tmp_path)
    sink.check()


@pytest.mark.parametrize("old", [None, "int"], ids=["the changes had no such column", "it was null there"])
def test_another_order_is_refused_of_which_the_kept_changes_know_nothing(tmp_path: Path, old: str | None) -> None:
    """A null would come before every value: no later change of an old key would ever win."""
    columns = {"id": "bigint", "lsn": "int", **({"ts": old} if old else {})}
    before = database.sink_in(tmp_path, merge=Merge(keys=("id",), sequence_by=("lsn",)))
    published(before, 7, columns, "1", "1", *([None] if old else []))
    if not old:
        altered(tmp_path, "ADD COLUMN ts int")
    forget_order(tmp_path)
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


def made(folder: Path, columns: str, table: str = "Orders") -> None:
    with database.connect() as connection:
        connection.execute(f"CREATE TABLE {database.table_in(folder, table)} ({columns})".encode())


CODES = {"code": "string", "ts": "int", "note": "string"}
BY_CODE = Merge(keys=("code",), sequence_by=("ts",))


def test_a_collation_that_changed_in_the_table_is_named_with_what_to_do_with_the_changes(tmp_path: Path) -> None:
    made(tmp_path, "code text PRIMARY KEY, ts int, note text")
    sink = database.sink_in(tmp_path, merge=BY_CODE)
    published(sink, 0, CODES, "A", "5", "newest")
    altered(tmp_path, 'ALTER COLUMN code TYPE text COLLATE "C", ALTER COLUMN note TYPE text COLLATE "C"')
    with pytest.raises(SinkError, match=r"of another type or collation than.* It is text: ALTER TABLE") as refused:
        published(sink, 1, CODES, "A", "3", "late")
    (what,) = re.findall(r" (ALTER COLUMN .*?)\. Nothing was loaded", str(refused.value))
    assert what == 'ALTER COLUMN "code" TYPE text COLLATE pg_catalog."C"'
    altered(tmp_path, what, "microbatch_changes_Orders")
    sink.publish(expect(BatchKey("live", 1)), 1)
    published(sink, 2, CODES, "A", "6", "later")
    assert database.rows(database.table_in(tmp_path)) == [("A", 6, "later")]


def test_changes_are_kept_with_the_collation_of_the_table(tmp_path: Path) -> None:
    made(tmp_path, 'code text COLLATE "C" PRIMARY KEY, ts int, note text')
    sink = database.sink_in(tmp_path, merge=BY_CODE)
    for number in range(2):
        published(sink, number, CODES, "A", str(number), "x")
    where = f"table_schema = '{database.schema_of(tmp_path)}' AND table_name = 'microbatch_changes_Orders'"
    columns = f"(SELECT * FROM information_schema.columns WHERE {where}) AS columns"
    assert ("code", "C") in database.rows(columns, "column_name::text, collation_name::text")


def test_a_column_that_was_renamed_in_the_table_is_named_with_what_to_do_with_the_changes(tmp_path: Path) -> None:
    sink = database.sink_in(tmp_path, merge=Merge(keys=("id",), sequence_by=("ts",)))
    published(sink, 7, {"id": "bigint", "ts": "int", "v": "string"}, "1", "1", "old")
    altered(tmp_path, "RENAME COLUMN v TO w")
    named = {"id": "bigint", "ts": "int", "w": "string"}
    with pytest.raises(SinkError, match=r"the column 'v', which the table has no more.* RENAME COLUMN \"v\" TO"):
        published(sink, 8, named, "1", "2", "new")
    with pytest.raises(SinkError, match=r"the column 'v', which the table has no more"):
        sink.withdraw(expect(BatchKey("live", 7)), 1)
    altered(tmp_path, "RENAME COLUMN v TO w", "microbatch_changes_Orders")
    sink.publish(expect(BatchKey("live", 8)), 1)
    assert database.rows(database.table_in(tmp_path)) == [(1, 2, "new")]
    assert sink.withdraw(expect(BatchKey("live", 8)), 1)
    assert database.rows(database.table_in(tmp_path)) == [(1, 1, "old")]


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
    write_lines(sink, 1, COLUMNS, [cells_of(change())])
    sink.publish(EXPECTED, 1)
    write_lines(sink, 2, COLUMNS, [cells_of(change(id=2))])
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
