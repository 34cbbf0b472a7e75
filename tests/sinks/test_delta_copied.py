"""A Delta table that somebody has made by CREATE TABLE AS SELECT of one of ours: it has rows with our columns, and its
log has no record of their batches."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import Field, write_deltalake

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.sinks import OpenSink
from airflow_provider_microbatch.sinks.delta import log as delta_log
from airflow_provider_microbatch.sinks.delta import unrecorded
from airflow_provider_microbatch.sinks.delta.log import DeltaLog
from airflow_provider_microbatch.sinks.placed.data_files import FolderFiles
from airflow_provider_microbatch.sinks.placed.records import FolderRecords
from tests.sinks.delta_stages import write_delta_stage
from tests.sinks.delta_world import opened, publish, rows, table
from tests.sinks.delta_world import root as root
from tests.sinks.delta_world import sink as sink
from tests.sinks.stages import batch_of, expect
from tests.support.clock import clock
from tests.support.interrupted import interrupted

JANUARY = "interval-20260101T000000Z-20260201T000000Z"
FEBRUARY = "interval-20260201T000000Z-20260301T000000Z"


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
    """Each later batch would come beside its rows as the first attempt at it: only the table's first looks for them."""
    at, before = opened(copy), rows(copy)
    told = r"9 rows of batches live/5, live/6, live/7, and its log has no record of them: .* Nothing was published"
    with pytest.raises(SinkError, match=told) as refused:
        publish(at, number, epoch=epoch)
    assert rows(copy) == before
    condition = "lane = 'live' AND batch_id BETWEEN 5 AND 7"
    assert f"(DELETE FROM delta.`{copy}` WHERE {condition})" in str(refused.value)
    table(copy).delete(condition)
    for one in (number, 6):
        publish(at, one, epoch=epoch)
    assert rows(copy) == {(number, epoch): 3, (6, epoch): 3}


def untold(root: Path, batches: Mapping[str, Sequence[int]]) -> None:
    """Rows of these batches, in a file for each lane that tells of no lane: so is each file of a wide table."""
    for lane, ids in batches.items():
        made = [{"id": row, "epoch": 1, "lane": lane, "batch_id": id} for id in ids for row in range(3)]
        write_deltalake(
            str(root),
            pa.Table.from_pylist(made),
            mode="append",
            configuration={"delta.dataSkippingNumIndexedCols": "2"},
        )


def put(sink: OpenSink, key: BatchKey, epoch: int = 1, *, past: Mapping[str, int] | None = None) -> None:
    """:param past: the newest batches that the checkpoint has committed."""
    write_delta_stage(sink, epoch, batch=batch_of(key))
    asked = replace(expect(key), is_past=lambda one: one.id <= (past or {}).get(one.lane, -1))
    (sink.replace if asked.is_past(key) else sink.publish)(asked, epoch)


def test_the_rows_of_all_its_lanes_are_named_before_the_first_batch_of_any(root: Path) -> None:
    """Each further lane's first batch came in beside its rows: a file that tells of no lane was not opened any more."""
    untold(root, {JANUARY: [0], FEBRUARY: [0], "live": [5, 6]})
    at, before, past = opened(root), rows(root), {"live": 4}
    with pytest.raises(SinkError, match=r"9 rows of batches .*, and its log has no record of them") as refused:
        put(at, BatchKey(JANUARY, 0), past=past)
    assert rows(root) == before
    (condition,) = re.findall(r"DELETE FROM delta\.`[^`]*` WHERE (.*)\), then", str(refused.value))
    assert condition == (f"(lane = '{JANUARY}' AND batch_id = 0) OR (lane = 'live' AND batch_id BETWEEN 5 AND 6)")
    table(root).delete(condition)
    for key in (BatchKey(JANUARY, 0), BatchKey("live", 5)):
        put(opened(root), key, past=past)
    assert rows(root) == {(0, 1): 6, (5, 1): 3}


def test_another_pipelines_rows_are_in_nobodys_way(root: Path) -> None:
    """Whoever followed what was said of them took out what that pipeline has made."""
    untold(root, {JANUARY: [0], "live": [0, 1, 2]})
    put(opened(root), BatchKey("live", 3), past={"live": 2})
    assert rows(root) == {(0, 1): 6, (1, 1): 3, (2, 1): 3, (3, 1): 3}


