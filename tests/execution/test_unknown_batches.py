"""A table that is younger than its checkpoint is found out also where the next batch's own place is free."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.checkpoint.verify import verify_all
from airflow_provider_microbatch.exceptions import ForeignBatchError
from airflow_provider_microbatch.execution.intervals import lane_of
from airflow_provider_microbatch.upkeep.table_check import check_table
from tests.execution.intervals import IntervalWorld, hour
from tests.execution.kept_tables import SINKS, Setting, refused, start_behind
from tests.execution.maintaining import applied, expire_all, rewind
from tests.execution.typed_commands import advised, said
from tests.execution.world import World


def backed_up(world: World) -> None:
    shutil.copytree(world.root / "checkpoint", world.root / "backup")


def restored(world: World) -> None:
    shutil.rmtree(world.root / "checkpoint")
    (world.root / "backup").rename(world.root / "checkpoint")


@pytest.fixture(params=SINKS.values(), ids=SINKS.keys())
def setting(request: pytest.FixtureRequest, tmp_path: Path) -> Setting:
    return Setting(tmp_path, request.param, clean=None)


@pytest.fixture
def younger(setting: Setting) -> World:
    """Batch 1 is not in the table, 2 is; the checkpoint is of before both."""
    world = setting.world("only")
    for number in range(3):
        world.land(number)
        world.run(number)
        if number == 0:
            backed_up(world)
    shutil.rmtree(world.lake / "lane=live" / "batch_id=1")  # it was set aside, or has aged out
    restored(world)
    return world


def test_what_lies_behind_a_free_place_is_not_read_again(younger: World) -> None:
    (finding,) = check_table(younger.checkpoint, everything=False).findings
    text = refused(younger, 3)
    assert finding.message == text
    assert "The checkpoint was restored from an older backup" in text
    assert f"microbatch rewind {younger.root}/checkpoint --to 0 --drop-output" in text
    notes = applied(younger, rewind(0, drop_output=True)).notes
    assert not [note for note in notes if "is lost" in note]
    for number in (3, 4):
        younger.run(number)
    assert younger.table() == {0: [0], 1: [1], 2: [2]}


def test_what_is_made_in_its_place_lies_where_no_attempt_of_before_has_written(younger: World) -> None:
    """In a bucket an attempt's files stay where they are, also when they are taken out: Spark writes over none."""
    applied(younger, rewind(0, drop_output=True))
    for number in (3, 4):
        younger.run(number)
    epochs = {number: younger.checkpoint.attempts.latest_epoch(BatchKey("live", number)) for number in (1, 2)}
    assert epochs == {1: 1, 2: 2}
    assert verify_all(younger.checkpoint) == []


def test_start_behind_counts_on_behind_it(younger: World) -> None:
    applied(younger, start_behind(allow_reread=True))
    younger.land(7)
    for number in (3, 4, 5):
        younger.run(number)
    assert younger.table() == {0: [0], 2: [2], 3: [1], 4: [2], 5: [7]}


def test_a_new_checkpoint_on_a_table_whose_first_batches_aged_out_is_refused(setting: Setting) -> None:
    old = setting.world("old")
    for number in range(3):
        old.land(number)
        old.run(number)
    shutil.rmtree(old.lake / "lane=live" / "batch_id=0")
    new = setting.world("new")
    new.land(7)
    assert f"microbatch start-behind {new.root}/checkpoint" in refused(new, 0)


@pytest.mark.parametrize("plan", ["live", "interval"])
def test_lanes_of_after_the_backup_are_not_read_again(tmp_path: Path, plan: str) -> None:
    world = IntervalWorld(tmp_path, plan=plan, **({"lookback": 7200} if plan == "interval" else {}))
    for number in range(4):
        world.land_at(number + 0.5, number)
    world.backfill(hour(0), 0)
    backed_up(world)
    world.backfill(hour(1), 1)
    restored(world)
    before = world.rows()
    ways = "restored from an older backup.*--to -1 --drop-output --lane"
    with pytest.raises(ForeignBatchError, match=ways) as error:
        world.backfill(hour(2), 2) if plan == "interval" else world.run(2)
    assert [one.message for one in check_table(world.checkpoint, everything=False).findings] == [str(error.value)]
    assert world.rows() == before
    (words,) = advised(str(error.value), world)
    expire_all(world.root)
    status, text = said(words)
    assert status == 0, text
    if plan == "interval":
        world.backfill(hour(1), 1)
        world.backfill(hour(2), 2)
    else:
        world.run(2)
    assert sorted(world.ids()) == ([0, 1, 2] if plan == "interval" else [0, 1, 2, 3])


