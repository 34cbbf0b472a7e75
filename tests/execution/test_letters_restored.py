"""A table and the letters are put back to before a batch whose letters were run again since, and another table is not:
the commands that the errors name bring all right."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from airflow_provider_microbatch.exceptions import CheckpointError, MaintenanceError
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sinks.several import Sinks
from tests.execution.maintaining import applied, rewind
from tests.execution.test_dead_letters import Checked
from tests.execution.test_letters_once import ids, live, replay
from tests.execution.two_tables import is_clean


@pytest.fixture
def world(tmp_path: Path) -> Checked:
    """Two batches in two tables, with one dead letter each, 2 and 7, that were run again since. A copy of before the
    second is kept."""
    tables = {name: FileSink(str(tmp_path / name), format="json") for name in ("lake", "orders")}
    world = Checked(tmp_path, sink=Sinks(tables), expect={"lake": {"version = 1": "dead_letter"}})
    for number, rows in enumerate([(1, 2, 3), (6, 7)]):
        for name in ("lake", "letters") if number else ():
            shutil.copytree(tmp_path / name, tmp_path / "kept" / name)
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


def test_rows_of_letters_stay_that_nobody_can_make_anew(world: Checked) -> None:
    restore(world, "lake", "letters")
    for path in world.landing().iterdir():
        path.unlink()
    with pytest.raises(MaintenanceError, match="its rows would be lost") as told:
        applied(world, rewind(-1, lane="dead-letters", allow_skip=True))
    assert "--allow-skip" not in str(told.value)
    assert 7 in ids(world, "orders")
