"""Attempts and replays: epochs that nobody shares, ends that are said once."""

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path

import pytest

from airflow_provider_microbatch.checkpoint.entries import AttemptEnd
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import CorruptEntryError
from tests.checkpoint.world import RUN, attempt, claimed

KEY = BatchKey("live", 7)


def test_epochs_count_from_one_and_come_back_whole(tmp_path: Path) -> None:
    attempts = claimed(tmp_path).attempts
    assert attempts.latest(KEY) is None
    assert attempts.latest_epoch(KEY) == 0
    first, second = attempt(KEY, 1), attempt(KEY, 2)
    assert attempts.take_exactly(first)
    assert attempts.take_exactly(second)
    assert claimed(tmp_path).attempts.all(KEY) == [first, second]
    assert attempts.latest(KEY) == second
    assert attempts.latest_epoch(KEY) == 2
    assert attempts.get(KEY, 3) is None
    assert (tmp_path / "attempts" / "live" / "7" / "2").exists()


def test_an_epoch_that_is_taken_stays_its_owners(tmp_path: Path) -> None:
    attempts = claimed(tmp_path).attempts
    winner, loser = attempt(KEY, 1), dataclasses.replace(attempt(KEY, 1), handle={"tag": "other"})
    assert attempts.take_exactly(winner)
    assert not attempts.take_exactly(loser)
    assert attempts.get(KEY, 1) == winner


def test_many_at_once_share_no_epoch(tmp_path: Path) -> None:
    attempts = claimed(tmp_path).attempts
    taken: list[int] = []

    def take() -> None:
        while (epoch := attempts.latest_epoch(KEY) + 1) <= 40:
            if attempts.take_exactly(attempt(KEY, epoch)):
                taken.append(epoch)

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == list(range(1, 41))


def test_an_attempt_of_an_older_version_was_made_for_no_replay(tmp_path: Path) -> None:
    attempts = claimed(tmp_path).attempts
    attempts.take_exactly(dataclasses.replace(attempt(KEY, 1), request=3))
    found = attempts.get(KEY, 1)
    assert found is not None
    assert found.request == 3
    path = tmp_path / "attempts" / "live" / "7" / "1"
    path.write_text(path.read_text().replace(',"request":3', ""))
    old = attempts.get(KEY, 1)
    assert old is not None
    assert old.request is None


def test_an_end_is_said_once_and_is_no_attempt(tmp_path: Path) -> None:
    attempts = claimed(tmp_path).attempts
    attempts.take_exactly(attempt(KEY, 1))
    assert attempts.ended(KEY, 1) is None
    end = AttemptEnd(state="failed", error="a file \udcff vanished\nin two lines", ended_ms=5)
    assert attempts.end(KEY, 1, end) is True
    assert attempts.end(KEY, 1, AttemptEnd(state="succeeded", ended_ms=6)) is False
    assert attempts.ended(KEY, 1) == end
    assert attempts.latest_epoch(KEY) == 1
    assert len(attempts.all(KEY)) == 1


def test_the_epoch_is_known_though_an_entry_is_spoilt(tmp_path: Path) -> None:
    """A fence must hold even when who took it cannot be read."""
    attempts = claimed(tmp_path).attempts
    attempts.take_exactly(attempt(KEY, 1))
    (tmp_path / "attempts" / "live" / "7" / "1").write_text('v1\n{"handle":')
    assert attempts.latest_epoch(KEY) == 1
    with pytest.raises(CorruptEntryError, match="attempts/live/7/1"):
        attempts.get(KEY, 1)


def test_purge_keeps_to_its_lane(tmp_path: Path) -> None:
    attempts = claimed(tmp_path).attempts
    keys = [BatchKey("live", 9), BatchKey("live", 10), BatchKey("backfill", 9)]
    for key in keys:
        attempts.take_exactly(attempt(key, 1))
        attempts.end(key, 1, AttemptEnd(state="succeeded", ended_ms=1))
    assert attempts.purge(BatchKey("live", 10)) == 1
    assert [attempts.latest_epoch(key) for key in keys] == [0, 1, 1]
    assert not (tmp_path / "attempts" / "live" / "9").exists()


def test_replays_are_pending_until_they_are_answered(tmp_path: Path) -> None:
    replays = claimed(tmp_path).replays
    assert replays.pending(KEY) == []
    first = replays.request(KEY, run=RUN, requested_ms=1)
    second = replays.request(KEY, run=None, requested_ms=2)
    assert (first.epoch, second.epoch) == (1, 2)
    assert replays.pending(KEY) == [first, second]
    assert replays.complete(KEY, first.epoch, attempt=4, completed_ms=3, progress={"numOutputRows": 2}) is True
    assert replays.complete(KEY, first.epoch, attempt=5, completed_ms=4) is False
    assert replays.completed(KEY, 1) == {"attempt": 4, "completed_ms": 3, "progress": {"numOutputRows": 2}}
    assert claimed(tmp_path).replays.pending(KEY) == [second]
    assert replays.purge(BatchKey("live", 8)) == 2
    assert replays.pending(KEY) == []


def test_two_clears_at_once_are_two_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replays, other = claimed(tmp_path).replays, claimed(tmp_path).replays
    first = other.request(KEY, run=RUN, requested_ms=1)
    # As if it had looked before the other wrote.
    stale, latest = [0], replays.epochs.latest
    monkeypatch.setattr(replays.epochs, "latest", lambda key: stale.pop() if stale else latest(key))
    second = replays.request(KEY, run=None, requested_ms=2)
    assert (first.epoch, second.epoch) == (1, 2)
    assert other.pending(KEY) == [first, second]
