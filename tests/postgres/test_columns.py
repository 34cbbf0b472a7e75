"""A table is made for the result, or held against it column by column, before a row of it is loaded."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import DefinitionError, SinkError
from airflow_provider_microbatch.sinks.merge import Merge
from airflow_provider_microbatch.sinks.postgres import PostgresSink
from airflow_provider_microbatch.sinks.postgres.types import StagedColumn
from tests.postgres import database
from tests.postgres.stages import write_lines, write_stage
from tests.sinks.stages import BATCH, EXPECTED, batch_of, expect

OWN = "_batch_lane text NOT NULL, _batch_id bigint NOT NULL"


def made(folder: Path, columns: str) -> str:
    table = database.table_in(folder)
    with database.connect() as connection:
        connection.execute(f"CREATE TABLE {table} ({columns})".encode())
    return table


@pytest.mark.parametrize(
    ("columns", "match"),
    [
        (f"id bigint, {OWN}", "it has no column 'epoch'"),
        (f'id bigint, "Epoch" int, {OWN}', "it has no column 'epoch', but 'Epoch': capitals count"),
        (f"id bigint, epoch smallint, {OWN}", "column 'epoch' is int in the result, and not every value .* smallint"),
        (f"id text, epoch int, {OWN}", "column 'id' is bigint in the result, .* text"),
        (f"id bigint, epoch int, note text NOT NULL, {OWN}", "its column 'note' takes no null, has no default"),
        (f"id bigint GENERATED ALWAYS AS IDENTITY, epoch int, {OWN}", "column 'id' gets its values from the table"),
        ("id bigint, epoch int", "no column '_batch_lane'; ALTER TABLE .* ADD COLUMN \"_batch_lane\" text"),
    ],
)
def test_what_does_not_go_into_the_table_is_named_and_nothing_is_loaded(
    tmp_path: Path, columns: str, match: str
) -> None:
    table = made(tmp_path, columns)
    sink = database.sink_in(tmp_path)
    write_stage(sink, 1)
    with pytest.raises(SinkError, match=match):
        sink.publish(EXPECTED, 1)
    assert database.rows(table, "count(*)") == [(0,)]
    assert sink.contains(EXPECTED) is None
    assert database.tables_of_ours(tmp_path) == set()


def test_what_the_table_has_more_gets_its_own_values_and_types_may_be_wider(tmp_path: Path) -> None:
    table = made(
        tmp_path,
        f"nr serial, id numeric(20), epoch bigint, note text, at timestamptz NOT NULL DEFAULT now(), "
        f"twice bigint GENERATED ALWAYS AS (epoch * 2) STORED, {OWN}",
    )
    sink = database.sink_in(tmp_path)
    for epoch in (1, 2):
        write_stage(sink, epoch, rows=2)
    sink.publish(EXPECTED, 1)
    sink.replace(EXPECTED, 2)
    found = database.rows(table, "id::int, epoch, note, at IS NULL, twice, _batch_lane, _batch_id", "id")
    assert found == [(id, 2, None, False, 4, "live", 7) for id in range(2)]
    assert len(sink.drop_replaced(BATCH.checkpoint, older_seconds=0)) == 1


def test_a_declared_table_is_made_before_anything_runs_and_held_against_what_is_declared(tmp_path: Path) -> None:
    columns = {"id": "int8", "epoch": "integer", "price": "numeric(18, 4)", "tags": "text[]"}
    sink = database.sink_in(tmp_path, columns=columns)
    sink.make_ready(EXPECTED.tables, is_there=lambda: True)
    sink.make_ready(EXPECTED.tables, is_there=lambda: True)
    sink.check()
    assert sink.stage(BATCH, 1).arguments["columns"] == list(columns)
    assert database.rows(database.table_in(tmp_path), "count(*)") == [(0,)]
    wrong = database.sink_in(tmp_path, columns={**columns, "price": "numeric(18, 2)", "more": "text"})
    with pytest.raises(SinkError) as error:
        wrong.check()
    assert "column 'price' is numeric(18,4) there, and numeric(18,2) in columns=" in str(error.value)
    assert "it has no column 'more'" in str(error.value)
    with database.connect() as connection:
        connection.execute(f"ALTER TABLE {database.table_in(tmp_path)} ALTER price SET NOT NULL".encode())
    fewer = database.sink_in(tmp_path, columns={"id": "int8", "epoch": "int4"})
    with pytest.raises(SinkError, match="its column 'price' takes no null"):
        fewer.check()


@pytest.mark.parametrize("own", [", " + OWN, ""])
def test_a_table_of_merged_changes_takes_no_rows_without_a_merge(tmp_path: Path, own: str) -> None:
    """An error that offered the two columns would have its user append to what the next change overwrites."""
    table = made(tmp_path, f"id bigint PRIMARY KEY, epoch int{own}".replace(" NOT NULL", ""))
    merged = database.sink_in(tmp_path, merge=Merge(keys=("id",), sequence_by=("epoch",)))
    write_stage(merged, 1)
    merged.publish(EXPECTED, 1)
    there = database.rows(table, "count(*)")
    later = BatchKey("live", 8)
    write_stage(database.sink_in(tmp_path), 1, batch=batch_of(later))
    with pytest.raises(SinkError, match=r"are merged into the table .*merge=… again"):
        database.sink_in(tmp_path).publish(expect(later), 1)
    assert database.rows(table, "count(*)") == there


def test_a_column_that_is_left_out_and_takes_no_null_is_told_before_anything_runs(tmp_path: Path) -> None:
    """No change gives it a value, and each publish would fail, after Spark's job."""
    table = made(tmp_path, "id bigint PRIMARY KEY, epoch int, email text NOT NULL, made text NOT NULL DEFAULT 'here'")
    sink = database.sink_in(tmp_path, merge=Merge(keys=("id",), sequence_by=("epoch",), leave_out=("email", "made")))
    with pytest.raises(SinkError, match=r"'email' takes no null.* leave_out names it") as error:
        sink.check()
    (way,) = re.findall(r"ALTER TABLE .*? DROP NOT NULL", str(error.value))
    with database.connect() as connection:
        connection.execute(way.encode())
    sink.check()
    write_lines(sink, 1, {"id": "bigint", "epoch": "int", "email": "string", "made": "string"}, [("1", "1", "a", "b")])
    sink.publish(EXPECTED, 1)
    assert database.rows(table) == [(1, 1, None, "here")]


