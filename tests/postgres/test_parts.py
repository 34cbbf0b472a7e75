"""A table and a part of it, each of which a pipeline writes to: they have rows in common."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_microbatch.checkpoint.identity import BatchIdentity
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.connections import Connection
from airflow_provider_microbatch.exceptions import ForeignBatchError, SinkError
from airflow_provider_microbatch.sinks import ExpectedBatch, OpenSink, SinkContext
from airflow_provider_microbatch.sinks.merge import Merge
from airflow_provider_microbatch.sinks.postgres import open as opened
from airflow_provider_microbatch.sinks.postgres.kin import Kin
from airflow_provider_microbatch.sinks.postgres.open import OpenPostgres
from airflow_provider_microbatch.sinks.postgres.records import Records
from airflow_provider_microbatch.sinks.several import Sinks
from tests.postgres import database
from tests.postgres.stages import write_lines
from tests.postgres.test_lost_rows import CHANGE, MERGE, run
from tests.sinks.stages import KEY, batch_of, expect

WHOLE = {"checkpoint": "one", "pipeline": "all"}
PART = {"checkpoint": "another", "pipeline": "late"}


def stage(sink: OpenSink, epoch: int, whose: dict[str, str]) -> None:
    """A row that belongs into the part if it is of the part's pipeline."""
    cells = [("1500" if whose is PART else "5",)]
    write_lines(sink, epoch, {"id": "bigint"}, cells, batch=batch_of(**whose))


@pytest.fixture
def sinks(tmp_path: Path) -> tuple[OpenSink, OpenSink]:
    """Of a table, and of a partition of one of its partitions."""
    whole, many, late = (database.table_in(tmp_path, name) for name in ("Orders", "Many", "Late"))
    run(f'CREATE TABLE {whole} (id bigint, "_batch_lane" text, "_batch_id" bigint) PARTITION BY RANGE (id)')
    run(f"CREATE TABLE {database.table_in(tmp_path, 'few')} PARTITION OF {whole} FOR VALUES FROM (0) TO (1000)")
    run(f"CREATE TABLE {many} PARTITION OF {whole} FOR VALUES FROM (1000) TO (2000) PARTITION BY RANGE (id)")
    run(f"CREATE TABLE {late} PARTITION OF {many} DEFAULT")
    return database.sink_in(tmp_path), database.sink_in(tmp_path, table="Late")


def ids(folder: Path) -> list[int]:
    return [id for (id,) in database.rows(database.table_in(folder), "id")]


@pytest.mark.parametrize("part_is_first", [False, True])
def test_the_second_pipeline_gets_an_error_that_names_the_first(
    sinks: tuple[OpenSink, OpenSink], tmp_path: Path, part_is_first: bool
) -> None:
    """A replay of either took out what the other has of the same number."""
    (first, of_first), (second, of_second) = sorted(
        zip(sinks, (WHOLE, PART), strict=True), key=lambda one: (one[1] is PART) is not part_is_first
    )
    stage(first, 1, of_first)
    first.publish(expect(**of_first), 1)
    there = r"\.Late, which is a part of .*\.Orders" if part_is_first else r"\.Orders, of which .*\.Late is a part"
    told = rf"batch live/7 of pipeline '{of_first['pipeline']}' is in .*{there}: .* Nothing was published"
    with pytest.raises(ForeignBatchError, match=told):
        second.contains(expect(**of_second))
    stage(second, 1, of_second)
    with pytest.raises(ForeignBatchError, match=told):
        second.publish(expect(**of_second), 1)
    assert ids(tmp_path) == [1500 if part_is_first else 5]
    assert first.contains(expect(**of_first)) is not None


def test_a_replay_does_not_take_out_what_a_table_had_that_is_a_part_since(
    sinks: tuple[OpenSink, OpenSink], tmp_path: Path
) -> None:
    many, late = database.table_in(tmp_path, "Many"), database.table_in(tmp_path, "Late")
    run(f"ALTER TABLE {many} DETACH PARTITION {late}")
    for sink, whose in zip(sinks, (WHOLE, PART), strict=True):
        stage(sink, 1, whose)
        sink.publish(expect(**whose), 1)
        stage(sink, 2, whose)
    run(f"ALTER TABLE {many} ATTACH PARTITION {late} DEFAULT")
    whole, part = sinks
    for ask in (
        lambda: whole.replace(expect(**WHOLE), 2),
        lambda: whole.withdraw(expect(**WHOLE), 1),
    ):
        with pytest.raises(ForeignBatchError, match=r"is a part.* Nothing was published or taken out"):
            ask()
    part.replace(expect(**PART), 2)  # all rows of the number that are in the part are its own
    assert ids(tmp_path) == [5, 1500]
    run(f'UPDATE {late} SET "_batch_lane" = NULL, "_batch_id" = NULL')
    run(f"DELETE FROM {database.table_in(tmp_path, 'microbatch_batches')} WHERE table_name = 'Late'")
    whole.replace(expect(**WHOLE), 2)
    assert ids(tmp_path) == [5, 1500]


