"""The Delta sink on tables of delta-rs: what of a batch is known when the log forgets, what a replay touches, and
who wins when several commit. (tests/contract/test_sink.py has what it shares with every sink.)"""

from __future__ import annotations

import datetime as dt
import logging
import multiprocessing
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyarrow import Table as ArrowTable
from pyarrow import compute

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.sinks import OpenSink
from airflow_provider_microbatch.sinks.delta.log import DeltaLog
from airflow_provider_microbatch.sinks.placed import places
from tests.sinks.delta_stages import write_delta_stage, write_rows
from tests.sinks.delta_world import damage, opened, optimize_and_vacuum, publish, rows, table
from tests.sinks.delta_world import root as root
from tests.sinks.delta_world import sink as sink
from tests.sinks.stages import BATCH, CHECKPOINT, EXPECTED, NOTHING_KNOWN, batch_of, expect

SPAWN = multiprocessing.get_context("spawn")


def test_a_batch_is_one_commit_and_says_whose_it_is(sink: OpenSink, root: Path) -> None:
    publish(sink, 6)
    before = table(root).version()
    publish(sink, 7)
    assert table(root).version() == before + 1
    told = table(root).history(1)[0]["microbatch"]
    assert told["identity"] == BATCH.to_dict()
    assert (told["batch"], told["epoch"]) == ("live/7", 1)
    assert rows(root) == {(6, 1): 3, (7, 1): 3}


def test_what_is_in_is_known_when_the_log_was_cleaned_up_and_files_were_merged_and_vacuumed(
    sink: OpenSink, root: Path
) -> None:
    for number in (5, 6, 7):
        publish(sink, number)
    known = {number: sink.contains(expect(BatchKey("live", number))) for number in (5, 6, 7)}
    table(root).create_checkpoint()
    for entry in (root / "_delta_log").glob("*.json"):
        os.utime(entry, (1e9, 1e9))
    publish(sink, 8)
    table(root).cleanup_metadata()
    assert not (root / "_delta_log" / f"{0:020}.json").exists()
    optimize_and_vacuum(root)
    assert {number: sink.contains(expect(BatchKey("live", number))) for number in (5, 6, 7)} == known
    assert sink.batches("live", NOTHING_KNOWN) == [5, 6, 7, 8]
    assert sink.contains(expect(BatchKey("live", 9))) is None


def test_a_replay_after_files_were_merged_takes_out_just_the_rows_of_its_batch(sink: OpenSink, root: Path) -> None:
    for number in (6, 7, 8):
        publish(sink, number)
    optimize_and_vacuum(root)
    assert len(table(root).file_uris()) == 1
    write_delta_stage(sink, 2, rows=5)
    before = table(root).version()
    sink.replace(EXPECTED, 2)
    assert table(root).version() == before + 1
    assert rows(root) == {(6, 1): 3, (7, 2): 5, (8, 1): 3}
    assert sink.withdraw(EXPECTED, 2)
    assert rows(root) == {(6, 1): 3, (8, 1): 3}


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("double", [1.5, None, 3.5]),
        ("double", [1.5, float("nan"), 3.5]),
        ("boolean", [False, True, None]),
        ("timestamp", [dt.datetime(2026, 1, day, tzinfo=dt.UTC) for day in (1, 2, 3)]),
        ("string", ["a", "b" * 200, None]),
        ("date", [dt.date(2026, 1, 1), None, dt.date(2026, 1, 3)]),
        ("long", [1, None, 3]),
        ("long", [None, None, None]),
    ],
)
def test_who_filters_by_a_column_finds_its_rows(sink: OpenSink, root: Path, kind: str, values: list[Any]) -> None:
    """delta-rs leaves out a file in which one column has bounds in the log, and the filter's column none."""
    found = [{"id": id, "value": value} for id, value in enumerate(values)]
    write_rows(sink, 1, [found], {"id": "long", "value": kind})
    sink.publish(EXPECTED, 1)
    dataset = table(root).to_pyarrow_dataset()
    least = min((value for value in values if value is not None and value == value), default=0)
    seen = dataset.to_table(filter=compute.field("value") >= least).num_rows
    assert seen == sum(value is not None and value == value for value in values)
    assert dataset.to_table(filter=compute.field("id") >= 1).num_rows == 2
    assert dataset.to_table(filter=compute.field("value").is_null()).num_rows == values.count(None)


