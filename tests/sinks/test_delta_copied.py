"""A Delta table that somebody has made by CREATE TABLE AS SELECT of one of ours: it has rows with our columns, and its
log has no record of their batches."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.sinks import OpenSink
from airflow_provider_microbatch.sinks.delta.present import Present
from airflow_provider_microbatch.sinks.placed.data_files import FolderFiles
from tests.sinks.delta_world import opened, publish, rows, table
from tests.sinks.delta_world import root as root
from tests.sinks.delta_world import sink as sink
from tests.sinks.stages import expect


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


def test_nor_is_the_first_one_of_a_table_by_whichever_attempt(copy: Path) -> None:
    """As where the checkpoint is a new one, too."""
    is_refused(opened(copy), copy, 5, epoch=1)


def test_rows_that_are_put_in_later_are_found_too(sink: OpenSink, root: Path) -> None:
    for number in (5, 6):
        publish(sink, number)
    mine = table(root).to_pyarrow_table().to_pylist()
    write_deltalake(str(root), pa.Table.from_pylist([{**row, "batch_id": 7} for row in mine[:3]]), mode="append")
    is_refused(sink, root, 7)


def test_rows_of_nobody_and_of_other_batches_are_in_nobodys_way(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those between them, in a file of several; a file of nobody's rows is not even opened."""
    table(copy).delete("batch_id = 6")
    nobodys = {"id": [1], "epoch": [9], "lane": pa.array([None], pa.string()), "batch_id": pa.array([None], pa.int64())}
    write_deltalake(str(copy), pa.table(nobodys), mode="append")
    opened_files, source = set[str](), FolderFiles.source
    monkeypatch.setattr(FolderFiles, "source", lambda self, path: (opened_files.add(path), source(self, path))[1])
    publish(opened(copy), 6, epoch=2)
    assert rows(copy) == Counter({(5, 1): 3, (6, 2): 3, (7, 1): 3, (None, 9): 1})
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
