"""``verify_all`` finds every broken state, also where no batch looks any more, and says what to do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.entries import AttemptEnd, CommitEntry
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.checkpoint.verify import verify_all
from tests.checkpoint.world import RUN, attempt, claimed, entry, fill, opened

ATTEMPT = 'v1\n{"handle":{},"run":null,"code":{},"started_ms":1}'

LANE = "interval-20260101T000000Z-20260102T000000Z"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    """Six batches, the last one planned only, with attempts, a replay and a backfill's lane."""
    made = claimed(tmp_path)
    fill(made, planned=6, committed=5)
    for number in range(6):
        key = BatchKey("live", number)
        made.attempts.take_exactly(attempt(key, 1))
        made.attempts.end(key, 1, AttemptEnd(state="succeeded", ended_ms=1))
    made.replays.request(BatchKey("live", 2), run=RUN, requested_ms=1)
    fill(made, planned=2, committed=2, lane=LANE)
    return made


def test_a_sound_checkpoint_has_no_findings(checkpoint: Checkpoint, tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    assert verify_all(checkpoint) == []
    assert verify_all(opened(tmp_path / "nothing")) == []
    assert sorted(tmp_path.rglob("*")) == before


def test_retention_leaves_a_sound_checkpoint(checkpoint: Checkpoint) -> None:
    """Also when it was interrupted: offsets go first, then commits, then attempts."""
    checkpoint.offset_log.purge(3)
    assert verify_all(checkpoint) == []
    checkpoint.commit_log.purge(3)
    assert verify_all(checkpoint) == []
    checkpoint.attempts.purge(BatchKey("live", 3))
    assert verify_all(checkpoint) == []


def test_the_smallest_takeover_is_sound(tmp_path: Path) -> None:
    """Offsets 23 and 24 with commit 24: Spark goes on from that."""
    made = claimed(tmp_path)
    for number in (23, 24):
        made.offset_log.add(number, entry(number))
    made.commit_log.add(24, CommitEntry())
    assert verify_all(made) == []


def remove(*paths: str) -> Callable[[Path], None]:
    return lambda root: [(root / path).unlink() for path in paths] and None


def write(path: str, data: str) -> Callable[[Path], None]:
    def damage(root: Path) -> None:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(data)

    return damage


def truncate(path: str) -> Callable[[Path], None]:
    return lambda root: (root / path).write_bytes((root / path).read_bytes()[:30]) and None


@pytest.mark.parametrize(
    ("damage", "kind", "where"),
    [
        (remove("metadata"), "metadata", ""),
        (write("metadata", ""), "identity", ""),
        (truncate("microbatch/identity"), "identity", ""),
        (remove("offsets/2"), "gap", "offsets/2"),
        (remove("commits/2"), "gap", "commits/2"),
        (remove("commits/0"), "gap", "commits/0"),
        (remove("commits/3", "commits/4"), "contradiction", "offsets"),
        (remove(*(f"commits/{n}" for n in range(5))), "contradiction", "offsets"),
        (remove(*(f"offsets/{n}" for n in range(6))), "contradiction", "offsets"),
        (remove("offsets/5", "offsets/4"), "contradiction", "offsets"),
        (write("offsets/1", ""), "unreadable", "offsets/1"),
        (truncate("offsets/1"), "unreadable", "offsets/1"),
        (write("commits/1", "v9\n{}"), "unreadable", "commits/1"),
        (remove(f"lanes/{LANE}/commits/0"), "gap", f"lanes/{LANE}/commits/0"),
        (lambda root: (root / "lanes/lost+found").mkdir(), "lane", "lanes/lost+found"),
        (write("lanes/README.txt", "x"), "lane", "lanes/README.txt"),
        (write("lanes/of_ours/notes/1", "x"), "lane", "lanes/of_ours"),
        (write("lanes/live/offsets/1", "x"), "lane", "lanes/live"),
        (truncate("attempts/live/3/1"), "attempt", "attempts/live/3/1"),
        (truncate("attempts/live/3/1.end"), "attempt", "attempts/live/3/1"),
        (remove("attempts/live/3/1"), "attempt", "attempts/live/3/1"),
        (write("attempts/live/9/1", ATTEMPT), "attempt", "attempts/live/9/1"),
        (write("attempts/live/3/3", ATTEMPT), "attempt", "attempts/live/3/3"),
        (truncate("replays/live/2/1"), "replay", "replays/live/2/1"),
    ],
)  # fmt: skip
def test_damage_is_found(
    checkpoint: Checkpoint, tmp_path: Path, damage: Callable[[Path], None], kind: str, where: str
) -> None:
    damage(tmp_path)
    findings = verify_all(opened(tmp_path))
    assert (kind, str(tmp_path / where)) in {(finding.kind, finding.where) for finding in findings}
    assert all(finding.message and finding.repair for finding in findings)


def test_a_lane_whose_maker_died_before_its_first_entry_is_no_finding(checkpoint: Checkpoint, tmp_path: Path) -> None:
    (tmp_path / "lanes/interval-20260103T000000Z-20260104T000000Z").mkdir()
    (tmp_path / "lanes/interval-20260105T000000Z-20260106T000000Z/offsets").mkdir(parents=True)
    assert verify_all(opened(tmp_path)) == []


def test_a_range_that_does_not_begin_where_the_last_ended(tmp_path: Path) -> None:
    made = claimed(tmp_path)
    made.offset_log.add(0, entry(0))
    made.offset_log.add(1, replace(entry(1), starts={"orders": '{"logOffset":7}'}))
    made.commit_log.add(0, CommitEntry())
    [finding] = verify_all(made)
    assert finding.kind == "chain"
    assert '{"logOffset":7}' in finding.message
    assert '{"logOffset":0}' in finding.message


def test_a_removed_source_must_be_carried_forward(tmp_path: Path) -> None:
    made = claimed(tmp_path)
    made.offset_log.add(0, replace(entry(0), ends={"orders": "1", "refunds": "5"}, starts={}))
    made.commit_log.add(0, CommitEntry())
    made.offset_log.add(1, replace(entry(1), ends={"orders": "2"}, starts={"orders": "1"}))
    [finding] = verify_all(made)
    assert finding.kind == "chain"
    assert "does not carry the position 5 of source 'refunds' forward" in finding.message


def test_an_added_source_begins_anywhere(tmp_path: Path) -> None:
    made = claimed(tmp_path)
    made.offset_log.add(0, entry(0))
    made.commit_log.add(0, CommitEntry())
    both = {"orders": '{"logOffset":0}', "refunds": "5"}
    made.offset_log.add(1, replace(entry(1), ends=both, starts={"orders": '{"logOffset":0}', "refunds": "3"}))
    assert verify_all(made) == []


def test_a_batch_of_another_pipeline_is_found(tmp_path: Path) -> None:
    made = claimed(tmp_path)
    made.offset_log.add(0, replace(entry(0), pipeline="other"))
    [finding] = verify_all(made)
    assert finding.kind == "identity"
    assert "'other'" in finding.message


def test_a_source_that_had_no_position_begins_at_its_first_one(tmp_path: Path) -> None:
    made = claimed(tmp_path)
    made.offset_log.add(0, replace(entry(0), ends={"orders": "1", "refunds": None}, starts={}))
    made.commit_log.add(0, CommitEntry())
    made.offset_log.add(
        1, replace(entry(1), ends={"orders": "2", "refunds": "7"}, starts={"orders": "1", "refunds": "5"})
    )
    made.commit_log.add(1, CommitEntry())
    assert verify_all(made) == []
