"""Tables of Spark's catalog that are away for a while, moved or renamed by a person or by a publish that was cut off:
what is left to be removed of them waits, and nothing that readers have found is removed."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import pytest

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sinks.table import TableSink
from airflow_provider_microbatch.sinks.table import whole_table as module_of_whole_tables
from airflow_provider_microbatch.sinks.table.metastore import Metastore, TableInfo
from airflow_provider_microbatch.sinks.table.replaced_files import note_replaced
from airflow_provider_microbatch.sinks.table.spark_catalog import SparkCatalog
from airflow_provider_microbatch.sinks.table.stage_table import Table
from airflow_provider_microbatch.sinks.table.table_of_folders import TableOfFolders
from tests.sinks.stages import BATCH, EXPECTED, KEY, batch_of, expect
from tests.tables.metastore_in_memory import InMemory
from tests.tables.partition_lives import Killed, sink_in
from tests.tables.stages import write_partitions, write_stage_table

pytestmark = pytest.mark.slow  # tables, services or worlds that live long

NAME, AWAY = "`orders`", "`orders_away`"
NEXT = batch_of(BatchKey("live", 8))
HOUR = 3600.0


@pytest.fixture
def metastore() -> InMemory:
    return InMemory()


def sink_of(folder: Path, metastore: InMemory, mode: str = "append") -> TableSink:
    catalog = SparkCatalog(metastore, str(folder / "lake"))
    return TableSink(catalog, "orders", format="json", schema="id long, epoch long", mode=mode)


@contextmanager
def dying_at(what: object, name: str) -> Iterator[None]:
    with mock.patch.object(what, name, side_effect=Killed), pytest.raises(Killed):
        yield


@contextmanager
def away(metastore: InMemory) -> Iterator[None]:
    """As behind ``ALTER TABLE orders RENAME TO orders_away``."""
    metastore.rename(NAME, AWAY)
    yield
    metastore.rename(AWAY, NAME)


def files_of(metastore: InMemory, name: str) -> list[Path]:
    return sorted(Path(metastore.tables[name]["location"].removeprefix("file://")).glob("part*"))


def kill_between_the_renames(sink: TableSink) -> None:
    """The new table has other columns, and is batch 8's."""
    real = Metastore.rename

    def rename(store: Metastore, name: str, new: str) -> None:
        if "__stage_" in name:
            raise Killed
        real(store, name, new)

    write_stage_table(sink, 1, batch=NEXT)
    with (
        mock.patch.object(Metastore, "rename", rename),
        mock.patch.object(TableInfo, "same_shape", return_value=False),
        pytest.raises(Killed),
    ):
        sink.publish(expect(BatchKey("live", 8)), 1)


def grow_old(sink: TableSink) -> None:
    root, before = sink.catalog.files(sink.as_table).root, time.time() - 2 * HOUR
    for note in (*root.rglob("*.replaced"), *root.glob("_replaced/orders__*")):
        os.utime(note, (before, before))


@pytest.mark.parametrize("mode", ["replace", "create_or_replace"])
def test_the_janitor_puts_back_what_a_publish_has_moved_away_and_removes_none_of_it(
    mode: str, tmp_path: Path, metastore: InMemory
) -> None:
    """The attempt waits for its audits still, so that nobody drops its stage."""
    write_stage_table(first := sink_of(tmp_path, metastore, "create"), 1)
    first.publish(EXPECTED, 1)
    before = files_of(metastore, NAME)
    kill_between_the_renames(sink := sink_of(tmp_path, metastore, mode))
    assert NAME not in metastore.tables
    grow_old(sink)
    assert sink.drop_replaced(BATCH.checkpoint, older_seconds=HOUR) == []
    assert files_of(metastore, NAME) == before
    with mock.patch.object(TableInfo, "same_shape", return_value=False):
        assert sink.publish(expect(BatchKey("live", 8)), 1).epoch == 1
    assert sink.drop_replaced(BATCH.checkpoint, older_seconds=HOUR) == [], "the hour begins with the replacement"
    grow_old(sink)
    assert len(sink.drop_replaced(BATCH.checkpoint, older_seconds=HOUR)) == 2, "a table and its files"
    assert [*metastore.tables] == [NAME]


