"""A checkpoint has had two lives: it was restored from a backup, went on, and was restored once more. Whatever is typed
then, as it is printed, no row is in the table twice, and none is lost."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.sinks.file import FileSink
from tests.execution.intervals import IntervalWorld, hour
from tests.execution.kept_tables import adopt, start_behind
from tests.execution.maintaining import applied, expire_all, filled, rows
from tests.execution.test_newest import set_aside
from tests.execution.test_restored_under_commands import restored
from tests.execution.test_restored_under_commands import world as world
from tests.execution.typed_commands import COMMANDS, checked, goes_on, is_sound, said
from tests.execution.world import World, run_identity

SET_ASIDE = {"on_failure": "set_aside", "set_aside_after": 1, "set_aside_after_dead": 1}


def another_life(world: World, copy: str, run: int) -> None:
    """A copy of the checkpoint goes on in its place by the command that its error names, and makes batch 4 of the rows
    4 and 5. Then the checkpoint is put back."""
    checkpoint = world.root / "checkpoint"
    world.expire_leases()
    shutil.move(checkpoint, world.root / "first life")
    shutil.copytree(world.root / copy, checkpoint)
    assert said(["rewind", str(checkpoint), "--to", "3", "--drop-output"])[0] == 0
    world.run(run)
    assert world.table()[4] == [4, 5]
    shutil.rmtree(checkpoint)
    shutil.move(world.root / "first life", checkpoint)
    expire_all(world.root)


@pytest.fixture
def of_two_lives(world: World) -> World:
    """Batches 4 and 5 of the first life are committed by the logs; the table has the second's batch 4, of both."""
    for number in (4, 5):
        world.land(number)
        world.run(number)
    another_life(world, "backup", 6)
    return world


def test_a_batch_is_not_made_again_beside_the_one_that_has_its_rows(of_two_lives: World) -> None:
    before = of_two_lives.table()
    with pytest.raises(SinkError, match=r"place of batch 4 is one of another life.*`microbatch rewind \S+ --to 3 "):
        of_two_lives.run(5, clear_number=1)
    assert of_two_lives.table() == before
    assert rows(of_two_lives) == list(range(6))


def test_nor_beside_one_that_comes_behind_its_place(world: World) -> None:
    """The other life has set its batch 4 aside, and what it has read may be in its batch 5."""
    for number in (4, 5):
        world.land(number)
        world.run(number)
    checkpoint = world.root / "checkpoint"
    world.expire_leases()
    shutil.move(checkpoint, world.root / "first life")
    shutil.copytree(world.root / "backup", checkpoint)
    assert said(["rewind", str(checkpoint), "--to", "3", "--drop-output"])[0] == 0
    world.options |= SET_ASIDE
    set_aside(world, 6)
    world.land(6)
    world.run(7)
    assert (world.table().get(4), world.table()[5]) == (None, [6])
    shutil.rmtree(checkpoint)
    shutil.move(world.root / "first life", checkpoint)
    expire_all(world.root)
    with pytest.raises(SinkError, match=r"place of batch 5 is one of another life"):
        world.run(4, clear_number=1)


@pytest.fixture
def counted_over(tmp_path: Path) -> World:
    """Batch 2 of another life is in the table, what it has read is gone, and ``start-behind`` has counted over it."""
    world = filled(World(tmp_path, **SET_ASIDE), 2)
    shutil.copytree(tmp_path / "checkpoint", tmp_path / "backup")
    path = world.land(2)
    world.run(2)
    path.unlink()
    shutil.rmtree(tmp_path / "checkpoint")
    (tmp_path / "backup").rename(tmp_path / "checkpoint")
    world.expire_leases()
    applied(world, start_behind(allow_reread=True))
    world.land(3)
    world.run(3)
    assert world.table() == {0: [0], 1: [1], 2: [2], 3: [3]}
    return world


def test_where_its_batches_were_counted_over_one_that_was_set_aside_is_cleared(counted_over: World) -> None:
    counted_over.land(4)
    set_aside(counted_over, 4)
    counted_over.run(4, clear_number=1)
    assert counted_over.table() == {0: [0], 1: [1], 2: [2], 3: [3], 4: [4]}


def test_so_is_one_that_the_table_has_lost(counted_over: World) -> None:
    shutil.rmtree(counted_over.lake / "lane=live" / "batch_id=3")
    counted_over.run(3, clear_number=1)
    assert counted_over.table() == {0: [0], 1: [1], 2: [2], 3: [3]}


