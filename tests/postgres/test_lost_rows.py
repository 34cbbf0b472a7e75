"""Rows that are not where a batch brought them: a table that takes only a part, changes that somebody removed."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from airflow_provider_microbatch import connections
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import MaintenanceError, SinkError
from airflow_provider_microbatch.sinks import ExpectedBatch, Manifest, OpenSink, SinkContext
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sinks.merge import Merge
from airflow_provider_microbatch.sinks.postgres import PostgresSink
from airflow_provider_microbatch.sinks.postgres.open import OpenPostgres
from airflow_provider_microbatch.sinks.several import Sinks
from airflow_provider_microbatch.upkeep.table_check import check_table
from tests.execution.maintaining import applied, rewind
from tests.execution.two_tables import coded
from tests.execution.typed_commands import advised
from tests.execution.world import World
from tests.postgres import database
from tests.postgres.stages import write_lines, write_stage
from tests.sinks.stages import EXPECTED, batch_of, expect

MERGE = Merge(keys=("id",), sequence_by=("ts",))
CHANGE = {"id": "bigint", "ts": "int", "note": "string"}
LATER, LAST = BatchKey("live", 8), BatchKey("live", 9)


def run(statement: str) -> None:
    with database.connect() as connection:
        connection.execute(statement.encode())


def merged(sink: OpenPostgres, key: BatchKey, *cells: str, epoch: int = 1) -> None:
    write_lines(sink, epoch, CHANGE, [cells], batch=batch_of(key))
    (sink.publish if epoch == 1 else sink.replace)(expect(key), epoch)


def test_a_batch_of_which_a_rule_keeps_rows_out_is_not_published(tmp_path: Path) -> None:
    sink, table = database.sink_in(tmp_path, columns={"id": "int8", "epoch": "integer"}), database.table_in(tmp_path)
    sink.make_ready(EXPECTED.tables, is_there=lambda: True)
    run(f"CREATE RULE half AS ON INSERT TO {table} WHERE NEW.id > 1 DO INSTEAD NOTHING")
    write_stage(sink, 1)
    with pytest.raises(SinkError, match=r"batch live/7 has 3 rows, and .* took 2 of them: a trigger or a rule"):
        sink.publish(EXPECTED, 1)
    assert sink.contains(EXPECTED) is None
    assert database.rows(table) == []
    run(f"DROP RULE half ON {table}")
    sink.publish(EXPECTED, 1)
    assert len(database.rows(table)) == 3


def test_rows_that_a_trigger_puts_into_a_part_of_the_table_are_in_it(tmp_path: Path) -> None:
    """How tables were partitioned before PostgreSQL did it itself."""
    sink, table = database.sink_in(tmp_path, columns={"id": "int8", "epoch": "integer"}), database.table_in(tmp_path)
    sink.make_ready(EXPECTED.tables, is_there=lambda: True)
    part = database.table_in(tmp_path, "part")
    run(f"CREATE TABLE {part} () INHERITS ({table})")
    run(f"CREATE RULE parts AS ON INSERT TO {table} DO INSTEAD INSERT INTO {part} VALUES (NEW.*)")
    write_stage(sink, 1)
    sink.publish(EXPECTED, 1)
    assert len(database.rows(table)) == 3


def test_check_counts_what_is_in(tmp_path: Path) -> None:
    sink, table = database.sink_in(tmp_path), database.table_in(tmp_path)
    write_stage(sink, 1)
    found = sink.publish(EXPECTED, 1)
    assert sink.damage(EXPECTED, found) is None
    run(f"DELETE FROM {table} WHERE id = 1")
    assert "has 2 of its 3 rows" in str(sink.damage(EXPECTED, found))
    run(f"DROP TABLE {table}")
    assert "is gone" in str(sink.damage(EXPECTED, found))


def test_a_replay_tells_of_rows_that_were_deleted_and_brings_them_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sink, table = database.sink_in(tmp_path), database.table_in(tmp_path)
    write_stage(sink, 1)
    sink.publish(EXPECTED, 1)
    run(f"DELETE FROM {table} WHERE id = 1")
    write_stage(sink, 2)
    with caplog.at_level(logging.WARNING):
        sink.replace(EXPECTED, 2)
    assert "had 3 rows when it was published, and has 2 now" in caplog.text
    assert len(database.rows(table)) == 3


@pytest.mark.parametrize("publish", [OpenPostgres.publish, OpenPostgres.replace])
def test_a_batch_whose_record_was_removed_is_not_published_beside_its_rows(
    tmp_path: Path, publish: Callable[[OpenPostgres, ExpectedBatch, int], Manifest]
) -> None:
    """`check` named a clear of its task, which brought them a second time."""
    sink, table = database.sink_in(tmp_path), database.table_in(tmp_path)
    write_stage(sink, 1)
    sink.publish(EXPECTED, 1)
    assert sink.unrecorded(EXPECTED, []) is None
    run(f"DELETE FROM {database.table_in(tmp_path, 'microbatch_batches')} WHERE id = 7")
    write_stage(sink, 2)
    with pytest.raises(SinkError, match=r"has 3 rows of batch live/7, and .*microbatch_batches has no row of it"):
        publish(sink, EXPECTED, 2)
    assert len(database.rows(table)) == 3
    told = sink.unrecorded(EXPECTED, [])
    assert told is not None
    run(told.partition("(DELETE")[2].partition(")")[0].join(["DELETE", ""]))
    publish(sink, EXPECTED, 2)
    assert len(database.rows(table)) == 3
    assert sink.unrecorded(EXPECTED, []) is None


@pytest.mark.parametrize("scd_type", [1, 2])
def test_check_tells_of_a_merged_table_that_was_put_back_without_its_changes(tmp_path: Path, scd_type: int) -> None:
    sink, table = database.sink_in(tmp_path, merge=replace(MERGE, scd_type=scd_type)), database.table_in(tmp_path)
    merged(sink, EXPECTED.key, "1", "10", "old")
    run(f"CREATE TABLE {database.table_in(tmp_path, 'dump')} AS SELECT * FROM {table}")
    merged(sink, LATER, "1", "12", "new")
    merged(sink, LAST, "2", "13", "two")
    keys = (EXPECTED.key, LATER, LAST)

    def damage(key: BatchKey) -> str | None:
        found = sink.contains(expect(key))
        assert found is not None
        return sink.damage(expect(key), found)

    assert [damage(key) for key in keys] == [None, None, None]
    run(f"DELETE FROM {table}")
    run(f"INSERT INTO {table} SELECT * FROM {database.table_in(tmp_path, 'dump')}")
    assert "1 are in" in str(damage(LAST))
    assert (damage(LATER) is None) is (scd_type == 2)  # of a version that is open the table cannot tell when it began
    for key, *cells in ((LATER, "1", "12", "new"), (LAST, "2", "13", "two")):
        merged(sink, key, *cells, epoch=2)
    assert [damage(key) for key in keys] == [None, None, None]
    run(f"UPDATE {table} SET note = upper(note)")  # as a trigger may
    assert [damage(key) for key in keys] == [None, None, None]


def test_check_names_the_trigger_that_may_make_other_rows_of_a_merged_table(tmp_path: Path) -> None:
    """As one that notes the time of an update in the column that orders changes, or keeps what is deleted."""
    sink, table = database.sink_in(tmp_path, merge=MERGE), database.table_in(tmp_path)
    merged(sink, EXPECTED.key, "1", "10", "old")
    found = sink.contains(EXPECTED)
    assert found is not None
    run(f"UPDATE {table} SET ts = 11")
    assert str(sink.damage(EXPECTED, found)).endswith("or changed by hand")
    body = "BEGIN NEW.ts := 99; RETURN NEW; END"
    moved = database.table_in(tmp_path, "moved")
    run(f"CREATE FUNCTION {moved}() RETURNS trigger LANGUAGE plpgsql AS $$ {body} $$")
    run(f"CREATE TRIGGER moved BEFORE INSERT OR UPDATE ON {table} FOR EACH ROW EXECUTE FUNCTION {moved}()")
    merged(sink, EXPECTED.key, "1", "10", "new", epoch=2)
    found = sink.contains(EXPECTED)
    assert found is not None
    assert "or its trigger moved makes other rows: then no clear changes that" in str(sink.damage(EXPECTED, found))


@pytest.mark.parametrize("how", ["DROP TABLE", "TRUNCATE"])
def test_changes_that_are_gone_are_not_begun_anew(tmp_path: Path, how: str) -> None:
    """The older of two changes of a key would win, if it came last."""
    sink, table = database.sink_in(tmp_path, merge=MERGE), database.table_in(tmp_path)
    merged(sink, EXPECTED.key, "1", "10", "new")
    run(f"{how} {database.table_in(tmp_path, 'microbatch_changes_Orders')}")
    with pytest.raises(SinkError, match=r"the changes of .*Orders, kept in .*, are gone\..*rewind --to -1"):
        merged(sink, LATER, "1", "3", "old")
    assert database.rows(table, "id, ts, note") == [(1, 10, "new")]


def test_a_replay_of_changes_of_which_some_are_gone_does_not_go_back(tmp_path: Path) -> None:
    sink, table = database.sink_in(tmp_path, merge=MERGE), database.table_in(tmp_path)
    merged(sink, EXPECTED.key, "2", "5", "two")
    merged(sink, LATER, "2", "6", "newer")
    run(f"DELETE FROM {database.table_in(tmp_path, 'microbatch_changes_Orders')} WHERE ts = 6")
    with pytest.raises(SinkError, match=r"has 0 of the 1 changes of batch live/8"):
        merged(sink, LATER, "2", "6", "newer", epoch=2)
    assert database.rows(table, "id, ts, note") == [(2, 6, "newer")]


def test_a_merge_goes_on_without_its_deletions(tmp_path: Path) -> None:
    before = Merge(keys=("id",), sequence_by=("ts",), delete_when="note = 'D'")
    sink = database.sink_in(tmp_path, merge=before)
    write_lines(sink, 1, {**CHANGE, "_deleted": "boolean"}, [("1", "1", "a", "false"), ("2", "1", "D", "true")])
    sink.publish(EXPECTED, 1)
    merged(database.sink_in(tmp_path, merge=MERGE), LATER, "1", "2", "b")
    assert database.rows(database.table_in(tmp_path), "id, ts, note") == [(1, 2, "b")]


def test_two_sinks_of_one_table_are_refused_whatever_connections_lead_there(tmp_path: Path) -> None:
    def made(table: str, *conn_ids: str) -> OpenSink:
        name = database.table_in(tmp_path, table)
        sinks = {conn_id: PostgresSink(conn_id, name, stages=str(tmp_path / "stages")) for conn_id in conn_ids}
        other = PostgresSink(conn_ids[0], database.table_in(tmp_path, "Other"), stages=str(tmp_path / "stages"))
        return Sinks({**sinks, "other": other}).open(SinkContext(connect=database.connection_of))

    with pytest.raises(SinkError, match=r"postgres:one/\S+ .* and postgres:two/\S+ .* are one table, by two"):
        made("Orders", "one", "two").check()
    made("Orders", "one").check()


def test_what_a_restored_table_lacks_and_no_log_knows_any_more_is_hidden_by_no_clear(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "_found_by", [database.connection_of])
    table = database.table_in(tmp_path)
    sink = PostgresSink(database.CONN_ID, table, stages=str(tmp_path / "stages"))
    world = World(tmp_path, sink=sink, min_batches_to_retain=2)
    for number in range(5):
        world.land(number)
        world.run(number, coded())
    run(f"DELETE FROM {table} WHERE _batch_id > 1")
    run(f"DELETE FROM {sink.name.sibling('microbatch_batches').text} WHERE id > 1")
    world.land(5)
    for number, clear in ((5, 0), (3, 1), (5, 0)):
        with pytest.raises(SinkError, match=r"batch live/4 is committed, .*Of batch 2 no log tells any more"):
            world.run(number, clear_number=clear, try_number=1 + clear)
    gap, *_ = check_table(world.checkpoint, everything=True).findings
    assert gap.message.startswith(f"batch 2 is not in postgres:{database.CONN_ID}/")
    assert len(database.rows(table)) == 2


def test_a_table_that_was_taken_away_and_dropped_is_no_finding_once_its_server_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check would be red until retention has removed the last batch of before, over rows that nobody misses."""
    monkeypatch.setattr(connections, "_found_by", [database.connection_of])
    table = database.table_in(tmp_path)
    sinks = {
        "orders": FileSink(str(tmp_path / "orders"), format="json"),
        "daily": PostgresSink(database.CONN_ID, table, stages=str(tmp_path / "stages"), patience_seconds=1),
    }
    world = World(tmp_path, sink=Sinks(sinks))
    for number in range(2):
        world.land(number)
        world.run(number, coded())
    run(f"DROP TABLE {table}")
    assert check_table(world.checkpoint, everything=True).findings, "the pipeline names it"
    world.options["sink"] = sinks["orders"]
    world.land(2)
    world.run(2, coded())
    told = check_table(world.checkpoint, everything=True)
    assert told.findings == []
    assert [note.partition(" is away")[0] for note in told.notes] == [sinks["daily"].location()]
    monkeypatch.setattr(connections, "_found_by", [partial(database.connection_of, port=1)])
    told = check_table(world.checkpoint, everything=True)
    assert told.findings, "its server has not answered"
    assert told.notes == []


