"""Batches of partitions in a metastore of this process: the contract of sinks, and that each step of what is done to a
batch may be a process's last."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path

import pytest

from airflow_provider_microbatch.exceptions import ForeignBatchError, SinkError
from airflow_provider_microbatch.sinks import ExpectedBatch, Sink, SinkContext
from airflow_provider_microbatch.sinks import file as file_sink
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sinks.several import Sinks
from airflow_provider_microbatch.sinks.table import TableSink, table_of_folders
from airflow_provider_microbatch.sinks.table.statements import Rows, StatementError
from tests.contract.test_sink import (  # noqa: F401
    Kind,
    test_a_batch_that_is_withdrawn_is_out_and_can_come_back,
    test_a_replay_needs_a_complete_stage,
    test_a_replay_replaces_and_an_older_one_cannot_come_back,
    test_a_stage_is_published_once_and_saying_it_again_changes_nothing,
    test_a_stage_of_another_plan_is_not_published,
    test_an_unfinished_or_missing_stage_is_never_published,
    test_attempts_lanes_and_checkpoints_never_share_a_stage,
    test_batches_and_lanes_do_not_meet,
    test_making_and_asking_touch_nothing,
    test_of_two_attempts_the_first_wins_and_the_other_learns_it,
    test_output_that_is_recognised_counts_and_an_adopted_one_is_older_than_every_attempt,
    test_what_is_at_a_batchs_place_and_not_the_batch_is_an_error_with_the_ways_on,
    test_what_was_withdrawn_is_kept_and_goes_as_replaced_output_does,
)
from tests.sinks.stages import BATCH, EXPECTED, KEY, batch_of, expect, write_stage
from tests.tables.metastore_in_memory import InMemory
from tests.tables.partition_lives import Killed, Life, die_unseen, dies, dying, sink_in
from tests.tables.stages import write_partitions


class Small(InMemory):
    """It spells values its own way."""

    def _run(self, statement: str) -> Rows:
        return super()._run(statement.replace("= 'A'", "= 'a'"))


@pytest.fixture
def kind() -> Kind:
    metastore = InMemory()
    return Kind(make=lambda folder: sink_in(folder, metastore, "orders"), write_stage=write_partitions)


@pytest.fixture
def sink(kind: Kind, tmp_path: Path) -> Sink:
    return kind.make(tmp_path)


@pytest.mark.parametrize(
    "doing", ["publish", "publish behind a withdrawal", "publish behind an unseen attempt", "replace", "withdraw"]
)
def test_a_crash_between_any_two_steps_loses_and_doubles_nothing(doing: str, tmp_path: Path) -> None:
    def life(number: int) -> Life:
        metastore = InMemory()
        sink = sink_in(tmp_path / str(number), metastore, "orders")
        return Life(sink, lambda: [row["epoch"] for row in metastore.rows("`orders`")])

    steps = next(number for number in itertools.count() if not dies(life(number), doing, at=number))
    assert steps > 2, "it has died at each of its steps"


def test_a_table_keeps_its_partition_columns(kind: Kind, sink: TableSink) -> None:
    kind.write_stage(sink, 1)
    sink.publish(EXPECTED, 1)
    with pytest.raises(SinkError, match=r"was made with partition_by=\('of',\), not \(\)"):
        dataclasses.replace(sink, partition_by=()).admits(BATCH)


def test_output_of_other_partition_columns_is_an_error(kind: Kind, sink: TableSink) -> None:
    """Of a table that was made anew, where its folder was left."""
    kind.write_stage(sink, 1, below=("of=a/and=b",))
    with pytest.raises(SinkError, match="is no partition by of"):
        sink.publish(EXPECTED, 1)


def test_what_an_attempt_has_left_unseen_is_its_stage_still(kind: Kind, sink: TableSink) -> None:
    """A topic may have that attempt for good: then no other one can follow."""
    kind.write_stage(sink, 1)
    die_unseen(sink)
    assert sink.contains(EXPECTED) is None
    staged = sink.manifest(BATCH, 1)
    assert staged is not None
    assert staged.epoch == 1
    assert sink.manifest(BATCH, 2) is None
    assert sink.publish(EXPECTED, 1) == staged == sink.contains(EXPECTED)


def test_that_an_attempt_has_left_no_stage_is_known_without_the_server(
    kind: Kind, sink: TableSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server may be what its job has died of: the task is to say so."""

    def down(*_: object, **__: object) -> list[Rows]:
        raise StatementError("DOWN", "no server")

    kind.write_stage(sink, 1)
    sink.publish(EXPECTED, 1)
    monkeypatch.setattr(InMemory, "run", down)
    assert sink.manifest(BATCH, 2) is None