def test_a_checkpoint_that_goes_on_in_a_copy_is_in_the_way_of_no_lane(root: Path) -> None:
    """It makes none of these batches for the first time any more."""
    untold(root, {JANUARY: [0], "live": [5, 6]})
    past = {JANUARY: 0, "live": 6}
    put(opened(root), BatchKey(FEBRUARY, 0), past=past)
    put(opened(root), BatchKey("live", 7), past=past)
    assert rows(root) == {(0, 1): 6, (5, 1): 3, (6, 1): 3, (7, 1): 3}
    with pytest.raises(SinkError, match=r"3 rows of batch live/6, .* batch_id = 6\)"):
        put(opened(root), BatchKey("live", 6), 2, past=past)


def test_those_that_a_rewind_has_it_make_again_are(root: Path) -> None:
    untold(root, {"live": [4, 5, 6]})
    with pytest.raises(SinkError, match=r"6 rows of batches live/5, live/6, .* batch_id BETWEEN 5 AND 6\)"):
        put(opened(root), BatchKey("live", 5), 2, past={"live": 4})


@pytest.mark.parametrize("publish_again", [False, True])
def test_a_clear_asks_for_rows_of_its_own_batch_alone(copy: Path, publish_again: bool) -> None:
    """Where the copy was put in place of the table, the later batches are replayed after it; and so is one made that
    was set aside, which was never in."""
    at, asked = opened(copy), replace(expect(BatchKey("live", 5)), is_past=lambda key: key.id <= 7)
    table(copy).delete("batch_id = 5")
    write_delta_stage(at, 2, batch=batch_of(BatchKey("live", 5)))
    (at.publish if publish_again else at.replace)(asked, 2)
    assert rows(copy) == {(5, 2): 3, (6, 1): 3, (7, 1): 3}


def test_rows_that_are_put_in_by_hand_are_found_in_a_file_that_tells_of_no_lane(sink: OpenSink, root: Path) -> None:
    for number in (5, 6):
        publish(sink, number)
    table(root).alter.set_table_properties({"delta.dataSkippingNumIndexedCols": "2"})
    untold(root, {"live": [7]})
    is_refused(opened(root), root, 7)


