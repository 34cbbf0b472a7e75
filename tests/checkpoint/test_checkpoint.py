"""Whose checkpoint it is, where its parts lie, and the logs' own rules."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from airflow_provider_microbatch.checkpoint.entries import CommitEntry, OffsetEntry
from airflow_provider_microbatch.exceptions import (
    BrokenLogError,
    CheckpointError,
    CorruptEntryError,
    DefinitionError,
    ForeignCheckpointError,
    SourceCountError,
)
from tests.checkpoint.world import claimed, entry, fill, opened


def test_looking_at_nothing_writes_nothing(tmp_path: Path) -> None:
    checkpoint = opened(tmp_path / "c")
    assert checkpoint.identity() is None
    assert checkpoint.lane("live").tail().offset_id is None
    assert checkpoint.lanes() == ["live"]
    assert checkpoint.offset_log.latest() is None
    assert list(tmp_path.iterdir()) == []


def test_the_first_claim_decides(tmp_path: Path) -> None:
    first = opened(tmp_path).claim(pipeline="orders", sources=("a", "b"), format="v2")
    assert json.loads((tmp_path / "metadata").read_text()) == {"id": first.query_id}
    assert opened(tmp_path).claim(pipeline="orders", sources=("b", "c"), format="v1") == first
    with pytest.raises(ForeignCheckpointError, match=r"belongs to pipeline 'orders', not to 'other'"):
        opened(tmp_path).claim(pipeline="other", sources=("a", "b"), format="v2")


def test_a_claim_that_died_half_way_is_completed(tmp_path: Path) -> None:
    (tmp_path / "metadata").write_text('{"id":"5a"}')
    found = opened(tmp_path).identity()
    assert found is not None
    assert found.pipeline is None
    assert opened(tmp_path).claim(pipeline="orders", sources=("a",), format="v1").query_id == "5a"


def test_a_v1_checkpoint_keeps_its_sources_and_their_order(tmp_path: Path) -> None:
    claimed(tmp_path, format="v1", sources=("a", "b"))
    again = opened(tmp_path)
    assert again.claim(pipeline="orders", sources=("b", "a"), format="v1").sources == ("a", "b")
    assert again.source_log("b").location == f"{tmp_path}/sources/1"
    ends = {"b": "2", "a": "1"}
    again.offset_log.add(0, OffsetEntry(ends=ends, batch_timestamp_ms=0))
    assert (tmp_path / "offsets" / "0").read_text().endswith("\n1\n2")
    read = opened(tmp_path, sources=("b", "a")).offset_log.get(0)
    assert read is not None
    assert read.ends == ends
    for sources in (("a",), ("a", "c"), ("a", "b", "c")):
        with pytest.raises(SourceCountError, match=r"There are \[2\] sources in the checkpoint"):
            opened(tmp_path).claim(pipeline="orders", sources=sources, format="v1")
    with pytest.raises(CheckpointError, match="no source 'c'"):
        again.source_log("c")


def test_where_sources_keep_their_things_in_v2(tmp_path: Path) -> None:
    checkpoint = claimed(tmp_path)
    assert checkpoint.source_log("orders").location == f"{tmp_path}/sources/orders"
    assert checkpoint.source_state("orders").location == f"{tmp_path}/microbatch/sources/orders"


@pytest.mark.parametrize("name", ["a/b", "..", "", ".x", "a b"])
def test_names_that_are_no_folder_are_refused(tmp_path: Path, name: str) -> None:
    checkpoint = opened(tmp_path / "c")
    for call in (checkpoint.lane, checkpoint.source_log, checkpoint.source_state):
        with pytest.raises(DefinitionError):
            call(name)
    with pytest.raises(DefinitionError, match="source name"):
        checkpoint.claim(pipeline="orders", sources=(name,), format="v2")
    with pytest.raises(DefinitionError, match="pipeline name"):
        checkpoint.claim(pipeline=name, sources=("a",), format="v2")
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_planned_before_the_claim(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="claim it before"):
        opened(tmp_path).offset_log.add(0, entry(0))


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"id":1}'])
def test_spoilt_metadata_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "metadata").write_text(text)
    with pytest.raises(CorruptEntryError, match=f"{tmp_path}/metadata"):
        opened(tmp_path).identity()


def test_logs_without_metadata_are_refused(tmp_path: Path) -> None:
    fill(claimed(tmp_path), planned=1, committed=1)
    (tmp_path / "metadata").unlink()
    with pytest.raises(BrokenLogError, match=r"no file 'metadata'.*write it anew"):
        opened(tmp_path).identity()
    with pytest.raises(BrokenLogError, match="no file 'metadata'"):
        opened(tmp_path).lane("live").tail()


def test_lanes_are_small_checkpoints_of_their_own(tmp_path: Path) -> None:
    checkpoint = claimed(tmp_path)
    fill(checkpoint, planned=2, committed=2)
    lane = "interval-20260101T000000Z-20260102T000000Z"
    fill(checkpoint, planned=1, committed=0, lane=lane)
    assert (tmp_path / "lanes" / lane / "offsets" / "0").exists()
    assert checkpoint.lanes() == ["live", lane]
    assert checkpoint.lane(lane).tail().commit_id is None
    assert checkpoint.lane("live").tail().offset_id == 1


def test_an_entry_is_added_once(tmp_path: Path) -> None:
    log = claimed(tmp_path).offset_log
    assert log.add(0, entry(0)) is True
    assert log.add(0, entry(5)) is False
    assert log.get(0) is not None
    assert log.get(0).ends == entry(0).ends  # type: ignore[union-attr]
    assert log.get(1) is None


def test_latest_and_range_go_by_number_not_by_text(tmp_path: Path) -> None:
    log = claimed(tmp_path).commit_log
    for number in (8, 9, 10, 11):
        log.add(number, CommitEntry(next_watermark_ms=number))
    assert log.ids() == [8, 9, 10, 11]
    assert log.latest_id() == 11
    assert log.latest() == (11, CommitEntry(next_watermark_ms=11))
    assert [number for number, _ in log.range(9, 10)] == [9, 10]
    assert [number for number, _ in log.range(None, 9)] == [8, 9]
    assert [number for number, _ in log.range(10)] == [10, 11]


def test_files_that_are_no_entries_are_overlooked(tmp_path: Path) -> None:
    checkpoint = claimed(tmp_path)
    fill(checkpoint, planned=1, committed=1)
    for name in (".0.crc", ".1.tmp", "01", "1.compact", "readme", "²", "-1"):
        (tmp_path / "offsets" / name).write_text("")
    assert checkpoint.offset_log.ids() == [0]
    assert checkpoint.offset_log.latest_id() == 0


def test_purge_takes_what_is_below(tmp_path: Path) -> None:
    log = claimed(tmp_path).offset_log
    for number in range(5):
        log.add(number, entry(number))
    assert log.purge(3) == 3
    assert log.ids() == [3, 4]
    assert log.purge(3) == 0


BROKEN = {
    "lag of two": (4, 2, (), r"newest entry of .*/offsets is 3, of .*/commits 1.*batch 2 runs again"),
    "no commits": (3, 0, (), r"offsets is 2, of .*/commits none.*`microbatch repair .*restore .*/commits"),
    "commits ahead": (2, 3, (), r"offsets is 1, of .*/commits 2.*batch 2 is committed but not planned"),
    "no offsets": (0, 2, (), r"offsets is none, of .*/commits 1.*offsets are gone"),
    "gap": (
        3,
        2,
        ("offsets/1",),
        r"Previous batch 1 not found in .*/offsets.*`microbatch repair \S+`.*restore .*/offsets/1",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_tail_names_the_ids_and_the_repair(tmp_path: Path, case: str) -> None:
    planned, committed, removed, message = BROKEN[case]
    checkpoint = claimed(tmp_path)
    fill(checkpoint, planned=planned, committed=committed)
    for path in removed:
        (tmp_path / path).unlink()
    with pytest.raises(BrokenLogError, match=message):
        checkpoint.lane("live").tail()


@pytest.mark.parametrize("path", ["offsets/2", "offsets/1", "commits/1"])
@pytest.mark.parametrize("spoil", [lambda data: b"", lambda data: data[:40], lambda data: b"v7" + data[2:]])
def test_an_unreadable_tail_is_found(tmp_path: Path, path: str, spoil: object) -> None:
    checkpoint = claimed(tmp_path)
    fill(checkpoint, planned=3, committed=2)
    file = tmp_path / path
    data = b"v1\n{" if path.startswith("commits") else file.read_bytes()
    file.write_bytes(spoil(data))  # type: ignore[operator]
    with pytest.raises(CorruptEntryError, match=f"{tmp_path}/{path}"):
        checkpoint.lane("live").tail()


@pytest.mark.parametrize(("planned", "committed"), [(0, 0), (1, 0), (1, 1), (5, 4), (5, 5)])
def test_sound_tails(tmp_path: Path, planned: int, committed: int) -> None:
    checkpoint = claimed(tmp_path)
    fill(checkpoint, planned=planned, committed=committed)
    tail = checkpoint.lane("live").tail()
    assert tail.offset_id == (planned - 1 if planned else None)
    assert tail.commit_id == (committed - 1 if committed else None)