@pytest.mark.parametrize("is_dropped", [True, False])
def test_what_a_dead_attempt_has_left_unseen_gives_way_to_the_next(
    kind: Kind, sink: TableSink, is_dropped: bool
) -> None:
    """It may have rows that were forgotten since, which the next attempt has not."""
    kind.write_stage(sink, 1)
    die_unseen(sink)
    if is_dropped:
        assert sink.drop_stage(BATCH, 1) is True
        assert sink.manifest(BATCH, 1) is None
        with pytest.raises(SinkError, match="no complete stage"):
            sink.publish(EXPECTED, 1)
    kind.write_stage(sink, 2)
    assert sink.publish(EXPECTED, 2).epoch == 2
    assert len(sink.drop_replaced(BATCH.checkpoint, older_seconds=0)) == 1


@pytest.mark.parametrize("batch", [EXPECTED, expect(digest="d2")], ids=["batch", "planned again"])
def test_it_gives_way_where_no_two_folders_can_be_exchanged(
    kind: Kind, sink: TableSink, monkeypatch: pytest.MonkeyPatch, batch: ExpectedBatch
) -> None:
    """NFS puts a batch in its place by a rename, and exchanges nothing."""
    monkeypatch.setattr(file_sink, "exchange", lambda *_: False)
    kind.write_stage(sink, 1)
    die_unseen(sink)
    kind.write_stage(sink, 2, batch=batch.identity)
    assert sink.publish(batch, 2).epoch == 2
    kind.write_stage(sink, 3, batch=batch.identity)
    with pytest.raises(SinkError, match="cannot exchange two folders"):
        sink.replace(batch, 3)
    assert sink.contains(batch) is not None


def test_values_that_the_metastore_refuses_are_those_of_their_attempt_alone(tmp_path: Path) -> None:
    """Those of a corrected transform get through."""

    class Refusing(InMemory):
        def _run(self, statement: str) -> Rows:
            if "ADD IF NOT EXISTS" in statement and "'too long'" in statement:
                raise StatementError("INVALID", "value refused")
            return super()._run(statement)

    metastore = Refusing()
    sink = sink_in(tmp_path, metastore, "orders")
    write_partitions(sink, 1, below=("of=too long",))
    for _ in "try", "retry":
        with pytest.raises(SinkError, match="value refused"):
            sink.publish(EXPECTED, 1)
    write_partitions(sink, 2)
    assert sink.publish(EXPECTED, 2).epoch == 2
    assert {row["epoch"] for row in metastore.rows("`orders`")} == {2}


def test_a_value_that_looks_like_a_variable_of_spark_is_that_value(tmp_path: Path) -> None:
    """Values are data: a stranger may choose them."""
    metastore = InMemory()
    sink = sink_in(tmp_path, metastore, "orders")
    write_partitions(sink, 1, rows=2, below=("of=a", "of=$%7Benv:HOME}"))
    sink.publish(EXPECTED, 1)
    assert [name.rpartition("/")[2] for name in metastore.partitions["`orders`"]] == ["of=${env:HOME}", "of=a"]
    assert len(metastore.rows("`orders`")) == 4


def test_partitions_that_the_metastore_spells_otherwise_are_an_error_before_any_row_is_seen(tmp_path: Path) -> None:
    metastore = Small()
    sink = sink_in(tmp_path, metastore, "orders")
    write_partitions(sink, 1)
    sink.publish(EXPECTED, 1)
    for epoch in 2, 3:
        write_partitions(sink, epoch, below=("of=A", "of=b"))
        with pytest.raises(SinkError, match="has not named of='A' of batch live/7"):
            sink.replace(EXPECTED, epoch)
        assert {row["epoch"] for row in metastore.rows("`orders`")} == {1}