@pytest.mark.parametrize("rows", [3, 0])
@pytest.mark.parametrize("scd_type", [1, 2])
def test_a_table_that_batches_of_rows_are_in_is_told_to_keep_knowing_whose_they_are(
    tmp_path: Path, rows: int, scd_type: int
) -> None:
    """Without its columns of the batch no replay and no rewind finds the rows that it brings again."""
    sink = database.sink_in(tmp_path)
    write_stage(sink, 1, rows=rows)
    sink.publish(EXPECTED, 1)
    merged = database.sink_in(tmp_path, merge=Merge(keys=("id",), sequence_by=("epoch",), scd_type=scd_type))
    with pytest.raises(SinkError, match=r"has batches of rows.*Go on as before, or write to another table") as error:
        merged.check()
    assert "DROP COLUMN" not in str(error.value)
    with database.connect() as connection:  # a table that was restored without the records
        connection.execute(f"DELETE FROM {database.table_in(tmp_path, 'microbatch_batches')}".encode())
    with pytest.raises(SinkError, match="has batches of rows" if rows else "DROP COLUMN"):
        merged.check()


def test_a_type_that_the_database_does_not_have_is_named(tmp_path: Path) -> None:
    sink = database.sink_in(tmp_path, columns={"id": "int8", "place": "geometry"})
    with pytest.raises(SinkError, match='type "geometry" does not exist'):
        sink.make_ready(EXPECTED.tables, is_there=lambda: True)


def test_a_type_that_is_a_statement_is_not_run(tmp_path: Path) -> None:
    """Definitions are read out of checkpoints, and strangers may write there."""
    made(tmp_path, f"id bigint, epoch int, {OWN}")
    with database.connect() as victim:
        ends = f"boolean UNION SELECT pg_terminate_backend({victim.info.backend_pid})"
        with pytest.raises(SinkError, match="syntax error"):
            database.sink_in(tmp_path, columns={"id": "bigint", "epoch": ends}).check()
        assert victim.execute("SELECT 1").fetchone() == (1,)