def test_a_table_that_was_replaced_does_not_come_back_for_one_that_was_dropped(
    tmp_path: Path, metastore: InMemory
) -> None:
    write_stage_table(sink := sink_of(tmp_path, metastore, "create_or_replace"), 1)
    sink.publish(EXPECTED, 1)
    write_stage_table(sink, 1, batch=NEXT)
    with mock.patch.object(TableInfo, "same_shape", return_value=False):
        sink.publish(expect(BatchKey("live", 8)), 1)
    del metastore.tables[NAME]
    sink.drop_replaced(BATCH.checkpoint, older_seconds=0)
    assert NAME not in metastore.tables


@pytest.mark.parametrize("kind", ["MANAGED", None])
def test_no_file_of_somebody_else_goes_with_a_replaced_table(
    kind: str | None, tmp_path: Path, metastore: InMemory, caplog: pytest.LogCaptureFixture
) -> None:
    metastore.tables[NAME] = {"type": kind, "provider": "orc", "location": f"file://{tmp_path}/theirs"}
    metastore.partitions[NAME] = {}
    write_stage_table(sink := sink_of(tmp_path, metastore, "replace"), 1)
    with caplog.at_level("WARNING", module_of_whole_tables.__name__):
        sink.publish(EXPECTED, 1)
    assert "it is kept as `orders__replaced_" in caplog.text
    for _ in "janitor", "again":
        assert sink.drop_replaced(BATCH.checkpoint, older_seconds=0) == []
    assert [one["location"] for name, one in metastore.tables.items() if name != NAME] == [f"file://{tmp_path}/theirs"]


def test_a_table_that_was_made_by_somebody_else_goes_when_it_had_files_of_this_sink(
    tmp_path: Path, metastore: InMemory
) -> None:
    """It got them in one call, having had the same columns. Its own were left where they are then."""
    metastore.tables[NAME] = {"type": "MANAGED", "provider": "json", "location": f"file://{tmp_path}/theirs"}
    metastore.partitions[NAME] = {}
    for key in KEY, NEXT.key:
        write_stage_table(sink := sink_of(tmp_path, metastore, "replace"), 1, batch=batch_of(key))
        with mock.patch.object(TableInfo, "same_shape", return_value=key == KEY):
            sink.publish(expect(key), 1)
    assert len(metastore.tables) == 2
    assert len(sink.drop_replaced(BATCH.checkpoint, older_seconds=0)) == 2, "a table and its files"
    assert [*metastore.tables] == [NAME]