@pytest.mark.parametrize("number", [0, 1])
def test_files_are_opened_once_and_however_long_that_takes_before_the_clock_runs(
    root: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Of a table that has got our columns, and of one of which a batch is made again. Others committed meanwhile, so
    each try was outrun, and the next process began at the first file."""
    for one in range(3):
        write_deltalake(str(root), pa.table({"id": [one]}), mode="append")
    table(root).alter.add_columns([Field("lane", "string"), Field("batch_id", "long")])
    if number:
        publish(opened(root, schema_policy="add_columns"), 0)
    old = {path.name for path in root.glob("*.parquet")}
    opened_files, source = list[str](), FolderFiles.source
    pass_by = clock(monkeypatch)

    def slow(self: FolderFiles, path: str) -> Any:
        opened_files.append(path)
        if path in old:
            pass_by(delta_log.PATIENCE_SECONDS)
            write_deltalake(str(root), pa.table({"id": [9]}), mode="append", schema_mode="merge")
        return source(self, path)

    monkeypatch.setattr(FolderFiles, "source", slow)
    publish(opened(root, schema_policy="add_columns"), number, epoch=2)
    theirs = [path for path in opened_files if not path.startswith("microbatch/")]
    assert len(theirs) == len(set(theirs)) >= len(old)
    assert rows(root)[number, 2] == 3


def of_live(*ids: int) -> pa.Table:
    made = [{"id": row, "epoch": 1, "lane": "live", "batch_id": id} for id in ids for row in range(3)]
    return pa.Table.from_pylist(made)


def test_before_a_first_batch_a_file_without_rows_that_are_asked_for_is_not_opened(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint that went on in a copy opened each file of it, of which the statistics told that all is past."""
    for id in range(5):
        write_deltalake(str(root), of_live(id), mode="append")
    found = files_opened(monkeypatch)
    put(opened(root), BatchKey("live", 5), past={"live": 4})
    assert [path for path in found if not path.startswith("microbatch/")] == []


def test_one_is_that_has_some_beside_those_that_are_past(root: Path) -> None:
    write_deltalake(str(root), of_live(4, 5, 6, 7))
    with pytest.raises(SinkError, match=r"6 rows of batches live/6, live/7, "):
        put(opened(root), BatchKey(JANUARY, 0), past={"live": 5})


def test_no_file_of_a_table_without_our_columns_is_opened(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_deltalake(str(root), pa.table({"id": [1]}))
    found = files_opened(monkeypatch)
    publish(opened(root, schema_policy="add_columns"), 0)
    assert [path for path in found if not path.startswith("microbatch/")] == []


def files_opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found, source = list[str](), FolderFiles.source
    monkeypatch.setattr(FolderFiles, "source", lambda self, path: (found.append(path), source(self, path))[1])
    return found


def test_for_a_batch_on_record_no_file_is_opened(sink: OpenSink, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rewind read all that it was about to take out."""
    for number in (5, 6, 7):
        publish(sink, number)
    assert sink.withdraw(expect(BatchKey("live", 5)), 1)
    write_deltalake(str(root), table(root).to_pyarrow_table(), mode="overwrite")
    found = files_opened(monkeypatch)
    for number in (5, 6, 7):
        assert sink.unrecorded(expect(BatchKey("live", number)), []) is None
    assert found == []


def test_a_file_is_opened_once_for_all_batches_that_are_asked_for(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at, opened_files = opened(copy), files_opened(monkeypatch)
    for number in (5, 6, 7):
        assert "3 rows" in str(at.unrecorded(expect(BatchKey("live", number)), []))
    assert len(opened_files) == 1


def test_rows_that_are_put_in_later_are_found_too(sink: OpenSink, root: Path) -> None:
    for number in (5, 6):
        publish(sink, number)
    mine = table(root).to_pyarrow_table().to_pylist()
    write_deltalake(str(root), pa.Table.from_pylist([{**row, "batch_id": 7} for row in mine[:3]]), mode="append")
    is_refused(sink, root, 7)


def test_those_of_later_batches_are_found_where_all_batches_were_taken_out(sink: OpenSink, root: Path) -> None:
    publish(sink, 6)
    assert sink.withdraw(expect(BatchKey("live", 6)), 1)
    untold(root, {"live": [8]})
    with pytest.raises(SinkError, match="3 rows of batch live/8, and its log has no record of it"):
        publish(sink, 7)
    assert rows(root) == {(8, 1): 3}


def test_rows_of_nobody_and_of_other_batches_are_in_nobodys_way(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those between them, in a file of several; a file of nobody's rows is not even opened."""
    table(copy).delete("batch_id = 6")
    publish(opened(copy), 8)
    nobodys = {"id": [1], "epoch": [9], "lane": pa.array([None], pa.string()), "batch_id": pa.array([None], pa.int64())}
    write_deltalake(str(copy), pa.table(nobodys), mode="append")
    opened_files = files_opened(monkeypatch)
    assert opened(copy).unrecorded(expect(BatchKey("live", 6)), []) is None
    publish(opened(copy), 6, epoch=2)
    assert rows(copy) == Counter({(5, 1): 3, (6, 2): 3, (7, 1): 3, (8, 1): 3, (None, 9): 1})
    assert len({path for path in opened_files if not path.startswith("microbatch/")}) == 1


def test_what_is_made_for_the_first_time_in_a_table_of_ours_is_not_looked_for(
    sink: OpenSink, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each publish would go through all files, and open those of others that have no statistics."""
    publish(sink, 6)
    write_deltalake(str(root), table(root).to_pyarrow_table(), mode="append")
    monkeypatch.setattr(unrecorded, "files_with", None)
    publish(sink, 7)
    assert rows(root) == {(6, 1): 6, (7, 1): 3}


def test_whether_a_batch_is_in_is_asked_once_however_often_others_commit(
    sink: OpenSink, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where none of a lane is in, the lanes are listed for it, and others were first again."""
    publish(sink, 6)
    one = table(root).to_pyarrow_table().slice(0, 1)
    key, listed, lanes = BatchKey(JANUARY, 0), list[object](), FolderRecords.lanes
    write_delta_stage(sink, 1, batch=batch_of(key))
    monkeypatch.setattr(FolderRecords, "lanes", lambda self: (listed.append(self), lanes(self))[1])
    monkeypatch.setattr(sink, "_check_kept", lambda snapshot: None)  # it lists them, too
    with interrupted(monkeypatch, DeltaLog, "commit", lambda: write_deltalake(str(root), one, mode="append")):
        sink.publish(expect(key), 1)
    assert len(listed) == 1
    assert rows(root) == {(6, 1): 4, (0, 1): 3}


def test_a_stray_folder_beside_those_of_lanes_is_none_of_them(sink: OpenSink, root: Path) -> None:
    publish(sink, 6)
    batches = root / "_microbatch" / "batches"
    shutil.copytree(batches / "lane=live", batches / "lane=a copy of live")
    key = BatchKey("dead-letters", 0)
    write_delta_stage(sink, 1, batch=batch_of(key))
    sink.publish(expect(key), 1)