@pytest.mark.parametrize(
    "type", ["text DEFAULT current_user", "bigint REFERENCES secrets", "text COLLATE pg_catalog.C"]
)
def test_a_type_that_is_more_than_one_makes_no_table(tmp_path: Path, type: str) -> None:
    sink = database.sink_in(tmp_path, columns={"id": type})
    with pytest.raises(SinkError, match=r"syntax error|no type"):
        sink.make_ready(EXPECTED.tables, is_there=lambda: True)


def test_a_table_that_is_absent_and_not_to_be_made_and_a_view_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SinkError, match=r"there is no table .*create=False"):
        database.sink_in(tmp_path, create=False).check()
    with database.connect() as connection:
        view = database.table_in(tmp_path)
        connection.execute(f"CREATE VIEW {view} AS SELECT 1 AS id, '' AS _batch_lane, 1 AS _batch_id".encode())
    with pytest.raises(SinkError, match="it is a view"):
        database.sink_in(tmp_path).check()


def test_a_table_that_is_gone_is_not_made_anew_with_the_next_batch_alone_in_it(tmp_path: Path) -> None:
    sink = database.sink_in(tmp_path)
    write_stage(sink, 1)
    sink.publish(EXPECTED, 1)
    with database.connect() as connection:
        connection.execute(f"ALTER TABLE {database.table_in(tmp_path)} RENAME TO elsewhere".encode())
    key = BatchKey("live", 8)
    write_stage(sink, 1, batch=batch_of(key))
    declared = database.sink_in(tmp_path, columns={"id": "bigint", "epoch": "int"})
    for ask in (
        sink.check,
        lambda: declared.make_ready(EXPECTED.tables, is_there=lambda: True),
        lambda: sink.publish(expect(key), 1),
    ):
        with pytest.raises(SinkError, match=r"the table .*Orders is gone.*microbatch_batches.*rewind"):
            ask()
    assert sink.contains(expect(key)) is None
    assert sink.withdraw(EXPECTED, 1), "it was dropped on purpose"
    assert sink.publish(expect(key), 1).epoch == 1


def test_a_schema_that_is_absent_is_named_before_anything_runs(tmp_path: Path) -> None:
    sink = database.sink_in(tmp_path)
    absent = PostgresSink(database.CONN_ID, "nowhere.orders", stages=str(tmp_path / "stages"))
    with pytest.raises(SinkError, match="in schema nowhere: there is no such schema"):
        absent.open(_context()).check()
    sink.check()


def _context() -> Any:
    from airflow_provider_microbatch.sinks import SinkContext

    return SinkContext(connect=database.connection_of)


def test_a_batch_without_a_frame_has_no_rows_and_makes_no_table(tmp_path: Path) -> None:
    sink = database.sink_in(tmp_path)
    folder = write_lines(sink, 1, {}, [])
    for path in folder.glob("part-*"):
        path.unlink()
    (folder / "_schema" / "part-00000.txt").unlink()
    manifest = folder / "_manifest" / "part-00000.txt"
    manifest.write_text(manifest.read_text().splitlines()[0] + "\n")
    assert sink.publish(EXPECTED, 1).epoch == 1
    assert sink.contains(EXPECTED) is not None
    assert sink.withdraw(expect(), 1)


def test_the_character_nul_is_told_by_column_and_rows(tmp_path: Path) -> None:
    sink = database.sink_in(tmp_path)
    columns = {"id": "bigint", "note": "string", "event": "struct<a:string>"}
    fine = ("1", "a\\\\u0000", '{"a":"\\\\\\\\u0000"}')
    nul = ("2", "a\0b", '{"a":"\\\\u0000"}')
    write_lines(sink, 1, columns, [fine, nul, nul])
    with pytest.raises(SinkError, match=r"NUL .* is in column 'note' in 2 rows, 'event' in 2 rows.*nul_characters"):
        sink.publish(EXPECTED, 1)
    write_lines(sink, 2, columns, [fine, ("2", "b", '{"a":"\\\\u0000"}')])
    with pytest.raises(SinkError, match=r"NUL .* is in column 'event' in 1 row\."):
        sink.publish(EXPECTED, 2)
    write_lines(sink, 3, columns, [fine])
    assert sink.publish(EXPECTED, 3).epoch == 3
    table = database.table_in(tmp_path)
    assert database.rows(table, "note, event->>'a'") == [("a\\u0000", "\\u0000")]


