"""Of each key all versions (SCD type 2), held against a plain model on the real server: whatever came when, was
replaced or was taken out, they are those of the changes that are in."""

from __future__ import annotations

import datetime as dt
import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import DefinitionError, SinkError
from airflow_provider_microbatch.sinks.merge import Merge
from airflow_provider_microbatch.sinks.postgres import PostgresSink
from tests.postgres import database
from tests.postgres.merged import MergedInPostgres
from tests.postgres.stages import write_lines
from tests.sinks.changes import (
    MERGE,
    VERSIONED,
    WAYS,
    Change,
    change,
    check_like_a_dictionary,
    check_same_versions,
    histories,
    versions,
)
from tests.sinks.stages import BATCH, EXPECTED, batch_of, expect

worlds = itertools.count()


def make(table: MergedInPostgres, columns: str) -> None:
    with database.connect() as connection:
        connection.execute(f"CREATE TABLE {table.table} ({columns})".encode())


def guarded(folder: Path) -> MergedInPostgres:
    """A table that takes no two open versions of a key, and none that ends before it begins: row by row."""
    table = MergedInPostgres(folder, VERSIONED)
    make(
        table,
        "id bigint, shop text, note text, valid_from bigint, valid_to bigint CHECK (valid_from < valid_to), "
        "PRIMARY KEY (id, shop, valid_from)",
    )
    with database.connect() as connection:
        connection.execute(f"CREATE UNIQUE INDEX ON {table.table} (id, shop) WHERE valid_to IS NULL".encode())
    return table


@pytest.mark.parametrize("how", WAYS)
def test_changes_make_the_same_versions_in_whatever_order_they_come(tmp_path: Path, how: str) -> None:
    check_same_versions(MergedInPostgres(tmp_path, VERSIONED), how=how)


def test_a_late_change_comes_between_its_neighbours_and_leaves_all_other_rows_as_they_are(tmp_path: Path) -> None:
    table = MergedInPostgres(tmp_path, VERSIONED)
    table.publish(1, *(change(ts=ts, note=f"{ts}") for ts in (1, 3, 9, 12)), change(id=2))
    before = database.rows(table.table, "valid_from, xmin::text", "id, valid_from")
    table.publish(2, change(ts=6, note="late"), change(ts=9, note="9"))
    after = database.rows(table.table, "valid_from, xmin::text", "id, valid_from")
    assert [row[2:] for row in table.rows() if row[0] == 1] == [
        ("1", 1, 3), ("3", 3, 6), ("late", 6, 9), ("9", 9, 12), ("12", 12, None),
    ]  # fmt: skip
    assert set(before) - set(after) == {before[1]}  # whose end has moved


def test_a_late_change_parts_a_version_that_changes_without_effect_had_made_long(tmp_path: Path) -> None:
    table = guarded(tmp_path)
    table.publish(1, change(ts=1), change(ts=5), change(ts=9))
    assert table.rows() == [(1, "a", "x", 1, None)]
    table.publish(2, change(ts=3, note="y"))
    assert table.rows() == [(1, "a", "x", 1, 3), (1, "a", "y", 3, 5), (1, "a", "x", 5, None)]
    table.sink.withdraw(expect(BatchKey("live", 2)), 1)
    assert table.rows() == [(1, "a", "x", 1, None)]


def test_a_sequence_that_the_table_shows_is_a_column_like_others(tmp_path: Path) -> None:
    table = MergedInPostgres(tmp_path, replace(VERSIONED, leave_out=("op", "seq")))
    table.publish(1, change(ts=1), change(ts=5))
    assert database.rows(table.table, "ts, valid_from, valid_to", "ts") == [(1, 1, 5), (5, 5, None)]


def test_the_bounds_have_the_names_that_are_asked_for_and_the_type_of_the_sequence(tmp_path: Path) -> None:
    merge = Merge(keys=("id",), sequence_by=("at",), leave_out=("at",), scd_type=2, valid_from="From", valid_to="to")
    sink = database.sink_in(tmp_path, merge=merge)
    columns = {"id": "bigint", "at": "timestamp", "note": "string"}
    lines = [("1", f"2026-01-0{day} 00:00:00.000001+00", note) for day, note in ((2, "y"), (1, "x"))]
    write_lines(sink, 1, columns, lines)
    sink.publish(EXPECTED, 1)
    days = [dt.datetime(2026, 1, day, microsecond=1, tzinfo=dt.UTC) for day in (1, 2)]
    found = database.rows(database.table_in(tmp_path), 'id, note, "From", "to"', '"From"')
    assert found == [(1, "x", *days), (1, "y", days[1], None)]
    assert {"From", "to"} <= set(sink.stage(BATCH, 1).reserved_columns)


