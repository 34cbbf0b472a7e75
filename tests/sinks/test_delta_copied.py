"""A Delta table that somebody has made by CREATE TABLE AS SELECT of one of ours: it has rows with our columns, and its
log has no record of their batches."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.sinks import OpenSink
from airflow_provider_microbatch.sinks.delta.log import DeltaLog, Snapshot
from airflow_provider_microbatch.sinks.delta.present import Present
from airflow_provider_microbatch.sinks.placed.data_files import FolderFiles
from tests.sinks.delta_stages import write_delta_stage
from tests.sinks.delta_world import opened, publish, rows, table
from tests.sinks.delta_world import root as root
from tests.sinks.delta_world import sink as sink
from tests.sinks.stages import batch_of, expect


@pytest.fixture
def copy(sink: OpenSink, root: Path, tmp_path: Path) -> Path:
    """A table with the rows of batches 5 to 7 in one file, and of no record."""
    for number in (5, 6, 7):
        publish(sink, number)
    to = tmp_path / "copy"
    write_deltalake(str(to), table(root).to_pyarrow_table())
    return to


def is_refused(sink: OpenSink, root: Path, number: int, *, epoch: int = 2) -> None:
    before, version = rows(root), table(root).version()
    told = rf"has 3 rows of batch live/{number}, and its log has no record of it: .* Nothing was published"
    with pytest.raises(SinkError, match=told):
        publish(sink, number, epoch=epoch)
    assert (rows(root), table(root).version()) == (before, version)


def test_a_batch_that_is_made_again_is_not_put_beside_rows_of_it_that_were_copied(copy: Path) -> None:
    at = opened(copy)
    publish(at, 8)
    is_refused(at, copy, 6)
    left = at.unrecorded(expect(BatchKey("live", 6)), [])
    assert left is not None
    assert f"DELETE FROM delta.`{copy}` WHERE lane = 'live' AND batch_id = 6" in left
    table(copy).delete("lane = 'live' AND batch_id = 6")
    assert at.unrecorded(expect(BatchKey("live", 6)), []) is None
    publish(at, 6, epoch=3)
    assert rows(copy) == {(5, 1): 3, (6, 3): 3, (7, 1): 3, (8, 1): 3}
    is_refused(at, copy, 7)


@pytest.mark.parametrize("epoch", [1, 2])
@pytest.mark.parametrize("number", [0, 5])
def test_nor_does_a_checkpoint_begin_anew_below_them(copy: Path, number: int, epoch: int) -> None:
    """Each later batch would come beside its rows as the first attempt at it: only the first batch looks for them."""
    at, before = opened(copy), rows(copy)
    told = rf"9 rows of batch live/{number} and later ones of its lane, and its log has no record of them: .* published"
    with pytest.raises(SinkError, match=told) as refused:
        publish(at, number, epoch=epoch)
    assert rows(copy) == before
    condition = f"lane = 'live' AND batch_id >= {number}"
    assert f"(DELETE FROM delta.`{copy}` WHERE {condition})" in str(refused.value)
    table(copy).delete(condition)
    for one in (number, 6):
        publish(at, one, epoch=epoch)
    assert rows(copy) == {(number, epoch): 3, (6, epoch): 3}


def test_nor_does_another_lane_whose_first_batch_comes_later(sink: OpenSink, root: Path) -> None:
    lane = "interval-20260101T000000Z-20260102T000000Z"
    publish(sink, 0)
    mine = table(root).to_pyarrow_table().to_pylist()
    write_deltalake(
        str(root), pa.Table.from_pylist([{**row, "lane": lane, "batch_id": 1} for row in mine]), mode="append"
    )
    key = BatchKey(lane, 0)
    write_delta_stage(sink, 1, batch=batch_of(key))
    with pytest.raises(SinkError, match=rf"3 rows of batch {lane}/0 and later ones of its lane"):
        sink.publish(expect(key), 1)


def test_a_replay_asks_for_rows_of_its_own_batch_alone(copy: Path) -> None:
    """Where the copy was put in place of the table, the later batches are replayed after it."""
    at = opened(copy)
    table(copy).delete("batch_id = 5")
    write_delta_stage(at, 2, batch=batch_of(BatchKey("live", 5)))
    at.replace(expect(BatchKey("live", 5)), 2)
    assert rows(copy) == {(5, 2): 3, (6, 1): 3, (7, 1): 3}


def test_files_of_others_are_opened_once_and_before_the_first_batch(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From before they had our columns: their statistics tell nothing. Opened between a snapshot and its commit at
    each try, they had every try outrun by other writers, for good."""
    for number in range(3):
        write_deltalake(str(root), pa.table({"id": [number]}), mode="append")
    at, opened_files, source = opened(root, schema_policy="add_columns"), list[str](), FolderFiles.source
    monkeypatch.setattr(FolderFiles, "source", lambda self, path: (opened_files.append(path), source(self, path))[1])
    commit, tries = DeltaLog.commit, list[int]()

    def outrun(self: DeltaLog, before: Snapshot, *args: Any, **kwargs: Any) -> bool:
        tries.append(before.version)
        if len(tries) < 4:
            write_deltalake(str(root), pa.table({"id": [9]}), mode="append", schema_mode="merge")
            return False
        return commit(self, before, *args, **kwargs)

    monkeypatch.setattr(DeltaLog, "commit", outrun)
    publish(at, 0)
    theirs = [path for path in opened_files if not path.startswith("microbatch/")]
    assert len(theirs) == len(set(theirs)) >= 3
    opened_files.clear()
    publish(opened(root, schema_policy="add_columns"), 1, epoch=2)
    assert [path for path in opened_files if not path.startswith("microbatch/")] == []