def test_a_rewind_takes_no_batch_out_beside_rows_of_it_in_a_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was read again in a batch of another number, which came in beside what the copy had of the next ones."""
    monkeypatch.setattr(connections, "_found_by", [database.connection_of])
    table, copy = database.table_in(tmp_path), database.table_in(tmp_path, "copy")
    world = World(tmp_path, sink=PostgresSink(database.CONN_ID, table, stages=str(tmp_path / "stages")))
    for number in range(3):
        world.land(number)
        world.run(number, coded())
    run(f"CREATE TABLE {copy} AS SELECT * FROM {table}")
    world.options["sink"] = PostgresSink(database.CONN_ID, copy, stages=str(tmp_path / "stages"))
    world.land(3)
    world.run(3, coded())
    with pytest.raises(MaintenanceError, match=r"has 1 rows of batch live/1, .* So it is with batch live/2\. Nothing"):
        applied(world, rewind(0))
    assert [len(database.rows(one)) for one in (table, copy)] == [3, 4]
    run(f"DELETE FROM {copy} WHERE _batch_id IN (1, 2)")
    applied(world, rewind(0))
    for number in (4, 5, 6):
        world.run(number, coded())
    assert database.rows(copy, "id") == [(0,), (1,), (2,), (3,)]


def test_where_the_clear_of_lost_changes_is_refused_check_names_what_brings_them_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Table and changes came out of a dump, and the record of the batches is of now."""
    monkeypatch.setattr(connections, "_found_by", [database.connection_of])
    merge = Merge(keys=("id",), sequence_by=("version",))
    sink = PostgresSink(database.CONN_ID, database.table_in(tmp_path), stages=str(tmp_path / "stages"), merge=merge)
    world = World(tmp_path, sink=sink)
    for number in range(3):
        world.land(number)
        world.run(number, coded())
    for table in (sink.name, sink.name.changes(1)):
        run(f"DELETE FROM {table.text} WHERE id > 0")
    with pytest.raises(SinkError, match="has 0 of the 1 changes of batch live/1"):
        world.run(1, coded(), clear_number=1)
    world.expire_leases()
    repair = check_table(world.checkpoint, everything=True).findings[0].repair
    (words,) = advised(repair.partition("or the clear is refused")[2], world)
    assert words == ["rewind", world.pipeline.checkpoint, "--to", "0", "--drop-output"]
    applied(world, rewind(0))
    for number in (4, 5):
        world.run(number, coded())
    assert database.rows(sink.name.text, "id") == [(0,), (1,), (2,)]
    assert not check_table(world.checkpoint, everything=True).findings
