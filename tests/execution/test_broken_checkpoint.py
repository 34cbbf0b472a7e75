"""Every broken state that Spark's facts list stops plan and sensor with the ids and the repair, and writes nothing."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_provider_microbatch.checkpoint.verify import verify_all
from airflow_provider_microbatch.exceptions import BrokenLogError, CheckpointError, CorruptEntryError
from tests.execution.world import World

COMMIT = b'v1\n{"nextBatchWatermarkMs":0}'


def commits_lag_by_two(root: Path) -> None:
    (root / "commits" / "2").unlink()
    (root / "commits" / "1").unlink()


def commits_are_ahead(root: Path) -> None:
    (root / "commits" / "3").write_bytes(COMMIT)


def gap_in_the_offsets(root: Path) -> None:
    (root / "offsets" / "1").unlink()


def no_offsets(root: Path) -> None:
    for path in (root / "offsets").iterdir():
        path.unlink()


def no_commits(root: Path) -> None:
    for path in (root / "commits").iterdir():
        path.unlink()


def no_metadata(root: Path) -> None:
    (root / "metadata").unlink()


def zero_byte_entry(root: Path) -> None:
    (root / "offsets" / "2").write_bytes(b"")


def torn_entry(root: Path) -> None:
    path = root / "offsets" / "2"
    path.write_bytes(path.read_bytes()[:60])


def unknown_version(root: Path) -> None:
    path = root / "offsets" / "2"
    path.write_bytes(b"v9" + path.read_bytes()[2:])


@pytest.mark.parametrize(
    ("damage", "error", "message"),
    [
        (
            commits_lag_by_two,
            BrokenLogError,
            r"2.*0[\s\S]*`microbatch repair /\S+/checkpoint`[\s\S]*batch 1 runs again",
        ),
        (
            commits_are_ahead,
            BrokenLogError,
            r"batch 3 is committed but not planned[\s\S]*`microbatch repair /\S+/checkpoint`",
        ),
        (gap_in_the_offsets, BrokenLogError, r"Previous batch 1 not found[\s\S]*`microbatch repair /\S+/checkpoint`"),
        (no_offsets, BrokenLogError, r"offsets are gone[\s\S]*Restore"),
        (no_commits, BrokenLogError, r"commits are missing[\s\S]*`microbatch repair /\S+/checkpoint`"),
        (no_metadata, BrokenLogError, r"no file 'metadata'[\s\S]*`microbatch repair /\S+/checkpoint`"),
        (zero_byte_entry, CorruptEntryError, r"offsets/2[\s\S]*`microbatch repair --dry-run`"),
        (torn_entry, CorruptEntryError, r"offsets/2"),
        (unknown_version, CorruptEntryError, r"offsets/2[\s\S]*v9"),
    ],
)
def test_a_broken_checkpoint_is_refused_and_left_as_it_is(
    tmp_path: Path, damage: Callable[[Path], None], error: type[CheckpointError], message: str
) -> None:
    world = World(tmp_path)
    for number in range(3):
        world.land(number)
        world.run(number)
    damage(tmp_path / "checkpoint")
    world.land(9)
    before, table = world.files(), world.table()
    with pytest.raises(error, match=message):
        world.run(3)
    with pytest.raises(error, match=message):
        world.execution.should_fire()
    assert world.files() == before
    assert world.table() == table
    advice = " ".join(one.repair for one in verify_all(world.checkpoint))
    assert re.findall(r"`microbatch \S+(?! /)[ `]", advice) == [], "each command has its place"


def test_a_gap_in_the_middle_of_a_log_stops_plan(tmp_path: Path) -> None:
    world = World(tmp_path)
    for number in range(6):
        world.land(number)
        world.run(number)
    (tmp_path / "checkpoint" / "commits" / "2").unlink()
    world.land(9)
    before = world.files()
    with pytest.raises(
        BrokenLogError, match=r"Previous batch 2 not found in \S+commits, though 3[\s\S]*`microbatch repair /\S+`"
    ):
        world.run(6)
    assert world.files() == before
