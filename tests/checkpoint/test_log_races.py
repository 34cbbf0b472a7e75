"""A log while others plan, commit and purge: a reader that is paused in between, and a writer that slept."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.entries import CommitEntry
from airflow_provider_microbatch.checkpoint.log import HINT_EVERY, LOOKED_AT, MetadataLog
from airflow_provider_microbatch.checkpoint.verify import verify_all
from airflow_provider_microbatch.exceptions import BrokenLogError
from airflow_provider_microbatch.stores.posix import PosixStore
from tests.checkpoint.world import claimed, entry, fill, opened


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here dies, so nothing has to be on disk."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def go_on(checkpoint: Checkpoint, *, to: int) -> None:
    """Plan and commit up to batch ``to``."""
    newest = checkpoint.offset_log.latest_id()
    for number in range(-1 if newest is None else newest, to + 1):
        if number >= 0:
            checkpoint.offset_log.add(number, entry(number))
            checkpoint.commit_log.add(number, CommitEntry(epoch=1))


def paused(monkeypatch: pytest.MonkeyPatch, method: str, at: int, meanwhile: Callable[[], None]) -> None:
    """Before the ``at``-th call of a log's method something else happens, once."""
    real, calls = getattr(MetadataLog, method), 0

    def call(self: Any, *args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == at:
            meanwhile()
        return real(self, *args)

    monkeypatch.setattr(MetadataLog, method, call)


@pytest.mark.parametrize("method", ["latest_id", "get"])
@pytest.mark.parametrize("at", range(1, 5))
@pytest.mark.parametrize("purged", [0, 40])
def test_the_tail_is_read_again_when_others_went_on_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, at: int, purged: int
) -> None:
    fill(claimed(tmp_path), planned=6, committed=5)

    def meanwhile() -> None:
        other = opened(tmp_path)
        go_on(other, to=50)
        other.offset_log.purge(purged)
        other.commit_log.purge(purged)

    paused(monkeypatch, method, at, meanwhile)
    tail = opened(tmp_path).lane("live").tail()
    assert tail.offset_id is not None
    assert tail.commit_id in (tail.offset_id, tail.offset_id - 1)
    assert tail.offsets is not None
    assert tail.offsets.ends == entry(tail.offset_id).ends
    assert tail.commit is not None


def test_damage_stays_damage_however_often_it_is_read(tmp_path: Path) -> None:
    made = claimed(tmp_path)
    fill(made, planned=6, committed=6)
    made.offset_log.purge(6)
    with pytest.raises(BrokenLogError):
        opened(tmp_path).lane("live").tail()


@pytest.mark.parametrize("number", [0, 5, HINT_EVERY, 99])
def test_a_number_that_was_purged_while_its_writer_slept_is_not_made_again(tmp_path: Path, number: int) -> None:
    fill(claimed(tmp_path), planned=number, committed=number)
    late = opened(tmp_path).offset_log
    late.latest_id()
    other = opened(tmp_path)
    go_on(other, to=200)
    other.offset_log.purge(100)
    other.commit_log.purge(100)
    assert not late.add(number, entry(7))
    assert not opened(tmp_path).commit_log.add(number, CommitEntry(epoch=7))
    fresh = opened(tmp_path)
    assert fresh.offset_log.ids() == fresh.commit_log.ids() == list(range(100, 201))
    assert fresh.offset_log.latest_id() == 200
    assert verify_all(fresh) == []


class Late(PosixStore):
    """A store whose listings and looks miss what is younger than a moment."""

    hidden = frozenset[str]()

    def list(self, folder: str) -> list[str]:
        return [name for name in super().list(folder) if name not in self.hidden]

    def modified_ms(self, path: str) -> int | None:
        return None if path in self.hidden else super().modified_ms(path)

    def scoped(self, folder: str) -> Late:
        made = type(self)(super().scoped(folder).location)
        made.hidden = self.hidden
        return made


