"""Entries in segments read as if they were files of their own, at every moment of a move."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from airflow_provider_microbatch.checkpoint import log as log_module
from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.entries import CommitEntry, OffsetEntry
from airflow_provider_microbatch.checkpoint.handover import hand_over
from airflow_provider_microbatch.checkpoint.log import MetadataLog
from airflow_provider_microbatch.checkpoint.verify import verify_all
from airflow_provider_microbatch.exceptions import CorruptEntryError
from airflow_provider_microbatch.execution import retention
from airflow_provider_microbatch.execution.retention import apply_retention, compact_logs
from airflow_provider_microbatch.stores.posix import PosixStore
from tests.checkpoint.world import claimed, entry, fill, opened

SIZE = 10


class Died(BaseException):
    """The process is gone."""


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "SEGMENT_SIZE", SIZE)
    monkeypatch.setattr(retention, "FILES_KEPT", 5)


@pytest.fixture
def long(tmp_path: Path) -> Checkpoint:
    """36 batches, the last one planned only."""
    made = claimed(tmp_path)
    fill(made, planned=36, committed=35)
    return made


def files(root: Path, log: str = "offsets") -> list[int]:
    return sorted(int(path.name) for path in (root / log).iterdir() if path.name.isdecimal())


def segments(root: Path, log: str = "offsets") -> list[str]:
    folder = root / "microbatch" / "segments" / "live" / log
    return sorted(path.name for path in folder.glob("[0-9]*")) if folder.exists() else []


def ends(log: MetadataLog[OffsetEntry], number: int) -> object:
    got = log.get(number)
    return got and got.ends


def all_is_read(root: Path, *, planned: int = 36, first: int = 0) -> None:
    """A fresh process reads the logs as they were made."""
    made = opened(root)
    lane = made.lane("live")
    assert lane.offset_log.ids() == list(range(first, planned))
    assert lane.commit_log.ids() == list(range(first, planned - 1))
    assert [got.ends for _, got in lane.offset_log.range()] == [entry(number).ends for number in range(first, planned)]
    assert [got for _, got in lane.commit_log.range(1, 3)] == [CommitEntry(epoch=1)] * len(range(max(first, 1), 4))
    assert lane.offset_log.latest_id() == planned - 1
    assert lane.tail().commit_id == planned - 2
    assert [finding for finding in verify_all(made) if finding.kind != "attempt"] == []


def test_whole_segments_of_old_entries_leave_the_folder_and_read_as_before(long: Checkpoint, tmp_path: Path) -> None:
    said = compact_logs(long, dry_run=True)
    assert files(tmp_path) == list(range(36))
    assert compact_logs(long) == said == [f"30 entries of {tmp_path}/{log}" for log in ("offsets", "commits")]
    assert files(tmp_path) == list(range(30, 36))
    assert files(tmp_path, "commits") == list(range(30, 35))
    assert segments(tmp_path) == ["0-9", "10-19", "20-29"]
    all_is_read(tmp_path)
    assert compact_logs(long) == []


def test_a_process_that_reads_while_entries_move_misses_none(long: Checkpoint, tmp_path: Path) -> None:
    reader = opened(tmp_path).lane("live").offset_log
    assert ends(reader, 3) == entry(3).ends
    ids = reader.ids()
    compact_logs(long)
    assert [ends(reader, number) for number in ids] == [entry(number).ends for number in ids]
    assert reader.ids() == ids


def dying(monkeypatch: pytest.MonkeyPatch, writes: int) -> None:
    """Writes and removals of the store stop after ``writes`` of them; a removal of many is many."""
    left = [writes]

    def counted(call: Callable[..., object]) -> Callable[..., object]:
        def wrapped(*arguments: object) -> object:
            if not left[0]:
                raise Died
            left[0] -= 1
            return call(*arguments)

        return wrapped

    def delete_many(store: PosixStore, paths: Iterable[str]) -> None:
        for path in paths:
            store.delete(path)

    monkeypatch.setattr(PosixStore, "put_if_absent", counted(PosixStore.put_if_absent))
    monkeypatch.setattr(PosixStore, "delete", counted(PosixStore.delete))
    monkeypatch.setattr(PosixStore, "delete_many", delete_many)


@pytest.mark.parametrize("move", ["compact", "expand"])
def test_killed_anywhere_all_is_read_and_the_next_one_completes_it(
    move: str, long: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run() -> None:
        made = opened(tmp_path)
        if move == "compact":
            compact_logs(made)
        else:
            made.offset_log.expand()
            made.commit_log.expand()

    if move == "expand":
        compact_logs(long)
    done = False
    for writes in range(0, 80, 7):
        with monkeypatch.context() as patch:
            dying(patch, writes)
            try:
                run()
                done = True
            except Died:
                pass
        all_is_read(tmp_path)
    run()
    assert done
    all_is_read(tmp_path)
    assert segments(tmp_path) == (["0-9", "10-19", "20-29"] if move == "compact" else [])
    assert files(tmp_path) == list(range(30 if move == "compact" else 0, 36))


def test_a_writer_that_slept_through_a_compaction_does_not_get_an_old_number(long: Checkpoint, tmp_path: Path) -> None:
    sleeper = opened(tmp_path).lane("live").offset_log
    assert ends(sleeper, 12) == entry(12).ends
    compact_logs(long)
    assert sleeper.add(12, entry(99)) is False
    assert ends(sleeper, 12) == entry(12).ends
    assert 12 not in files(tmp_path)


def test_a_segment_wins_over_what_such_a_writer_left(long: Checkpoint, tmp_path: Path) -> None:
    compact_logs(long)
    (tmp_path / "offsets" / "12").write_bytes((tmp_path / "offsets" / "33").read_bytes())
    all_is_read(tmp_path)


def test_an_entry_that_cannot_be_read_stays_where_it_is(long: Checkpoint, tmp_path: Path) -> None:
    (tmp_path / "offsets" / "13").write_bytes(b"")
    with pytest.raises(CorruptEntryError, match="offsets/13"):
        compact_logs(long)
    assert segments(tmp_path) == ["0-9"]
    assert files(tmp_path) == list(range(10, 36))


def test_a_damaged_segment_is_named(long: Checkpoint, tmp_path: Path) -> None:
    compact_logs(long)
    path = tmp_path / "microbatch/segments/live/offsets/10-19"
    path.write_bytes(path.read_bytes()[:-9])
    made = opened(tmp_path)
    assert ends(made.offset_log, 9) == entry(9).ends
    with pytest.raises(CorruptEntryError, match="offsets/10-19 is damaged"):
        made.offset_log.get(10)
    assert {finding.kind for finding in verify_all(made)} >= {"unreadable"}
    made.lane("live").tail()


def test_retention_removes_whole_segments(long: Checkpoint, tmp_path: Path) -> None:
    compact_logs(long)
    assert apply_retention(long, kept=20) == ["log entries of 10 batches before live/10"]
    assert segments(tmp_path) == segments(tmp_path, "commits") == ["10-19", "20-29"]
    all_is_read(tmp_path, first=10)
    assert apply_retention(long, kept=20) == [], "not said again for the part of a segment"
    assert apply_retention(long, kept=3) == ["log entries of 22 batches before live/32"]
    all_is_read(tmp_path, first=32)


def test_a_log_whose_first_entries_are_gone_is_compacted_from_where_it_begins(long: Checkpoint, tmp_path: Path) -> None:
    apply_retention(long, kept=28)
    compact_logs(long)
    assert segments(tmp_path) == ["10-19", "20-29", "7-9"]
    all_is_read(tmp_path, first=7)


def test_handing_over_makes_files_again(long: Checkpoint, tmp_path: Path) -> None:
    for number in range(36):
        long.source_log("orders").put_if_absent(str(number), b'v1\n{"path":"file:///x","timestamp":1,"batchId":0}')
    before = {path: path.read_bytes() for path in (tmp_path / "offsets").iterdir()}
    compact_logs(long)
    hand_over(long)
    assert {path: path.read_bytes() for path in (tmp_path / "offsets").iterdir()} == before
    assert segments(tmp_path) == []
    all_is_read(tmp_path)