def test_a_pipeline_that_went_from_a_part_to_the_whole_finds_its_own(
    sinks: tuple[OpenSink, OpenSink],
) -> None:
    whole, part = sinks
    stage(part, 1, PART)
    part.publish(expect(**PART), 1)
    assert whole.contains(expect(**PART)) is None


@pytest.mark.parametrize("part_is_first", [False, True])
def test_nor_is_one_published_that_was_loaded_while_the_other_was_published(
    sinks: tuple[OpenPostgres, OpenPostgres], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part_is_first: bool
) -> None:
    """The part's came in too; the whole's error had its user delete the rows of the part's pipeline."""
    (first, of_first), (second, of_second) = sorted(
        zip(sinks, (WHOLE, PART), strict=True), key=lambda one: (one[1] is PART) is not part_is_first
    )
    stage(first, 1, of_first)
    stage(second, 1, of_second)
    load = opened.load

    def published_meanwhile(*given: Any, **named: Any) -> int:
        """When the second holds no more than its stage table: the first is not kept waiting."""
        monkeypatch.setattr(opened, "load", load)
        first.publish(expect(**of_first), 1)
        return load(*given, **named)

    monkeypatch.setattr(opened, "load", published_meanwhile)
    with pytest.raises(
        ForeignBatchError, match=rf"of pipeline '{of_first['pipeline']}' is in .* Nothing was published"
    ):
        second.publish(expect(**of_second), 1)
    assert ids(tmp_path) == [1500 if part_is_first else 5]