def test_a_batch_of_which_the_metastore_names_a_part_is_not_in(tmp_path: Path) -> None:
    """Its publisher has died before it could take back what was named."""
    metastore = Small()
    sink = sink_in(tmp_path, metastore, "orders")
    write_partitions(sink, 1, below=("of=A", "of=b"))
    with dying(at=2, after=lambda: None), pytest.raises(Killed):
        sink.publish(EXPECTED, 1)
    assert [name.rpartition("/")[2] for name in metastore.partitions["`orders`"]] == ["of=a", "of=b"]
    assert sink.contains(EXPECTED) is None
    for _ in "try", "retry":
        with pytest.raises(SinkError, match=r"has not named of='A' .*Nothing of it was added"):
            sink.publish(EXPECTED, 1)
        assert metastore.partitions["`orders`"] == {}
    write_partitions(sink, 2, below=("of=b", "of=c"))
    assert sink.publish(EXPECTED, 2).epoch == 2
    assert [row["epoch"] for row in metastore.rows("`orders`")] == [2] * 6


def test_what_is_named_of_a_dead_attempt_shows_no_part_of_the_next(tmp_path: Path) -> None:
    metastore = Small()
    sink = sink_in(tmp_path, metastore, "orders")
    write_partitions(sink, 1, below=("of=A", "of=b"))
    with dying(at=2, after=lambda: None), pytest.raises(Killed):
        sink.publish(EXPECTED, 1)
    write_partitions(sink, 2, below=("of=b", "of=c"))
    seen = list[list[int]]()
    with dying(at=99, after=lambda: seen.append([row["epoch"] for row in metastore.rows("`orders`")])):
        sink.publish(EXPECTED, 2)
    assert [epochs for epochs in seen if 2 in epochs] == [[2] * 6] * 2, "all of it, and the drop of its stage table"


