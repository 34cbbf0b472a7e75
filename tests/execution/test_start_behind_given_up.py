"""A start-behind that was killed and is given up: it is as if it was never typed, or what is there of it counts. Said
again it goes on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_provider_microbatch.checkpoint.by_hand import is_position
from airflow_provider_microbatch.checkpoint.verify import verify_all
from airflow_provider_microbatch.upkeep.commands.set_offset import plan_set_offset
from airflow_provider_microbatch.upkeep.table_check import check_table
from tests.execution.kept_tables import SINKS, Setting, refused, start_behind
from tests.execution.maintaining import applied, applier, checkpoint_files, expire, filled, killed_at, moments, planned
from tests.execution.world import World


def new_checkpoint(root: Path, checkpoint_format: str, batches: int) -> World:
    """Without a batch, refused at a table that holds so many of another one's."""
    setting = Setting(root, SINKS["file sink"], clean=None)
    filled(setting.world("old"), batches)
    new = setting.world("new")
    new.options["checkpoint_format"] = checkpoint_format
    new.land(7)
    refused(new, 0)
    return new


def checkpoint_with_a_batch(root: Path, checkpoint_format: str, batches: int) -> World:
    """One of its own, and behind it so many of another pipeline's."""
    setting = Setting(root, SINKS["file sink"], clean=None)
    new, other = setting.world("new"), setting.world("other", pipeline="others")
    new.options["checkpoint_format"] = checkpoint_format
    filled(new, 1)
    other.land(0)
    refused(other, 0)
    applied(other, start_behind())
    for number in range(1, batches + 1):
        other.land(number)
        other.run(number)
    new.land(7)
    refused(new, 1)
    return new


def killed_and_given_up(world: World, moment: int) -> bool:
    """Whether the command was killed at that moment."""
    world.expire_leases()
    killed = killed_at(moment, lambda: applied(world, start_behind()))
    expire(world)
    applier(world).give_up(by="me@here")
    return killed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "batches", "checkpoint_format"),
    [
        (new_checkpoint, 3, "v1"),
        (new_checkpoint, 2, "v2"),
        (checkpoint_with_a_batch, 2, "v2"),
    ],
)
def test_given_up_anywhere_and_repaired_it_goes_on_when_it_is_said_again(
    tmp_path: Path, make: Callable[[Path, str, int], World], batches: int, checkpoint_format: str
) -> None:
    (tmp_path / "world").mkdir()
    world = make(tmp_path / "world", checkpoint_format, batches)
    before, table = checkpoint_files(world.root / "checkpoint"), world.table()
    for moment in moments(tmp_path / "world"):
        killed = killed_and_given_up(world, moment)
        assert applied(world).problems == ()
        assert verify_all(world.checkpoint) == []
        log = world.checkpoint.offset_log
        added = sorted(set(checkpoint_files(world.root / "checkpoint")) - set(before))
        assert all(is_position(log.get(int(name.rpartition("/")[2]))) for name in added if "hints" not in name), added  # type: ignore[arg-type]
        behind = max(table) + 1
        if log.latest_id() != behind - 1:
            assert "`microbatch start-behind " in refused(world, 9)
            [finding] = check_table(world.checkpoint, everything=True).findings
            assert "`microbatch start-behind " in finding.message
        applied(world, start_behind())
        assert planned(world, start_behind()).steps == ()
        world.run(9)
        world.land(8)
        world.run(10)
        assert world.table() == {**table, behind: [7], behind + 1: [8]}
        assert verify_all(world.checkpoint) == []
        assert check_table(world.checkpoint, everything=True).findings == []
        if not killed:
            return


@pytest.mark.slow
def test_the_repair_of_it_can_be_killed_and_given_up_anywhere(tmp_path: Path) -> None:
    (tmp_path / "world").mkdir()
    world = new_checkpoint(tmp_path / "world", "v2", 3)
    before = checkpoint_files(world.root / "checkpoint")
    half(world)
    for moment in moments(tmp_path / "world"):
        killed = killed_at(moment, lambda: applied(world))
        expire(world)
        applier(world).give_up(by="me@here")
        assert applied(world).problems == ()
        assert checkpoint_files(world.root / "checkpoint") == before
        applied(world, start_behind())
        world.run(9)
        assert world.table()[3] == [7]
        if not killed:
            return


def half(world: World) -> None:
    """All but the last entry is there."""
    for moment in range(1, 200, 2):
        assert killed_and_given_up(world, moment)
        if world.checkpoint.offset_log.ids() == [1, 2]:
            return
        applied(world)
    raise AssertionError("it was never half done")


def test_a_position_that_was_set_after_something_was_read_is_not_taken_back_with_what_lies_before_it(
    tmp_path: Path,
) -> None:
    """Where the entries before it are lost it alone says what was read."""
    world = filled(World(tmp_path), 2)
    world.land(2)
    position = world.checkpoint.offset_log.get(1)
    assert position is not None
    skipped = position.ends["orders"]
    world.expire_leases()
    applied(
        world,
        lambda drafting: plan_set_offset(
            drafting, lane="live", source="orders", offset=None, allow_skip=True, allow_reread=True
        ),
    )
    applied(
        world,
        lambda drafting: plan_set_offset(
            drafting, lane="live", source="orders", offset=skipped, allow_skip=True, allow_reread=True
        ),
    )
    for number in range(3):
        for folder in ("offsets", "commits"):
            (world.root / "checkpoint" / folder / str(number)).unlink()
    assert applied(world).problems == ()
    world.run(3)
    assert world.table() == {0: [0], 1: [1], 4: [2]}