def test_the_newest_entry_is_never_older_than_what_this_process_has_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(claimed(tmp_path), planned=4, committed=3)
    made = Checkpoint(Late(tmp_path))
    assert made.offset_log.latest_id() == 3
    monkeypatch.setattr(Late, "hidden", frozenset({"2", "3"}))
    store = made.lane("live").offset_log._store
    assert isinstance(store, Late)
    store.hidden = frozenset({"2", "3"})
    assert made.offset_log.latest_id() == 3
    (tmp_path / "offsets" / "3").unlink()  # as a rewind does
    assert made.offset_log.latest_id() == 1


@pytest.mark.parametrize("folder", ["offsets", "commits"])
@pytest.mark.parametrize("lost", [0, 2, 4])
def test_a_gap_in_the_middle_of_a_log_is_found(tmp_path: Path, folder: str, lost: int) -> None:
    fill(claimed(tmp_path), planned=6, committed=6)
    (tmp_path / folder / str(lost)).unlink()
    if (folder, lost) == ("offsets", 0):
        opened(tmp_path).lane("live").check_gaps()  # as retention leaves it
        return
    with pytest.raises(BrokenLogError, match=rf"{lost} not found in \S+{folder}"):
        opened(tmp_path).lane("live").check_gaps()


def test_a_gap_in_a_long_log_is_found_as_it_grows_with_as_many_looks_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = claimed(tmp_path)
    fill(made, planned=10 * LOOKED_AT, committed=10 * LOOKED_AT)
    (tmp_path / "commits" / "77").unlink()
    looks = 0
    real = PosixStore.modified_ms

    def counting(self: PosixStore, path: str) -> int | None:
        nonlocal looks
        looks += 1
        return real(self, path)

    monkeypatch.setattr(PosixStore, "modified_ms", counting)
    said = []
    for number in range(10 * LOOKED_AT, 11 * LOOKED_AT):
        looks = 0
        with contextlib.suppress(BrokenLogError):
            opened(tmp_path).lane("live").check_gaps()
            assert looks < 2 * LOOKED_AT + 2 * HINT_EVERY + 20
            said.append(number)
        fill_one(made, number)
    assert len(said) < LOOKED_AT, "nobody noticed"


def fill_one(checkpoint: Checkpoint, number: int) -> None:
    checkpoint.offset_log.add(number, entry(number))
    checkpoint.commit_log.add(number, CommitEntry(epoch=1))


@pytest.mark.parametrize("hint", [True, False], ids=["with a hint", "as an older version or Spark leaves it"])
def test_what_retention_removed_is_no_gap_and_is_listed_once(
    tmp_path: Path, hint: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = claimed(tmp_path)
    fill(made, planned=100, committed=100)
    for log in (made.offset_log, made.commit_log):
        if hint:
            log.purge(90)
        else:
            for number in range(90):
                (Path(log.location) / str(number)).unlink()
    for number in range(100, 200):
        opened(tmp_path).lane("live").check_gaps()
        fill_one(made, number)
    listings: list[str] = []
    real = PosixStore.list
    monkeypatch.setattr(
        PosixStore, "list", lambda self, folder: [listings.append(self.location), real(self, folder)][1]
    )
    opened(tmp_path).lane("live").check_gaps()
    assert not any(place.endswith(("checkpoint/offsets", "checkpoint/commits")) for place in listings)


def test_a_segment_that_is_lost_is_a_gap(tmp_path: Path) -> None:
    made = claimed(tmp_path)
    fill(made, planned=1, committed=0)
    entries = tmp_path / "offsets"
    for number in range(1, 3_010):
        (entries / str(number)).write_bytes((entries / "0").read_bytes())
    made.offset_log.compact(3_000)
    opened(tmp_path).lane("live").check_gaps()
    (tmp_path / "microbatch" / "segments" / "live" / "offsets" / "1000-1999").unlink()
    with pytest.raises(BrokenLogError, match="1000 not found"):
        opened(tmp_path).lane("live").check_gaps()
