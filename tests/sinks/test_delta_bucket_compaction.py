"""Small files of a Delta table in a bucket become few (tests/sinks/test_delta_compaction.py has what that is anywhere):
whose a file is, its path and a manifest say, and nobody comes between who joins and who replays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.sinks import Compacted, OpenSink
from airflow_provider_microbatch.sinks.compaction import CHANGED
from airflow_provider_microbatch.sinks.delta.log import DeltaLog
from tests.sinks.delta_bucket import keys, opened, optimize_and_vacuum, publish, rows, table
from tests.sinks.delta_bucket import sink as sink
from tests.sinks.delta_stages import write_rows
from tests.sinks.stages import CHECKPOINT, batch_of, expect
from tests.sinks.test_delta_compaction import before_commit, key, replace, wanted
from tests.support import object_store

pytestmark = pytest.mark.slow


def test_files_of_many_batches_become_one_and_a_replay_takes_just_its_own_rows(sink: OpenSink, tmp_path: Path) -> None:
    for number in range(4):
        publish(sink, number)
    found = [sink.contains(expect(key(number))) for number in range(4)]
    done = sink.compact(wanted())
    assert (done.files_before, done.files_after, done.batches) == (4, 1, set(map(key, range(4))))
    assert rows(tmp_path) == {(number, 1): 3 for number in range(4)}
    assert len(table(tmp_path).file_uris()) == 1
    assert [sink.contains(expect(key(number))) for number in range(4)] == found
    assert sink.compact(wanted()) == Compacted()
    replace(sink, 2)
    assert sink.withdraw(expect(key(1)), 1)
    optimize_and_vacuum(tmp_path)
    publish(sink, 4)
    publish(sink, 5)
    assert sink.compact(wanted()).batches == {key(4), key(5)}, "what others have joined is theirs"
    assert rows(tmp_path) == {(0, 1): 3, (2, 2): 2, (3, 1): 3, (4, 1): 3, (5, 1): 3}


def test_who_joins_while_a_batch_is_replaced_brings_nothing_back(
    sink: OpenSink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        publish(sink, number)
    before_commit(monkeypatch, lambda: replace(sink, 1))
    done = sink.compact(wanted())
    assert (done.files_after, done.left[CHANGED]) == (0, {key(0), key(1), key(2)})
    assert sink.compact(wanted(dry_run=True)).files_before == 3
    before_commit(monkeypatch, lambda: publish(sink, 3))
    assert sink.compact(wanted()).files_after == 1
    assert rows(tmp_path) == {(0, 1): 3, (1, 2): 2, (2, 1): 3, (3, 1): 3}
    assert len(table(tmp_path).file_uris()) == 2


def test_who_dies_while_it_joins_leaves_what_goes_with_vacuum(
    sink: OpenSink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_rows(sink, 1, [[{"id": 1, "epoch": 1}]] * 2, {"id": "long", "epoch": "long"}, batch=batch_of(key(0)))
    sink.publish(expect(key(0)), 1)

    def dies(*_: object, **__: object) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as dying:
        dying.setattr(DeltaLog, "rearrange", dies)
        with pytest.raises(KeyboardInterrupt):
            sink.compact(wanted())
    assert len([path for path in keys(tmp_path, "microbatch") if "joined" in path]) == 1
    assert (sink.stages(CHECKPOINT), sink.drop_stage(batch_of(key(0)), 1)) == ([], False)
    assert sink.compact(wanted()).files_after == 1
    assert rows(tmp_path) == {(0, 1): 2}
    table(tmp_path).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False, full=True)
    assert len([path for path in keys(tmp_path, "microbatch") if path.endswith(".parquet")]) == 1
    replace(sink, 0)
    assert rows(tmp_path) == {(0, 2): 2}


def test_a_file_of_an_attempt_that_is_back_is_known_by_its_path_and_one_of_nobody_is_left(
    sink: OpenSink, tmp_path: Path
) -> None:
    for number in range(3):
        publish(sink, number)
    before = table(tmp_path).version()
    replace(sink, 1)
    table(tmp_path).restore(before)
    asked = dict[BatchKey, int]()
    sink.compact(wanted(dry_run=True, left_alone=lambda found: asked.update({found.key: found.epoch})))
    assert asked == {key(number): 1 for number in range(3)}
    (gone,) = [path for path in keys(tmp_path, "_microbatch/batches") if "/00000000000000000002." in path]
    name = f"{str(tmp_path).strip('/')}/orders/{gone}"
    object_store.client().delete_object(Bucket=object_store.BUCKET, Key=name)
    done = sink.compact(wanted())
    assert done.batches == {key(0), key(1)}
    ((why, left),) = done.left.items()
    assert (left, "its manifest is gone" in why) == ({key(2)}, True)
    assert rows(tmp_path) == {(number, 1): 3 for number in range(3)}


def test_files_of_partitions_whose_names_have_special_signs_are_joined(tmp_path: Path) -> None:
    sink = opened(tmp_path, partition_by=["country"])
    given = [{"id": id, "country": value} for id, value in enumerate(["DE", "50%/ü=?", None])]
    for number in range(2):
        batch = batch_of(key(number))
        write_rows(sink, 1, [given], {"id": "long", "country": "string"}, batch=batch, partition_by="country")
        sink.publish(expect(key(number)), 1)
    assert sink.compact(wanted()).files_after == 3
    assert sink.withdraw(expect(key(1)), 1)
    found = table(tmp_path).to_pyarrow_table(columns=["id", "country"]).to_pylist()
    assert sorted(found, key=lambda row: int(row["id"])) == given