def test_a_file_is_opened_once_for_all_batches_that_are_asked_for(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at, opened_files, source = opened(copy), list[str](), FolderFiles.source
    monkeypatch.setattr(FolderFiles, "source", lambda self, path: (opened_files.append(path), source(self, path))[1])
    for number in (5, 6, 7):
        assert "3 rows" in str(at.unrecorded(expect(BatchKey("live", number)), []))
    assert len(opened_files) == 1


def test_rows_that_are_put_in_later_are_found_too(sink: OpenSink, root: Path) -> None:
    for number in (5, 6):
        publish(sink, number)
    mine = table(root).to_pyarrow_table().to_pylist()
    write_deltalake(str(root), pa.Table.from_pylist([{**row, "batch_id": 7} for row in mine[:3]]), mode="append")
    is_refused(sink, root, 7)


def test_rows_of_nobody_and_of_other_batches_are_in_nobodys_way(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those between them, in a file of several; a file of nobody's rows is not even opened."""
    table(copy).delete("batch_id = 6")
    publish(opened(copy), 8)
    nobodys = {"id": [1], "epoch": [9], "lane": pa.array([None], pa.string()), "batch_id": pa.array([None], pa.int64())}
    write_deltalake(str(copy), pa.table(nobodys), mode="append")
    opened_files, source = set[str](), FolderFiles.source
    monkeypatch.setattr(FolderFiles, "source", lambda self, path: (opened_files.add(path), source(self, path))[1])
    assert opened(copy).unrecorded(expect(BatchKey("live", 6)), []) is None
    publish(opened(copy), 6, epoch=2)
    assert rows(copy) == Counter({(5, 1): 3, (6, 2): 3, (7, 1): 3, (8, 1): 3, (None, 9): 1})
    assert len([path for path in opened_files if not path.startswith("microbatch/")]) == 1


def test_what_is_made_for_the_first_time_in_a_table_of_ours_is_not_looked_for(
    sink: OpenSink, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each publish would go through all files, and open those of others that have no statistics."""
    publish(sink, 6)
    write_deltalake(str(root), table(root).to_pyarrow_table(), mode="append")
    monkeypatch.setattr(Present, "may_have", None)
    publish(sink, 7)
    assert rows(root) == {(6, 1): 6, (7, 1): 3}


def test_a_stray_folder_beside_those_of_lanes_is_none_of_them(sink: OpenSink, root: Path) -> None:
    publish(sink, 6)
    batches = root / "_microbatch" / "batches"
    shutil.copytree(batches / "lane=live", batches / "lane=a copy of live")
    key = BatchKey("dead-letters", 0)
    write_delta_stage(sink, 1, batch=batch_of(key))
    sink.publish(expect(key), 1)