def test_a_backfill_of_an_interval_whose_lane_was_taken_out_makes_it_again(tmp_path: Path) -> None:
    world = IntervalWorld(tmp_path)
    for number in range(4):
        world.land_at(number + 0.5, number)
    world.backfill(hour(0), 0)
    backed_up(world)
    world.backfill(hour(1), 1)
    made = world.rows()
    restored(world)
    with pytest.raises(ForeignBatchError) as error:
        world.run(2)
    expire_all(world.root)
    assert said(advised(str(error.value), world)[0])[0] == 0
    world.backfill(hour(1), 3)
    world.run(4)
    assert world.rows() == {**made, "live/0": [2, 3]}


def test_a_lane_that_no_table_has_is_none(tmp_path: Path) -> None:
    world = IntervalWorld(tmp_path)
    world.land_at(0.5, 0)
    world.backfill(hour(0), 0)
    expire_all(world.root)
    other = lane_of(hour(7))
    words = ["rewind", world.pipeline.checkpoint, "--to", "-1", "--drop-output", "--lane", other]
    status, text = said(words)
    assert status == 2
    assert f"has no lane {other!r}; it has live, {lane_of(hour(0))}" in text


def beside_a_backfill(tmp_path: Path) -> tuple[IntervalWorld, World]:
    """A pipeline whose backfill has made a lane, and another one on its table, for which data has landed."""
    one, two = IntervalWorld(tmp_path / "one", name="one"), World(tmp_path / "two", name="two")
    two.options["sink"] = one.pipeline.sink
    one.land_at(0.5, 1)
    one.backfill(hour(0), 0)
    two.land(2)
    return one, two


def test_nor_is_one_of_another_checkpoint(tmp_path: Path) -> None:
    """Its batches are its own to take out."""
    one, two = beside_a_backfill(tmp_path)
    two.run(0)
    expire_all(tmp_path)
    before = one.rows()
    status, text = said(["rewind", two.pipeline.checkpoint, "--to", "-1", "--drop-output", "--lane", lane_of(hour(0))])
    assert status == 2, text
    assert one.rows() == before


def test_lanes_of_another_pipeline_on_the_same_table_are_its_own(tmp_path: Path) -> None:
    _, two = beside_a_backfill(tmp_path)
    assert two.run(0) is not None


def moved(world: World) -> None:
    """From now on the pipeline writes to another table."""
    world.lake = world.root / "sea"


@pytest.fixture
def two_tables(tmp_path: Path) -> IntervalWorld:
    """Batch 0 is in a table that was removed since, batch 1 in the one of now, as is a batch of an interval, of which
    the checkpoint knows nothing any more."""
    world = IntervalWorld(tmp_path)
    for number in range(4):
        world.land_at(number + 0.5, number)
    world.backfill(hour(0), 0)
    moved(world)
    world.backfill(hour(1), 1)
    backed_up(world)
    world.backfill(hour(2), 2)
    restored(world)
    shutil.rmtree(world.root / "lake")
    expire_all(world.root)
    return world


def test_a_table_that_was_removed_does_not_hide_what_the_other_one_has(two_tables: IntervalWorld) -> None:
    lane = lane_of(hour(2))
    place = two_tables.pipeline.checkpoint
    status, text = said(["rewind", place, "--to", "-1", "--drop-output", "--lane", lane])
    assert status == 0, text
    assert "lake does not tell which batches it has: " in text
    assert lane not in str(two_tables.rows())
    two_tables.run(3)
    assert two_tables.rows() == {f"{lane_of(hour(1))}/0": [1], "live/0": [2, 3]}


def test_nor_does_it_of_a_lane_that_the_checkpoint_knows(tmp_path: Path) -> None:
    world = World(tmp_path)
    for number in range(4):
        world.land(number)
        world.run(number)
        if number == 0:
            moved(world)
        if number == 2:
            backed_up(world)
    restored(world)
    shutil.rmtree(world.root / "lake")
    told = refused(world, 4)
    assert "--to 2 --drop-output" in told
    expire_all(tmp_path)
    status, text = said(advised(told, world)[0])
    assert status == 0, text
    assert "lake does not tell which batches it has: " in text
    world.run(5)
    assert world.table() == {1: [1], 2: [2], 3: [3]}


def test_where_no_other_table_has_any_a_rewind_does_not_end_as_if_it_had_looked(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.land(0)
    world.run(0)
    moved(world)
    world.land(1)
    world.run(1)
    shutil.rmtree(world.root / "lake")
    expire_all(tmp_path)
    status, text = said(["rewind", world.pipeline.checkpoint, "--to", "1", "--drop-output"])
    assert status == 2, text
    assert "lake does not tell which batches it has: " in text
    assert "If it is gone for good, there is nothing to rewind" in text