def test_whoever_says_that_a_batch_is_in_has_it_on_disk(
    kind: Kind, sink: TableSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its publisher may have died right behind its rename, which a power cut would undo."""
    kind.write_stage(sink, 1)
    sink.publish(EXPECTED, 1)
    synced = list[Path]()
    monkeypatch.setattr(table_of_folders, "sync", synced.append)
    assert sink.contains(EXPECTED) is not None
    assert synced == [sink.catalog.files(sink.as_table).published_path(KEY).parent]


def drop_by_hand(metastore: InMemory, value: str) -> None:
    """As ``ALTER TABLE orders DROP PARTITION (of=…)`` does in every batch: so does who keeps a year of days."""
    named = metastore.partitions["`orders`"]
    metastore.partitions["`orders`"] = {path: at for path, at in named.items() if not path.endswith(f"/of={value}")}


def test_what_readers_find_of_a_batch_that_is_not_in_is_taken_out_with_it(tmp_path: Path) -> None:
    metastore = InMemory()
    sink = sink_in(tmp_path, metastore, "orders")
    write_partitions(sink, 1, below=("of=a", "of=b"))
    made = sink.publish(EXPECTED, 1)
    drop_by_hand(metastore, "a")
    assert sink.contains(EXPECTED) is None
    assert sink.seen(EXPECTED) == made
    with pytest.raises(SinkError, match=r"is attempt 1's, not 2's"):
        sink.withdraw(EXPECTED, 2)
    assert len(metastore.rows("`orders`")) == 3
    assert sink.withdraw(EXPECTED, 1) is True
    assert metastore.partitions["`orders`"] == {}
    assert sink.seen(EXPECTED) is None
    assert sink.withdraw(EXPECTED, 1) is False
    write_partitions(sink, 2, below=("of=a", "of=b"))
    assert sink.publish(EXPECTED, 2).epoch == 2
    assert len(sink.drop_replaced(BATCH.checkpoint, older_seconds=0)) == 1


def test_what_is_left_of_a_published_attempts_stage_goes_without_what_readers_find(tmp_path: Path) -> None:
    """Its publisher died at the very end; the batch is committed, and somebody has dropped a day since."""
    metastore = InMemory()
    sink = sink_in(tmp_path, metastore, "orders")
    write_partitions(sink, 1, below=("of=a", "of=b"))
    with dying(at=2, after=lambda: None), pytest.raises(Killed):
        sink.publish(EXPECTED, 1)
    assert sink.contains(EXPECTED) is not None
    drop_by_hand(metastore, "a")
    assert sink.drop_stage(BATCH, 1) is True
    assert len(metastore.rows("`orders`")) == 3
    assert sink.seen(EXPECTED) is not None


def test_so_it_does_when_its_publisher_died_between_two_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_: object) -> None:
        raise Killed

    metastore = InMemory()
    table, audit = sink_in(tmp_path, metastore, "orders"), FileSink(str(tmp_path / "audit"), format="json")
    sink = Sinks({"orders": table, "audit": audit}).open(SinkContext())
    write_partitions(table, 1, below=("of=a", "of=b"))
    write_stage(audit, 1)
    with monkeypatch.context() as dying:
        dying.setattr(table_of_folders.TableOfFolders, "note_whole", killed)
        with pytest.raises(Killed):
            sink.publish(EXPECTED, 1)
    assert sink.finish(EXPECTED) is not None
    drop_by_hand(metastore, "a")
    assert sink.drop_stage(BATCH, 1) is True
    assert len(metastore.rows("`orders`")) == 3


def test_output_of_before_a_restore_is_no_stage_of_an_attempt_that_has_one(tmp_path: Path) -> None:
    """The checkpoint was restored: the attempt has the number of one whose rest readers find."""
    metastore = InMemory()
    sink = sink_in(tmp_path, metastore, "orders")
    write_partitions(sink, 1, below=("of=a", "of=b"))
    sink.publish(EXPECTED, 1)
    drop_by_hand(metastore, "a")
    write_partitions(sink, 1, below=("of=b", "of=c"), rows=1)
    assert sink.publish(EXPECTED, 1) == sink.contains(EXPECTED)
    assert [path.rpartition("/")[2] for path in metastore.partitions["`orders`"]] == ["of=b", "of=c"]
    assert len(metastore.rows("`orders`")) == 2


def test_what_readers_find_of_another_checkpoints_batch_is_foreign(tmp_path: Path) -> None:
    metastore = InMemory()
    sink = sink_in(tmp_path, metastore, "orders")
    write_partitions(sink, 1, below=("of=a", "of=b"))
    sink.publish(EXPECTED, 1)
    drop_by_hand(metastore, "a")
    other = expect(checkpoint="22222222-2222-3333-4444-555555555555", location="/checkpoints/other")
    write_partitions(sink, 1, batch=other.identity)
    for ask in (sink.contains, lambda batch: sink.publish(batch, 1), lambda batch: sink.replace(batch, 1)):
        with pytest.raises(ForeignBatchError, match="is another one than"):
            ask(other)
    assert len(metastore.rows("`orders`")) == 3


@pytest.mark.parametrize("below", [("of=A", "of=b"), ("of=A",)], ids=["a part", "by another name"])
def test_readers_find_no_part_of_an_attempt_whose_stage_was_dropped(below: tuple[str, ...], tmp_path: Path) -> None:
    """Its batch may be set aside, or wait for days for a transform that does not fail."""
    metastore = Small()
    sink = sink_in(tmp_path, metastore, "orders")
    write_partitions(sink, 1, below=below)
    with dying(at=2, after=lambda: None), pytest.raises(Killed):
        sink.publish(EXPECTED, 1)
    found = metastore.rows("`orders`")
    assert found
    assert sink.contains(EXPECTED) is None
    assert sink.seen(EXPECTED) is not None
    assert sink.drop_stage(batch_of(checkpoint="22222222-2222-3333-4444-555555555555"), 1) is False
    assert sink.drop_stage(BATCH, 2) is False
    assert metastore.rows("`orders`") == found
    assert sink.drop_stage(BATCH, 1) is True
    assert metastore.rows("`orders`") == []
    write_partitions(sink, 2, below=("of=b", "of=c"))
    assert sink.publish(EXPECTED, 2).epoch == 2