def test_of_two_that_publish_at_once_the_second_waits_and_is_refused(
    sinks: tuple[OpenPostgres, OpenPostgres], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (whole, part), told, other = sinks, list[SinkError](), threading.Event()
    stage(whole, 1, WHOLE)
    stage(part, 1, PART)
    check, hold = Kin.check_alone, Kin.hold

    def publishes() -> None:
        try:
            part.publish(expect(**PART), 1)
        except SinkError as error:
            told.append(error)

    thread = threading.Thread(target=publishes)

    def begins(self: Kin, key: BatchKey) -> None:
        if self.table.table == "Late":
            other.set()
        hold(self, key)

    def looks(self: Kin, *given: BatchIdentity, **named: object) -> None:
        check(self, *given, **named)  # type: ignore[arg-type]
        if self.table.table == "Orders" and thread.ident is None and is_in(self):
            thread.start()
            assert other.wait(30)
            thread.join(0.5)  # it waits

    def is_in(kin: Kin) -> bool:
        return Records(kin.connection, kin.table).are_there() and bool(Records(kin.connection, kin.table).ids("live"))

    monkeypatch.setattr(Kin, "hold", begins)
    monkeypatch.setattr(Kin, "check_alone", looks)
    whole.publish(expect(**WHOLE), 1)
    thread.join(60)
    assert len(told) == 1
    assert isinstance(told[0], ForeignBatchError)
    assert ids(tmp_path) == [5]


def test_rows_of_the_other_are_not_told_as_left_without_a_record(sinks: tuple[OpenPostgres, OpenPostgres]) -> None:
    """With the DELETE that removes them."""
    whole, part = sinks
    stage(part, 1, PART)
    part.publish(expect(**PART), 1)
    with pytest.raises(ForeignBatchError, match="of pipeline 'late' is in"):
        whole.unrecorded(expect(**WHOLE), [])


def test_where_both_are_in_the_part_is_taken_out_and_then_the_whole_goes_on(
    sinks: tuple[OpenPostgres, OpenPostgres], tmp_path: Path
) -> None:
    many, late = database.table_in(tmp_path, "Many"), database.table_in(tmp_path, "Late")
    run(f"ALTER TABLE {many} DETACH PARTITION {late}")
    for sink, whose in zip(sinks, (WHOLE, PART), strict=True):
        stage(sink, 1, whose)
        sink.publish(expect(**whose), 1)
    run(f"ALTER TABLE {many} ATTACH PARTITION {late} DEFAULT")
    whole, part = sinks
    run(f'INSERT INTO {late} SELECT 1501, "_batch_lane", "_batch_id" FROM {late}')
    with pytest.raises(ForeignBatchError, match=r"have the pipeline of .*\.Late take its own out first"):
        part.withdraw(expect(**PART), 1)  # one of the rows may be of the whole's
    run(f"DELETE FROM {late} WHERE id = 1501")
    assert part.withdraw(expect(**PART), 1)
    stage(whole, 2, WHOLE)
    whole.replace(expect(**WHOLE), 2)
    assert ids(tmp_path) == [5]


def test_whoever_may_not_look_at_the_others_record_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    schema, user = f"theirs {tmp_path.name}", f"one of {tmp_path.name}"
    late, own = database.table_in(tmp_path, "Late"), database.schema_of(tmp_path)
    whole = f'"{schema}"."Orders"'
    run(f'CREATE SCHEMA "{schema}"')
    run(f'CREATE TABLE {whole} (id bigint, "_batch_lane" text, "_batch_id" bigint) PARTITION BY RANGE (id)')
    run(f'CREATE TABLE "{schema}".microbatch_batches (table_name text)')
    run(f"CREATE TABLE {late} PARTITION OF {whole} DEFAULT")
    run(f"CREATE ROLE \"{user}\" LOGIN PASSWORD '{database.PASSWORD}'")
    run(f'GRANT ALL ON SCHEMA {database.quoted(own)} TO "{user}"')
    run(f'GRANT ALL ON {late} TO "{user}"')

    def connection(conn_id: str) -> Connection:
        return replace(database.connection_of(conn_id), login=user)

    part = database.sink_in(tmp_path, table="Late").definition.open(SinkContext(connect=connection))
    stage(part, 1, PART)
    with caplog.at_level(logging.WARNING):
        part.publish(expect(**PART), 1)
        stage(part, 2, PART)
        part.replace(expect(**PART), 2)
    assert database.rows(late, "id") == [(1500,)]
    assert caplog.text.count("may not read") == 1  # and not at each look
    assert f"may not read {schema}.microbatch_batches: " in caplog.text


def test_where_neither_may_look_at_the_others_record_none_takes_out_rows_of_both(tmp_path: Path) -> None:
    """Its replay took out what the other had published, or had its user delete that, as rows without a record."""
    theirs = tmp_path / "theirs"
    whole, late = database.table_in(tmp_path), database.table_in(theirs, "Late")
    run(f'CREATE TABLE {whole} (id bigint, "_batch_lane" text, "_batch_id" bigint) PARTITION BY RANGE (id)')
    run(f"CREATE TABLE {database.table_in(tmp_path, 'few')} PARTITION OF {whole} FOR VALUES FROM (0) TO (1000)")
    run(f"CREATE TABLE {late} PARTITION OF {whole} DEFAULT")

    def opened(folder: Path, table: str) -> OpenSink:
        user = f"{table} of {tmp_path.name}"
        run(f"CREATE ROLE \"{user}\" LOGIN PASSWORD '{database.PASSWORD}'")
        run(f'GRANT ALL ON SCHEMA {database.quoted(database.schema_of(folder))} TO "{user}"')
        run(f'GRANT ALL ON {database.table_in(folder, table)} TO "{user}"')
        definition = database.sink_in(folder, table=table).definition
        return definition.open(SinkContext(connect=lambda one: replace(database.connection_of(one), login=user)))

    first, second = opened(tmp_path, "Orders"), opened(theirs, "Late")
    for sink, whose in ((first, WHOLE), (second, PART)):
        stage(sink, 1, whose)
        sink.publish(expect(**whose), 1)
    grant = rf"{database.schema_of(theirs)}\.microbatch_batches, the login may not read\. .*GRANT SELECT ON"
    stage(first, 2, WHOLE)
    with pytest.raises(SinkError, match=rf"has 2 rows of batch live/7, which brought 1: .*{grant}"):
        first.replace(expect(**WHOLE), 2)
    with pytest.raises(SinkError, match=grant):
        first.withdraw(expect(**WHOLE), 1)
    assert [id for (id,) in database.rows(whole, "id")] == [5, 1500]
    second.withdraw(expect(**PART), 1)  # all that is there is its own
    first.withdraw(expect(**WHOLE), 1)
    stage(second, 3, PART)
    second.publish(expect(**PART), 3)
    stage(first, 3, WHOLE)
    with pytest.raises(SinkError, match=rf"has no row of it: .*{grant}") as refused:
        first.publish(expect(**WHOLE), 3)
    assert "DELETE" not in str(refused.value)
    assert first.unrecorded(expect(**WHOLE), []) is not None
    assert [id for (id,) in database.rows(whole, "id")] == [1500]


@pytest.mark.parametrize("merge", [None, MERGE])
@pytest.mark.parametrize(
    "part_of",
    [
        "CREATE TABLE {part} PARTITION OF {whole} FOR VALUES FROM (1000) TO (2000)",
        "ALTER TABLE {whole} ATTACH PARTITION {part} DEFAULT",
    ],
)
def test_two_sinks_of_a_pipeline_that_have_rows_in_common_are_refused_before_anything_is_planned(
    tmp_path: Path, merge: Merge | None, part_of: str
) -> None:
    """Rows were there twice, or stood in each other's way with a DELETE that led nowhere; of merged rows an older state
    took the place of a newer one."""
    whole, part, other = (database.table_in(tmp_path, name) for name in ("Orders", "Late", "Other"))
    key = "PRIMARY KEY" if merge is not None else ""
    columns = f'id bigint {key}, ts int, note text, "_batch_lane" text, "_batch_id" bigint'
    run(f"CREATE TABLE {whole} ({columns}) PARTITION BY RANGE (id)")
    run(f"CREATE TABLE {other} PARTITION OF {whole} FOR VALUES FROM (0) TO (1000)")
    if part_of.startswith("ALTER"):
        run(f"CREATE TABLE {part} ({columns})")
    of_table = {name: database.sink_in(tmp_path, table=name, merge=merge).definition for name in ("Orders", "Late")}
    both = Sinks(of_table).open(SinkContext(connect=database.connection_of))
    if part_of.startswith("ALTER"):
        both.check()
    run(part_of.format(whole=whole, part=part))
    told = r"Orders and .*Late have rows in common: one table is a part of the other.* Give each sink a table"
    with pytest.raises(SinkError, match=told):
        both.check()
    parts = {name: database.sink_in(tmp_path, table=name, merge=merge).definition for name in ("Other", "Late")}
    Sinks(parts).open(SinkContext(connect=database.connection_of)).check()


def test_merged_changes_of_two_pipelines_are_in_nobodys_way(tmp_path: Path) -> None:
    """Each keeps its own in a table of its own."""
    whole, late = database.table_in(tmp_path), database.table_in(tmp_path, "Late")
    run(f"CREATE TABLE {whole} (id bigint PRIMARY KEY, ts int, note text) PARTITION BY RANGE (id)")
    run(f"CREATE TABLE {late} PARTITION OF {whole} FOR VALUES FROM (1000) TO (2000)")
    run(f"CREATE TABLE {database.table_in(tmp_path, 'few')} PARTITION OF {whole} FOR VALUES FROM (0) TO (1000)")
    for table, whose, key in (("Orders", WHOLE, "5"), ("Late", PART, "1500")):
        sink = database.sink_in(tmp_path, table=table, merge=MERGE)
        for epoch in (1, 2):
            write_lines(sink, epoch, CHANGE, [(key, "1", "a")], batch=batch_of(**whose))
            (sink.publish if epoch == 1 else sink.replace)(expect(**whose), epoch)
    assert ids(tmp_path) == [5, 1500]


def test_rows_of_a_pipeline_that_is_no_more_are_nobodys_as_the_error_says(tmp_path: Path) -> None:
    """Also in tables that this package has made, whose columns take no null."""
    whole, part = database.sink_in(tmp_path), database.sink_in(tmp_path, table="Late")
    for sink, whose in ((whole, WHOLE), (part, PART)):
        stage(sink, 1, whose)
        sink.publish(expect(**whose), 1)
    run(f"ALTER TABLE {database.table_in(tmp_path, 'Late')} INHERIT {database.table_in(tmp_path)}")
    stage(whole, 2, WHOLE)
    with pytest.raises(ForeignBatchError) as refused:
        whole.replace(expect(**WHOLE), 2)
    for verb in ("UPDATE", "DELETE FROM"):
        _, begins, rest = str(refused.value).rpartition(f"({verb} ")
        run(f"{begins[1:]}{rest.partition(')')[0].removesuffix(' WHERE …')}".replace("WHERE …", ""))
    whole.replace(expect(**WHOLE), 2)
    assert ids(tmp_path) == [5, 1500]


def test_whoever_asks_for_the_batch_of_nobody_in_particular_gets_an_answer(
    sinks: tuple[OpenPostgres, OpenPostgres],
) -> None:
    """As a command does, of a table that its pipeline writes to since it has left the part."""
    whole, part = sinks
    stage(part, 1, PART)
    part.publish(expect(**PART), 1)
    anybodys = ExpectedBatch(identity=BatchIdentity.at(KEY), tables=expect().tables, recognise=lambda found: found)
    assert whole.contains(anybodys) is None