def test_a_clear_looks_at_few_batches_however_long_the_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[object] = []
    contains = FileSink.contains
    monkeypatch.setattr(FileSink, "contains", lambda sink, batch: looks.append(batch) or contains(sink, batch))
    asked = []
    for batches in (5, 25):
        world = filled(World(tmp_path / str(batches), **SET_ASIDE), batches)
        world.land(batches)
        set_aside(world, batches)
        looks.clear()
        world.run(batches, clear_number=1)
        asked.append(len(looks))
    assert asked[0] == asked[1]


def test_no_batch_is_planned_behind_the_one_that_has_its_rows(of_two_lives: World) -> None:
    """The place behind the newest batch is free: a batch there would have rows that the other life's batch has."""
    of_two_lives.land(6)
    before = of_two_lives.table()
    with pytest.raises(SinkError, match=r"batch live/4 in \S+ is another one than"):
        of_two_lives.run(7)
    assert of_two_lives.table() == before
    assert of_two_lives.checkpoint.offset_log.latest_id() == 5


def test_a_copy_that_goes_on_beside_its_original_stops_it(world: World) -> None:
    """``cp -a``, and both are used: each by the command that the other's batches have it print."""
    shutil.copytree(world.root / "checkpoint", world.root / "copy")
    world.land(4)
    world.run(4)
    world.land(5)
    another_life(world, "copy", 5)
    with pytest.raises(SinkError, match=r"batch live/4 in \S+ is another one than"):
        world.run(6)
    assert rows(world) == list(range(6))


def test_nor_behind_one_that_was_adopted(world: World) -> None:
    """Batch 4 is what a copy had published of the same data: no attempt of this checkpoint has made it."""
    checkpoint = world.root / "checkpoint"
    world.land(4)
    world.execution.plan(run_identity(4))
    shutil.copytree(checkpoint, world.root / "planned")
    restored(world)
    world.run(4)
    shutil.rmtree(checkpoint)
    shutil.move(world.root / "planned", checkpoint)
    expire_all(world.root)
    applied(world, adopt(4))
    world.run(4)
    world.land(5)
    another_life(world, "backup", 5)
    before = world.table()
    with pytest.raises(SinkError, match=r"batch live/4 in \S+ is another one than"):
        world.run(6)
    assert world.table() == before


@pytest.fixture
def by_hours(tmp_path: Path) -> IntervalWorld:
    """By the logs live/0 has row 0 and live/1 row 1; another life's live/1 has rows 1 and 2, which is of hour 2."""
    world = IntervalWorld(tmp_path, on_overlap="replay")
    world.land_at(0.5, 0)
    world.run(0)
    checkpoint = tmp_path / "checkpoint"
    world.expire_leases()
    shutil.copytree(checkpoint, tmp_path / "copy")
    world.land_at(1.5, 1)
    world.run(1)
    world.expire_leases()
    shutil.move(checkpoint, tmp_path / "first life")
    shutil.copytree(tmp_path / "copy", checkpoint)
    assert said(["rewind", str(checkpoint), "--to", "0", "--drop-output"])[0] == 0
    world.land_at(2.5, 2)
    world.run(2)
    shutil.rmtree(checkpoint)
    shutil.move(tmp_path / "first life", checkpoint)
    expire_all(tmp_path)
    return world


def test_nor_is_one_planned_in_the_lane_of_an_interval(by_hours: IntervalWorld) -> None:
    before = by_hours.rows()
    assert before == {"live/0": [0], "live/1": [1, 2]}
    with pytest.raises(SinkError, match=r"batch live/1 in \S+ is another one than"):
        by_hours.backfill(hour(2), 4)
    assert by_hours.rows() == before


def test_a_backfill_that_is_refused_leaves_no_request_that_would_hold_retention(by_hours: IntervalWorld) -> None:
    before = by_hours.rows()
    with pytest.raises(SinkError, match=r"batch live/1 in \S+ is another one than"):
        by_hours.backfill(hour(1), 4)
    assert by_hours.rows() == before
    assert by_hours.checkpoint.replays.pending(BatchKey("live", 1)) == []


def test_neither_does_check_say_that_its_task_is_to_be_cleared(of_two_lives: World) -> None:
    status, text = said(["check", of_two_lives.pipeline.checkpoint, "--table"])
    assert status == 1
    assert "Clear task" not in text


def test_what_check_prints_makes_it_whole(of_two_lives: World) -> None:
    given = COMMANDS["rewind"]
    checked(given, of_two_lives)
    is_sound(given, of_two_lives, goes_on(given, of_two_lives))