@pytest.mark.parametrize(("kind", "after"), [("timestamp", 253402300800000000), ("date", 2932897)])
def test_a_time_behind_the_year_9999_is_one_like_any_other(sink: OpenSink, root: Path, kind: str, after: int) -> None:
    """As 9999-12-31 becomes in a session west of UTC; Python has no value for it."""
    write_rows(sink, 1, [[{"id": 1, "value": after}, {"id": 2, "value": 0}]], {"id": "long", "value": kind})
    sink.publish(EXPECTED, 1)
    found = table(root).to_pyarrow_dataset().to_table(filter=compute.field("id") == 1)
    assert found.column("value").cast(pa.int64() if kind == "timestamp" else pa.int32()).to_pylist() == [after]


def test_a_replay_of_an_older_batch_is_not_skipped(sink: OpenSink, root: Path) -> None:
    """As Delta's own idempotent writes would: by a version that is not above the newest."""
    for number in range(6, 12):
        publish(sink, number)
    write_delta_stage(sink, 2)
    sink.replace(EXPECTED, 2)
    assert rows(root)[7, 2] == 3
    assert rows(root)[7, 1] == 0


def test_others_append_meanwhile_and_nothing_is_lost(
    sink: OpenSink, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(sink, 7)
    commit = DeltaLog.commit
    foreign = []

    def interrupted(self: DeltaLog, *args: Any, **kwargs: Any) -> bool:
        if not foreign:
            foreign.append(1)
            write_deltalake(
                root.as_uri(), ArrowTable.from_pylist([{"id": 1, "epoch": 0}]), mode="append", schema_mode="merge"
            )
        return commit(self, *args, **kwargs)

    monkeypatch.setattr(DeltaLog, "commit", interrupted)
    write_delta_stage(sink, 2)
    sink.replace(EXPECTED, 2)
    publish(sink, 8)
    assert rows(root) == {(7, 2): 3, (8, 1): 3, (None, 0): 1}


def test_who_overwrites_the_batch_while_it_is_replaced_is_named(
    sink: OpenSink, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (7, 8):
        publish(sink, number)
    commit = DeltaLog.commit

    def interrupted(self: DeltaLog, *args: Any, **kwargs: Any) -> bool:
        table(root).delete("batch_id = 7 AND id = 1")
        monkeypatch.undo()
        return commit(self, *args, **kwargs)

    monkeypatch.setattr(DeltaLog, "commit", interrupted)
    write_delta_stage(sink, 2)
    with pytest.raises(SinkError, match=r"somebody else has deleted .* of batch live/7 .*DELETE by delta-rs"):
        sink.replace(EXPECTED, 2)
    assert rows(root) == {(7, 1): 2, (8, 1): 3}


def test_a_merge_of_files_while_the_batch_is_replaced_does_no_harm(
    sink: OpenSink, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (7, 8):
        publish(sink, number)
    commit = DeltaLog.commit

    def interrupted(self: DeltaLog, *args: Any, **kwargs: Any) -> bool:
        table(root).optimize.compact()
        monkeypatch.undo()
        return commit(self, *args, **kwargs)

    monkeypatch.setattr(DeltaLog, "commit", interrupted)
    write_delta_stage(sink, 2)
    sink.replace(EXPECTED, 2)
    assert rows(root) == {(7, 2): 3, (8, 1): 3}


def test_rows_that_were_deleted_before_a_replay_are_told_of_and_come_back(
    sink: OpenSink, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    publish(sink, 7)
    table(root).delete("id = 1")
    write_delta_stage(sink, 2)
    with caplog.at_level(logging.WARNING):
        sink.replace(EXPECTED, 2)
    assert "had 3 rows when it was published, and has 2 now" in caplog.text
    assert rows(root) == {(7, 2): 3}


def test_rows_that_a_batch_brought_to_other_tables_are_not_taken_for_deleted(
    sink: OpenSink, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    manifest = write_delta_stage(sink, 1) / "_manifest" / "part-00000.txt"
    several = '"numOutputRows": 5, "numOutputRowsBySink": {"orders": 3, "people": 2}'
    manifest.write_text(manifest.read_text().replace('"numOutputRows": 3', several))
    sink.publish(EXPECTED, 1)
    write_delta_stage(sink, 2)
    sink.replace(EXPECTED, 2)
    assert rows(root) == {(7, 2): 3}
    assert "somebody has deleted" not in caplog.text


def test_a_table_of_several_is_told_of_rows_that_were_deleted_there(
    sink: OpenSink, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    manifest = write_delta_stage(sink, 1) / "_manifest" / "part-00000.txt"
    several = '"numOutputRows": 5, "numOutputRowsBySink": {"orders": 3, "people": 2}, "sink": "orders"'
    manifest.write_text(manifest.read_text().replace('"numOutputRows": 3', several))
    sink.publish(EXPECTED, 1)
    table(root).delete("id = 1")
    write_delta_stage(sink, 2)
    with caplog.at_level(logging.WARNING):
        sink.replace(EXPECTED, 2)
    assert "had 3 rows when it was published, and has 2 now" in caplog.text


def test_batches_that_a_restore_took_out_are_told_of_with_the_commit(sink: OpenSink, root: Path) -> None:
    for number in (5, 6):
        publish(sink, number)
    before = table(root).version()
    publish(sink, 7)
    assert [damage(sink, number) for number in (5, 6, 7)] == [None, None, None]
    table(root).restore(before)
    nothing = {"lane": pa.array([None], pa.string()), "batch_id": pa.array([None], pa.int64())}
    foreign = pa.table({"id": [100], "epoch": [0], **nothing})
    write_deltalake(str(root), foreign, mode="append")
    assert [damage(sink, number) for number in (5, 6)] == [None, None]
    told = damage(sink, 7)
    assert told is not None
    assert "none of its 3 rows is in version 4; taken out, most likely, by version 3: RESTORE by " in told
    write_delta_stage(sink, 2)
    sink.replace(EXPECTED, 2)
    assert damage(sink, 7) is None


def test_what_others_have_merged_or_deleted_in_part_may_be_there(sink: OpenSink, root: Path) -> None:
    for number in (5, 6, 7):
        publish(sink, number)
    table(root).delete("batch_id = 6 and id = 1")
    optimize_and_vacuum(root)
    assert [damage(sink, number) for number in (5, 6, 7)] == [None, None, None]
    table(root).delete("batch_id = 7")
    assert "DELETE" in (damage(sink, 7) or "")


def test_a_batch_without_rows_misses_none(sink: OpenSink, root: Path) -> None:
    publish(sink, 6)
    write_delta_stage(sink, 1, rows=0)
    sink.publish(EXPECTED, 1)
    assert damage(sink, 7) is None


def _publish_when_told(root: Path, epoch: int, start: Any, results: Any) -> None:
    sink = opened(root)
    start.wait()
    try:
        results.put(sink.publish(EXPECTED, epoch).epoch)
    except Exception as error:
        results.put(repr(error))


@pytest.mark.slow
@pytest.mark.parametrize("exists", [False, True], ids=["which makes the table", "into a table"])
def test_of_attempts_that_publish_at_once_in_processes_of_their_own_one_is_in(
    sink: OpenSink, root: Path, exists: bool
) -> None:
    if exists:
        publish(sink, 6)
    epochs = range(1, 4)
    for epoch in epochs:
        write_delta_stage(sink, epoch)
    start, results = SPAWN.Barrier(len(epochs)), SPAWN.Queue()
    processes = [SPAWN.Process(target=_publish_when_told, args=(root, epoch, start, results)) for epoch in epochs]
    for process in processes:
        process.start()
    told = {results.get(timeout=120) for _ in epochs}
    for process in processes:
        process.join(timeout=60)
    assert len(told) == 1
    (winner,) = told
    assert rows(root)[7, winner] == 3
    assert sum(count for (number, _), count in rows(root).items() if number == 7) == 3
    for epoch in set(epochs) - {winner}:
        assert sink.drop_stage(BATCH, epoch)
    assert sink.stages(CHECKPOINT) == []
    on_disk = list((root / "microbatch" / "live" / "7").rglob("*.parquet"))
    assert len(on_disk) == 1


@pytest.mark.parametrize("step", ["take", "commit", "sync"])
def test_who_dies_while_it_publishes_is_followed_by_whoever_comes_next(
    sink: OpenSink, root: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow_provider_microbatch.sinks.placed.places import Places

    publish(sink, 6)
    owner: Any = Places if step == "take" else DeltaLog
    real = getattr(owner, step)
    for when in ("before", "after"):

        def dies(self: Any, *args: Any, when: str = when, **kwargs: Any) -> Any:
            if when == "after":
                real(self, *args, **kwargs)
            raise KeyboardInterrupt

        number = 7 if when == "before" else 8
        batch = batch_of(BatchKey("live", number))
        write_delta_stage(sink, 1, batch=batch)
        monkeypatch.setattr(owner, step, dies)
        with pytest.raises(KeyboardInterrupt):
            sink.publish(expect(batch.key), 1)
        monkeypatch.undo()
        assert (batch.key, 1) in sink.stages(CHECKPOINT) or sink.contains(expect(batch.key)) is not None
        write_delta_stage(sink, 2, batch=batch)
        published = sink.publish(expect(batch.key), 2).epoch
        assert published == (1 if (step, when) in {("commit", "after"), ("sync", "before"), ("sync", "after")} else 2)
        for epoch in (1, 2):
            assert sink.drop_stage(batch, epoch) is (epoch != published)
        assert rows(root)[number, published] == 3
        assert sum(count for (found, _), count in rows(root).items() if found == number) == 3
        assert sink.stages(CHECKPOINT) == []
        assert len(list((root / "microbatch" / "live" / str(number)).rglob("*.parquet"))) == 1


def test_what_an_attempt_has_in_place_is_published_by_who_takes_over(
    sink: OpenSink, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(*args: Any, **kwargs: Any) -> bool:
        raise KeyboardInterrupt

    write_delta_stage(sink, 1)
    staged = sink.manifest(BATCH, 1)
    monkeypatch.setattr(DeltaLog, "create", dies)
    with pytest.raises(KeyboardInterrupt):
        sink.publish(EXPECTED, 1)
    monkeypatch.undo()
    assert sink.contains(EXPECTED) is None
    assert sink.manifest(BATCH, 1) == staged
    assert sink.publish(EXPECTED, 1) == staged
    assert rows(root) == {(7, 1): 3}


def test_files_that_a_replay_put_out_stay_for_who_reads_an_older_version(sink: OpenSink, root: Path) -> None:
    publish(sink, 7)
    before = table(root).version()
    write_delta_stage(sink, 2)
    sink.replace(EXPECTED, 2)
    sink.drop_stage(BATCH, 1)
    sink.drop_replaced(CHECKPOINT, older_seconds=0)
    assert DeltaTable(root.as_uri(), version=before).to_pyarrow_table().num_rows == 3
    optimize_and_vacuum(root)
    assert rows(root) == {(7, 2): 3}


PARTITIONED = {"id": "long", "country": "string"}


def test_partitions_of_any_value_are_read_back(root: Path) -> None:
    sink = opened(root, partition_by=["country"])
    values = ["DE", "a b", "50%/ü=?", "_c", None, "it's [1]#&+"]
    given = [{"id": id, "country": value} for id, value in enumerate(values)]
    for epoch in (1, 2):
        write_rows(sink, epoch, [given], PARTITIONED, partition_by="country")
    sink.publish(EXPECTED, 1)
    sink.replace(EXPECTED, 2)
    found = table(root).to_pyarrow_table(columns=["id", "country"]).to_pylist()
    assert sorted(found, key=lambda row: int(row["id"])) == given
    # VACUUM of Spark removes files that delta-rs spells otherwise than they are called.
    paths = DeltaTable(root.as_uri()).get_add_actions().column("path").to_pylist()
    assert all("%" not in path for path in paths)


def test_names_that_the_log_is_about_to_have_are_on_disk_before_it(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power cut between them would leave a table that names a file which is not there."""
    sink, synced = opened(root, partition_by=["country"]), list[Path]()
    monkeypatch.setattr(places, "sync", synced.append)
    commit = DeltaLog.create

    def looking(self: DeltaLog, adds: Any, **given: Any) -> bool:
        assert [(root / add.path).parent for add in adds] == synced[-len(adds) :]
        return commit(self, adds, **given)

    monkeypatch.setattr(DeltaLog, "create", looking)
    write_rows(sink, 1, [[{"id": 1, "country": "a b"}]], PARTITIONED, partition_by="country")
    sink.publish(EXPECTED, 1)
    assert synced


def test_a_replay_in_a_partitioned_table_after_files_were_merged(root: Path) -> None:
    sink = opened(root, partition_by=["country"])
    for number in (6, 7):
        given = [{"id": id, "country": country} for country in ("a b", "x:y") for id in range(3)]
        batch = batch_of(BatchKey("live", number))
        write_rows(sink, 1, [given], PARTITIONED, batch=batch, partition_by="country")
        sink.publish(expect(batch.key), 1)
    optimize_and_vacuum(root)
    assert len(table(root).file_uris()) == 2
    write_rows(sink, 2, [[{"id": 9, "country": "x:y"}]], PARTITIONED, partition_by="country")
    sink.replace(EXPECTED, 2)
    found = table(root).to_pyarrow_table(columns=["batch_id", "country"]).to_pylist()
    counts = Counter((row["batch_id"], row["country"]) for row in found)
    assert counts == {(6, "a b"): 3, (6, "x:y"): 3, (7, "x:y"): 1}


def test_another_column_is_refused_and_added_only_where_that_is_said(sink: OpenSink, root: Path) -> None:
    publish(sink, 6)
    wider = {"id": "long", "epoch": "long", "note": "string"}
    write_rows(sink, 1, [[{"id": 1, "epoch": 1, "note": "a"}]], wider)
    with pytest.raises(SinkError, match=r"does not have 'note'.*schema_policy='add_columns'"):
        sink.publish(EXPECTED, 1)
    assert sink.contains(EXPECTED) is None
    allowing = opened(root, schema_policy="add_columns")
    allowing.publish(EXPECTED, 1)
    assert [field.name for field in table(root).schema().fields] == ["id", "epoch", "lane", "batch_id", "note"]
    publish(allowing, 8)
    with pytest.raises(SinkError, match="has 'note' too"):
        publish(opened(root), 9)
    assert rows(root) == {(6, 1): 3, (7, 1): 1, (8, 1): 3}


def test_a_type_is_never_changed(root: Path) -> None:
    sink = opened(root, schema_policy="add_columns")
    publish(sink, 6)
    for epoch, kind in ((1, "integer"), (2, "string")):
        value = "1" if kind == "string" else 1
        write_rows(sink, epoch, [[{"id": value, "epoch": epoch}]], {"id": kind, "epoch": "long"})
        with pytest.raises(SinkError, match=f"column 'id' is {kind}, and long in"):
            sink.publish(EXPECTED, epoch)
    assert rows(root) == {(6, 1): 3}


def test_a_batch_without_a_row_is_in(sink: OpenSink, root: Path) -> None:
    write_rows(sink, 1, [[]], {"id": "long", "epoch": "long"})
    sink.publish(EXPECTED, 1)
    assert sink.contains(EXPECTED) is not None
    assert table(root).file_uris() == []
    publish(sink, 8)
    assert rows(root) == {(8, 1): 3}


def test_a_batch_of_which_no_source_had_a_frame_is_in_and_the_first_frame_makes_the_columns(
    sink: OpenSink, root: Path
) -> None:
    stage = write_delta_stage(sink, 1)
    for path in (stage / "_schema" / "part-00000.txt", *stage.glob("*.parquet")):
        path.unlink()
    (stage / "_schema").rmdir()
    manifest = stage / "_manifest" / "part-00000.txt"
    manifest.write_text(manifest.read_text().splitlines()[0] + "\n")
    sink.publish(EXPECTED, 1)
    assert sink.contains(EXPECTED) is not None
    publish(sink, 8)
    assert rows(root) == {(8, 1): 3}