@pytest.mark.parametrize("replaces", [True, False])
def test_files_of_a_whole_table_that_was_renamed_stay(
    replaces: bool, tmp_path: Path, metastore: InMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its publisher has died behind the publish, and its stage table is left."""
    monkeypatch.setattr(module_of_whole_tables, "read_schema", lambda _: {"columns": [("id", "BIGINT")]})
    catalog = SparkCatalog(metastore, str(tmp_path / "lake"))
    sink = TableSink(catalog, "orders", format="json", mode="create_or_replace")
    if replaces:
        write_stage_table(sink, 1)
        sink.publish(EXPECTED, 1)
    batch, expected = (NEXT, expect(BatchKey("live", 8))) if replaces else (BATCH, EXPECTED)
    write_stage_table(sink, 1, batch=batch)
    with dying_at(Metastore, "drop"):
        sink.publish(expected, 1)
    metastore.rename(NAME, AWAY)
    sink.drop_stage(batch, 1)
    assert len(files_of(metastore, AWAY)) == 1


def test_the_stage_of_a_whole_table_whose_publish_was_refused_goes(tmp_path: Path, metastore: InMemory) -> None:
    write_stage_table(sink := sink_of(tmp_path, metastore, "create"), 1)
    with mock.patch.object(Metastore, "rename", side_effect=SinkError("no")), pytest.raises(SinkError):
        sink.publish(EXPECTED, 1)
    assert sink.drop_stage(BATCH, 1) is True
    assert not list((tmp_path / "lake").rglob("attempt=*"))


def test_what_is_left_of_a_batch_is_dropped_when_its_table_is_back(tmp_path: Path, metastore: InMemory) -> None:
    """Its publisher has died behind the publish. Of a table that is away nobody knows what is in."""
    write_stage_table(sink := sink_of(tmp_path, metastore), 1)
    with dying_at(Metastore, "drop"):
        sink.publish(EXPECTED, 1)
    with away(metastore), pytest.raises(SinkError, match="not in the catalog any more"):
        sink.drop_stage(BATCH, 1)
    assert sink.drop_stage(BATCH, 1) is True
    assert len(metastore.rows(NAME)) == 3
    assert sink.stages(BATCH.checkpoint) == []


def test_files_that_a_replay_was_to_replace_are_not_removed(tmp_path: Path, metastore: InMemory) -> None:
    """It has died behind its note, and was given up."""
    write_stage_table(sink := sink_of(tmp_path, metastore), 1)
    sink.publish(EXPECTED, 1)
    write_stage_table(sink, 2)
    with dying_at(Metastore, "move_partition"):
        sink.replace(EXPECTED, 2)
    sink.drop_stage(BATCH, 2)
    with away(metastore):
        assert sink.drop_replaced(BATCH.checkpoint, older_seconds=0) == []
    assert len(metastore.rows(NAME)) == 3
    assert sink.drop_replaced(BATCH.checkpoint, older_seconds=0) == []
    assert not list((tmp_path / "lake").rglob("*.replaced")), "nothing is to be replaced any more"


def test_files_that_are_replaced_while_the_janitor_waits_for_the_lock_are_kept_for_a_while(
    tmp_path: Path, metastore: InMemory
) -> None:
    """Their note is an old one: of a replay that was given up."""
    write_stage_table(sink := sink_of(tmp_path, metastore), 1)
    sink.publish(EXPECTED, 1)
    write_stage_table(sink, 2)
    with dying_at(Metastore, "move_partition"):
        sink.replace(EXPECTED, 2)
    grow_old(sink)
    real = SparkCatalog._changing

    @contextmanager
    def behind_a_replay(catalog: SparkCatalog, table: Table) -> Iterator[Metastore]:
        with mock.patch.object(SparkCatalog, "_changing", real):
            sink.replace(EXPECTED, 2)
        with real(catalog, table) as store:
            yield store

    with mock.patch.object(SparkCatalog, "_changing", behind_a_replay):
        assert sink.drop_replaced(BATCH.checkpoint, older_seconds=HOUR) == []
    grow_old(sink)
    assert len(sink.drop_replaced(BATCH.checkpoint, older_seconds=HOUR)) == 1


def test_without_anything_replaced_the_janitor_takes_no_lock(tmp_path: Path, metastore: InMemory) -> None:
    write_stage_table(sink := sink_of(tmp_path, metastore), 1)
    sink.publish(EXPECTED, 1)
    with mock.patch.object(SparkCatalog, "_changing", side_effect=AssertionError):
        assert sink.drop_replaced(BATCH.checkpoint, older_seconds=0) == []
        files = sink.catalog.files(sink.as_table)
        note_replaced(files, sink.catalog.folder(sink._stage(BATCH, 1)))
        assert sink.drop_replaced(BATCH.checkpoint, older_seconds=HOUR) == []


def drop_day(metastore: InMemory, day: str) -> None:
    named = metastore.partitions[NAME]
    metastore.partitions[NAME] = {path: at for path, at in named.items() if not path.endswith(f"/of={day}")}


def days(sink: TableSink, epoch: int) -> None:
    write_partitions(sink, epoch, below=("of=a", "of=b"))


def test_a_replay_that_died_behind_its_exchange_was_found_whole(tmp_path: Path, metastore: InMemory) -> None:
    days(sink := sink_in(tmp_path, metastore, "orders"), 1)
    sink.publish(EXPECTED, 1)
    days(sink, 2)
    with dying_at(TableOfFolders, "note_whole"):
        sink.replace(EXPECTED, 2)
    drop_day(metastore, "a")
    sink.drop_stage(BATCH, 2)
    assert {row["epoch"] for row in metastore.rows(NAME)} == {2}
    assert sink.seen(EXPECTED) is not None


def test_a_replay_that_died_before_its_exchange_was_found_by_nobody(tmp_path: Path, metastore: InMemory) -> None:
    """What it replaces was taken out since."""
    days(sink := sink_in(tmp_path, metastore, "orders"), 1)
    sink.publish(EXPECTED, 1)
    days(sink, 2)
    with dying_at(FileSink, "replace"):
        sink.replace(EXPECTED, 2)
    sink.withdraw(EXPECTED, 1)
    with dying_at(Metastore, "add_partitions"):
        sink.publish(EXPECTED, 2)
    catalog = sink.catalog
    assert isinstance(catalog, SparkCatalog)
    kind = catalog._kind(sink.as_table, catalog._store(sink.as_table))
    assert isinstance(kind, TableOfFolders)
    assert not kind.was_whole(BATCH.key)


def test_output_that_another_attempt_adopts_was_found_whole(tmp_path: Path, metastore: InMemory) -> None:
    for epoch in 1, 2:
        days(sink := sink_in(tmp_path, metastore, "orders"), epoch)
    with dying_at(TableOfFolders, "note_whole"):
        sink.publish(EXPECTED, 1)
    assert sink.publish(EXPECTED, 2).epoch == 1
    drop_day(metastore, "a")
    sink.drop_stage(BATCH, 1)
    assert len(metastore.rows(NAME)) == 3


def test_a_replay_replaces_no_partition_that_leads_elsewhere(tmp_path: Path, metastore: InMemory) -> None:
    """Somebody has compacted a day into a folder of its own."""
    days(sink := sink_in(tmp_path, metastore, "orders"), 1)
    sink.publish(EXPECTED, 1)
    (path,) = (path for path in metastore.partitions[NAME] if path.endswith("of=b"))
    shutil.copytree(metastore.partitions[NAME][path], tmp_path / "compacted")
    metastore.partitions[NAME][path] = tmp_path / "compacted"
    days(sink, 2)
    with pytest.raises(SinkError, match=r"leads to .*/compacted, .*nothing was replaced") as refused:
        sink.replace(EXPECTED, 2)
    assert {row["epoch"] for row in metastore.rows(NAME)} == {1}
    metastore.run([str(refused.value).rpartition("partition back: ")[2]])
    assert sink.replace(EXPECTED, 2).epoch == 2
    assert {row["epoch"] for row in metastore.rows(NAME)} == {2}


@pytest.mark.parametrize("link", [True, False])
def test_batches_of_a_table_that_was_moved_are_in_where_its_partitions_lead(
    link: bool, tmp_path: Path, metastore: InMemory
) -> None:
    days(sink := sink_in(tmp_path / "old", metastore, "orders"), 1)
    sink.publish(EXPECTED, 1)
    (tmp_path / "old").rename(tmp_path / "new")
    moved = sink_in(tmp_path / "new", metastore, "orders")
    if link:
        (tmp_path / "old").symlink_to(tmp_path / "new")
        assert moved.contains(EXPECTED) is not None
    else:
        with pytest.raises(SinkError, match="has moved the table"):
            moved.contains(EXPECTED)