@pytest.mark.parametrize(
    ("type", "goes_into", "not_into"),
    [
        ("tinyint", ["smallint", "numeric(3,0)", "double precision"], ["boolean", "text", "numeric(2,0)"]),
        ("int", ["integer", "bigint", "numeric", "double precision"], ["smallint", "real"]),
        ("bigint", ["bigint", "numeric(19,0)"], ["integer", "double precision", "numeric(18,0)"]),
        (
            "decimal(10,2)",
            ["numeric", "numeric(10,2)", "numeric(12,3)"],
            ["numeric(10,3)", "numeric(9,2)", "numeric(12,-2)", "bigint"],
        ),
        ("float", ["real", "double precision"], ["numeric"]),
        ("double", ["double precision"], ["real", "numeric"]),
        ("string", ["text", "uuid", "jsonb", "character varying(3)", "shop.colour"], ["bigint", "date", "bytea"]),
        ("string", ["interval", "interval day to second", "interval(6)"], ["interval(0)", "interval day", "name[]"]),
        ("string", ["time with time zone", "time(6) without time zone"], ["time(0) without time zone", '"char"']),
        ("string", ["money", "interval second"], ["name", "interval second(3)", "interval year to month"]),
        ("timestamp", ["timestamp with time zone"], ["timestamp without time zone", "timestamp(3) with time zone"]),
        ("timestamp_ntz", ["timestamp without time zone"], ["timestamp with time zone", "date"]),
        ("array<int>", ["jsonb", "json"], ["integer[]", "text"]),
        ("decimal(38,18)", ["numeric(38,18)"], ["numeric(20,0)"]),
    ],
)
def test_no_type_is_narrowed(type: str, goes_into: list[str], not_into: list[str]) -> None:
    column = StagedColumn(name="c", type=type)
    assert [one for one in (*goes_into, *not_into) if column.fits(one)] == goes_into
    assert column.fits(column.made_as)


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"table": "a.b.c"}, "is no table"),
        ({"table": ""}, "is no table"),
        ({"table": "x" * 64}, "63 bytes"),
        ({"table": "pg_catalog.pg_class"}, "PostgreSQL's own"),
        ({"table": "microbatch_batches"}, "this package's own"),
        ({"columns": {"id": "bigint); DROP TABLE users; --"}}, "is no type"),
        ({"columns": {"_batch_id": "bigint"}}, "is added by this package"),
        ({"merge": {"keys": "id"}}, "merge must be a Merge"),
        ({"nul_characters": "keep"}, "nul_characters"),
        ({"stages": "relative"}, "stages: .*absolute"),
        ({"lock_seconds": 0}, "lock_seconds must be a number of seconds"),
        ({"conn_id": ""}, "conn_id must be"),
    ],
)
def test_a_wrong_definition_is_refused_where_it_is_written(given: dict[str, Any], match: str) -> None:
    values = {"conn_id": "warehouse", "table": "shop.orders", "stages": "/data/stages", **given}
    with pytest.raises(DefinitionError, match=match):
        PostgresSink(**values)


def test_names_are_taken_as_they_stand() -> None:
    def parsed(table: str) -> tuple[str, str]:
        name = PostgresSink("w", table, stages="/data").name
        return name.schema, name.table

    assert parsed("Orders") == ("public", "Orders")
    assert parsed("shop.orders") == ("shop", "orders")
    assert parsed('"a.b"."say ""user"""') == ("a.b", 'say "user"')
    assert PostgresSink("w", "t" * 63, stages="/data").name.changes().table.startswith("microbatch_changes_")


def test_rows_and_changes_do_not_go_into_one_table() -> None:
    rows = PostgresSink("w", "orders", stages="/data")
    changes = PostgresSink("w", "orders", stages="/data", merge=Merge(keys=("id",), sequence_by=("ts",)))
    told = changes.unlike(rows)
    assert told is not None
    assert "has batches of rows, and this sink writes changes" in told
    assert rows.unlike(rows) is None