def test_a_sequence_goes_into_wider_bounds_and_into_no_narrower_ones(tmp_path: Path) -> None:
    table = MergedInPostgres(tmp_path, VERSIONED)
    make(table, "id bigint, shop text, note text, valid_from numeric, valid_to numeric, UNIQUE (id, shop, valid_from)")
    table.publish(1, change(ts=2**40))
    assert table.rows() == [(1, "a", "x", 2**40, None)]
    narrow = MergedInPostgres(tmp_path / "narrow", VERSIONED)
    make(narrow, "id bigint, shop text, note text, valid_from int, valid_to int, UNIQUE (id, shop, valid_from)")
    with pytest.raises(SinkError, match=r"'ts' is bigint in the result, and not every value of it goes into integer"):
        narrow.publish(1, change())
    intake = narrow.sink.intake()
    assert intake is not None
    assert {one.name: one.type for one in intake.columns} == {
        "id": "bigint", "shop": None, "note": None, "ts": "int", "seq": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("columns", "match"),
    [
        ("valid_from int, valid_to int NOT NULL, UNIQUE (id, shop, valid_from)", "'valid_to' has to take .* null"),
        ("valid_from int, UNIQUE (id, shop, valid_from)", "no column 'valid_to', a bound of versions"),
        ("valid_from int, valid_to bigint, UNIQUE (id, shop, valid_from)", r"'valid_from' \(integer\) .* differ"),
        ("valid_from int, valid_to int, UNIQUE (id, shop)", r"no unique constraint over its keys and 'valid_from'"),
    ],
)
def test_a_table_that_cannot_have_versions_is_refused_before_anything_runs(
    tmp_path: Path, columns: str, match: str
) -> None:
    table = MergedInPostgres(tmp_path, VERSIONED)
    make(table, f"id bigint, shop text, note text, {columns}")
    with pytest.raises(SinkError, match=match):
        table.sink.check()


def test_a_table_of_another_type_of_merge_is_refused(tmp_path: Path) -> None:
    """The changes that the one keeps do not do for the other, even if somebody gives the table its columns."""
    for has, wants in ((MERGE, VERSIONED), (VERSIONED, MERGE), (VERSIONED, None)):
        table = MergedInPostgres(tmp_path / str(next(worlds)), has)
        table.publish(1, change())
        sink = database.sink_in(table.folder, merge=wants)
        with pytest.raises(SinkError, match=rf"by scd_type={has.scd_type}: .*Give the sink its merge=… again"):
            sink.check()
        write_lines(sink, 1, {"id": "bigint"}, [("1",)], batch=batch_of(BatchKey("live", 2)))
        with pytest.raises(SinkError, match="Give the sink its merge"):
            sink.publish(expect(BatchKey("live", 2)), 1)
        assert len(table.rows()) == 1


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (
            replace(VERSIONED, sequence_by=("lsn",), leave_out=("op", "ts", "seq", "lsn")),
            r"sequence_by=\['ts', 'seq'\]",
        ),
        (replace(VERSIONED, keys=("id",)), r"keys=\['id', 'shop'\]"),
        (replace(VERSIONED, valid_to="until"), r"the sink says all versions of each key, from 'valid_from' to 'until'"),
    ],
    ids=["sequence", "keys", "bounds"],
)
def test_another_order_or_other_keys_than_those_of_the_versions_are_refused(
    tmp_path: Path, other: Merge, told: str
) -> None:
    """Old versions would be taken for versions of the new order: a key would lose all that it has had."""
    MergedInPostgres(tmp_path, VERSIONED).publish(1, change(ts=1000), change(ts=2000, note="y"))
    with database.connect() as connection:
        connection.execute(f"ALTER TABLE {database.table_in(tmp_path)} ADD COLUMN until bigint".encode())
    sink = database.sink_in(tmp_path, merge=other)
    with pytest.raises(SinkError, match=rf"Orders.*{told}.*Nothing was written"):
        sink.check()
    columns = {"id": "bigint", "shop": "string", "lsn": "bigint", "ts": "bigint", "seq": "int", "note": "string"}
    write_lines(sink, 1, columns, [("1", "a", "7", "7", "1", "z")], batch=batch_of(BatchKey("live", 2)))
    for ask in (
        lambda: sink.publish(expect(BatchKey("live", 2)), 1),
        lambda: sink.withdraw(expect(BatchKey("live", 1)), 1),
        sink.check_whole,  # before a rewind takes anything out
    ):
        with pytest.raises(SinkError, match=told):
            ask()
    assert len(MergedInPostgres(tmp_path, VERSIONED).rows()) == 2


def test_keys_in_another_order_are_the_same_keys(tmp_path: Path) -> None:
    MergedInPostgres(tmp_path, VERSIONED).publish(1, change(ts=1))
    table = MergedInPostgres(tmp_path, replace(VERSIONED, keys=("shop", "id")))
    table.sink.check()
    table.publish(2, change(ts=5, note="y"))
    assert table.rows() == [(1, "a", "x", 1, 5), (1, "a", "y", 5, None)]


