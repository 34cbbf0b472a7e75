"""A table and the letters are put back to before a batch whose letters were run again since, and another table is not:
the commands that the errors name bring all right. So they do after the checkpoint was moved."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest

from airflow_provider_microbatch.exceptions import CheckpointError, MaintenanceError
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sinks.several import Sinks
from tests.execution.maintaining import applied, rewind
from tests.execution.test_copy import copied
from tests.execution.test_dead_letters import Checked
from tests.execution.test_letters_once import ids, live, replay
from tests.execution.two_tables import is_clean


@pytest.fixture
def world(tmp_path: Path, request: pytest.FixtureRequest) -> Checked:
    """Two batches in two tables, with one dead letter each, 2 and 7, that were run again since. A copy of before the
    second is kept."""
    tables = {name: FileSink(str(tmp_path / name), format="json") for name in ("lake", "orders")}
    world = Checked(tmp_path, sink=Sinks(tables), expect={"lake": {"version = 1": "dead_letter"}})
    missing = getattr(request, "param", "fail")
    world.sources = {name: dataclasses.replace(one, on_missing=missing) for name, one in world.sources.items()}
    for number, files in enumerate([[(1, 2, 3)], [(6,), (7,)]]):
        for name in ("lake", "letters") if number else ():
            shutil.copytree(tmp_path / name, tmp_path / "kept" / name)
        for rows in files:
            world.land(*rows)
        live(world, number, 2, 7)
    replay(world, 10)
    return world


def restore(world: Checked, *names: str) -> None:
    for name in names:
        shutil.rmtree(world.root / name)
        shutil.copytree(world.root / "kept" / name, world.root / name)


def go_on(world: Checked) -> None:
    """As the errors say: the letters' batch is taken out, what they are of is made anew, and they are run again."""
    with pytest.raises(MaintenanceError, match=r"Go on without them: --allow-skip\. Then clear task .* of run 'run-1'"):
        applied(world, rewind(-1, lane="dead-letters"))
    plan = applied(world, rewind(-1, lane="dead-letters", allow_skip=True))
    assert not [note for note in plan.notes if "set-offset" in note]
    live(world, 1, 7, clear_number=1)
    world.land(9)
    live(world, 2)
    replay(world, 11)
    assert ids(world) == ids(world, "orders") == [1, 2, 3, 6, 7, 9]
    assert is_clean(world)


def test_a_table_comes_back_beside_one_that_has_what_was_run_again(world: Checked) -> None:
    restore(world, "lake", "letters")
    with pytest.raises(CheckpointError, match=r"Take these out first: .* --lane dead-letters"):
        live(world, 1, 7, clear_number=1)
    go_on(world)


def test_so_do_letters_whose_rows_all_tables_have(world: Checked) -> None:
    restore(world, "letters")
    go_on(world)


@pytest.mark.parametrize("world", ["fail", "skip"], indirect=True)
def test_rows_of_letters_stay_that_nobody_can_make_anew(world: Checked) -> None:
    restore(world, "lake", "letters")
    (world.landing() / "000007.json").unlink()
    with pytest.raises(MaintenanceError, match="its rows would be lost") as told:
        applied(world, rewind(-1, lane="dead-letters", allow_skip=True))
    assert "not even with --allow-skip" in str(told.value)
    assert 7 in ids(world, "orders")


def test_a_table_that_letters_would_not_come_back_to_keeps_them_until_a_batch_is_made_with_it(world: Checked) -> None:
    """A run that finds nothing new names the table again, but letters are run again as the newest batch was."""
    both = world.options["sink"]
    other = FileSink(str(world.root / "other"), format="json")
    world.options["sink"] = Sinks({"lake": both.sinks["lake"], "orders": other})
    world.land(9)
    live(world, 2)
    world.options["sink"] = both
    assert world.run(3) is None
    world.expire_leases()
    with pytest.raises(MaintenanceError, match=r"is in \S+/orders, .* let the pipeline make one more batch"):
        applied(world, rewind(-1, lane="dead-letters"))
    world.land(12)
    live(world, 4)
    world.expire_leases()
    applied(world, rewind(-1, lane="dead-letters"))
    replay(world, 11)
    assert ids(world, "orders") == [1, 2, 3, 6, 7, 12]


def test_letters_are_run_anew_where_the_checkpoint_was_moved_to(tmp_path: Path) -> None:
    """The definition on record has the address of then, where nothing is any more."""
    world = Checked(tmp_path)
    world.land(1, 2, 3)
    live(world, 0, 2)
    replay(world, 10)
    old, new = world.pipeline.checkpoint, str(tmp_path / "moved")
    world.expire_leases()
    copied(world, new)
    world.options["checkpoint"], world.clock = new, world.clock + 1_000
    shutil.rmtree(old)
    with pytest.raises(CheckpointError, match=r"Take these out first: .*/moved .* --lane dead-letters"):
        live(world, 0, 3, clear_number=1)
    applied(world, rewind(-1, lane="dead-letters"))
    live(world, 0, 3, clear_number=1)
    replay(world, 11)
    assert ids(world) == [1, 2, 3]


@pytest.mark.parametrize("restored", ["lake", "letters"])
def test_letters_and_rows_of_two_attempts_are_told_of_before_anybody_runs_letters_again(
    tmp_path: Path, restored: str
) -> None:
    """What the mended code has kept is among the letters of before, and what it has refused is nowhere."""
    world = Checked(tmp_path)
    world.land(1, 2, 3)
    live(world, 0, 2)
    shutil.copytree(tmp_path / restored, tmp_path / "kept" / restored)
    live(world, 0, 3, clear_number=1)
    assert is_clean(world)
    restore(world, restored)
    assert not is_clean(world)
    live(world, 0, 3, clear_number=2)
    assert is_clean(world)
    assert ids(world) == [1, 2]


@pytest.fixture
def forgotten(tmp_path: Path) -> Checked:
    """Retention has removed the batch whose letter 2 was run again, and kept the batch of that."""
    world = Checked(tmp_path, min_batches_to_retain=2)
    for number in range(4):
        world.land(3 * number + 2)
        live(world, number, 2)
        if number == 0:
            replay(world, 10)
    assert world.checkpoint.offset_log.ids() == [2, 3]
    return world


def test_rows_of_letters_stay_whose_batch_retention_has_removed(forgotten: Checked) -> None:
    with pytest.raises(MaintenanceError, match=r"dead letters of batch live/0 cannot be read: .* Nothing was done"):
        applied(forgotten, rewind(-1, lane="dead-letters", allow_skip=True))
    assert ids(forgotten) == [2, 5, 8, 11]


def test_but_they_stop_no_rewind_where_the_tables_have_lost_them(forgotten: Checked) -> None:
    for table in ("lake", "letters"):
        shutil.rmtree(forgotten.root / table / "lane=dead-letters")
    with pytest.raises(MaintenanceError, match="Go on without them: --allow-skip"):
        applied(forgotten, rewind(-1, lane="dead-letters"))
    applied(forgotten, rewind(-1, lane="dead-letters", allow_skip=True))
    assert forgotten.checkpoint.lane("dead-letters").offset_log.ids() == []