@pytest.mark.parametrize("said", [None, "the history of our customers", '{"keys": 5}', "[]"])
def test_changes_of_which_no_order_is_on_record_go_on(tmp_path: Path, said: str | None) -> None:
    """Those of before it was recorded, or what somebody has written in its place."""
    table = MergedInPostgres(tmp_path, VERSIONED)
    table.publish(1, change())
    with database.connect() as connection:
        history = database.table_in(tmp_path, "microbatch_history_Orders")
        literal = "NULL" if said is None else f"'{said}'"
        connection.execute(f"COMMENT ON TABLE {history} IS {literal}".encode())
    table.sink.check()
    table.publish(2, change(ts=5, note="y"))
    assert len(table.rows()) == 2


def test_a_table_that_has_rows_of_others_gets_no_versions(tmp_path: Path) -> None:
    """The first change of a key would take the version that it has away: no change that is kept has made it."""
    table = guarded(tmp_path)
    with database.connect() as connection:
        connection.execute(f"INSERT INTO {table.table} VALUES (1, 'a', 'old', 3, NULL)".encode())
    told = "has rows, and no changes that have made them.*Write to another table"
    with pytest.raises(SinkError, match=told):
        table.sink.check()
    with pytest.raises(SinkError, match=told):
        table.publish(1, change(ts=9))
    assert table.rows() == [(1, "a", "old", 3, None)]


def test_a_table_of_rows_is_refused_for_changes_before_anything_runs(tmp_path: Path) -> None:
    """A row of changes has no batch, and the columns that say it take no null."""
    for merge in (MERGE, VERSIONED):
        table = MergedInPostgres(tmp_path / str(next(worlds)), merge)
        make(
            table,
            "id bigint, shop text, ts bigint, seq int, note text, valid_from bigint, valid_to bigint, "
            "_batch_lane text NOT NULL, _batch_id bigint NOT NULL, UNIQUE (id, shop), UNIQUE (id, shop, valid_from)",
        )
        told = r"'_batch_lane' takes no null, has no default, and gets no value.*DROP COLUMN \"_batch_id\""
        with pytest.raises(SinkError, match=told):
            table.sink.check()
        with database.connect() as connection:
            for name in ("_batch_lane", "_batch_id"):
                connection.execute(f"ALTER TABLE {table.table} DROP COLUMN {name}".encode())
        table.sink.check()
        table.publish(1, change())
        assert len(table.rows()) == 1


def test_a_pipeline_that_changes_the_type_of_its_merge_is_told_so() -> None:
    one, other = (PostgresSink("w", "t", stages="/s", merge=merge) for merge in (MERGE, VERSIONED))
    told = other.unlike(one)
    assert told is not None
    assert "has batches of changes, and this sink writes changes with their history (scd_type=2)" in told
    assert one.unlike(one) is None


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ({"scd_type": 3}, "scd_type must be 1 or 2"),
        ({"scd_type": 2.0}, "scd_type must be 1 or 2"),
        ({"valid_to": "end"}, "valid_to is a column of scd_type=2"),
        ({"scd_type": 2, "valid_to": "Valid_From"}, "are one column"),
        ({"scd_type": 2, "valid_to": None}, "valid_to must be the name of a column"),
        ({"scd_type": 2, "leave_out": "Valid_To"}, "'Valid_To' is a column of the changes"),
        ({"scd_type": 2, "sequence_by": "id"}, "no version would ever end"),
    ],
)
def test_versions_that_cannot_be_are_refused_where_they_are_written(wrong: dict[str, Any], match: str) -> None:
    with pytest.raises(DefinitionError, match=match):
        Merge(**{"keys": "id", "sequence_by": "ts", **wrong})


@pytest.mark.parametrize(
    ("columns", "match"),
    [({"id": "int", "valid_to": "int"}, "'valid_to' is added by this package"), ({"id": "int"}, "columns lacks 'ts'")],
)
def test_columns_name_the_sequence_and_not_the_bounds(columns: dict[str, str], match: str) -> None:
    with pytest.raises(DefinitionError, match=match):
        PostgresSink("w", "t", stages="/s", columns=columns, merge=VERSIONED)


def test_a_table_of_declared_columns_is_made_with_the_bounds(tmp_path: Path) -> None:
    kinds = {"op": "text", "id": "bigint", "shop": "text", "ts": "bigint", "seq": "int", "note": "text"}
    sink = database.sink_in(tmp_path, merge=VERSIONED, columns=kinds)
    sink.make_ready(EXPECTED.tables, is_there=None)
    sink.check()
    table = MergedInPostgres(tmp_path, VERSIONED)
    table.publish(1, change())
    assert table.rows() == [(1, "a", "x", 1, None)]


@pytest.mark.slow
@given(history=histories())
@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_versions_are_those_of_the_changes_that_are_in(
    tmp_path: Path, history: list[tuple[str, int, list[Change]]]
) -> None:
    check_like_a_dictionary(guarded(tmp_path / str(next(worlds))), history, versions)
