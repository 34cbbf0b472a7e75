"""Entries that a command writes into the logs: they count for the batch that they were written for, and no other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_provider_microbatch.checkpoint.verify import verify_all
from airflow_provider_microbatch.cli.main import main
from airflow_provider_microbatch.exceptions import BrokenLogError, MaintenanceError
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.upkeep.commands.draft import Draft
from airflow_provider_microbatch.upkeep.commands.plan import Drafting, Plan
from airflow_provider_microbatch.upkeep.commands.set_offset import plan_set_offset
from airflow_provider_microbatch.upkeep.commands.steps import DropOutput, Write
from tests.execution.maintaining import applied, expire, filled, rewind, rows
from tests.execution.sleepers import Sleep, killed
from tests.execution.world import Killed, World


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Four batches of a row each."""
    return filled(World(tmp_path), 4)


def back_to_the_third(drafting: Drafting) -> Plan:
    """``set-offset``: row 3 is read once more."""
    return plan_set_offset(
        drafting, lane="live", source="orders", offset='{"logOffset":2}', allow_skip=False, allow_reread=True
    )  # fmt: skip


def given_up(world: World) -> Callable[[], None]:
    """A person takes the command for dead, and ``repair --give-up`` mends what it has left."""

    def act() -> None:
        expire(world)
        assert main(["repair", str(world.root / "checkpoint"), "--give-up"]) == 0

    return act


def writes(name: str) -> object:
    return lambda step, store: step.path == name and not isinstance(store, Draft)


def test_a_commit_entry_of_a_command_that_slept_is_not_the_next_batchs(world: World, sleep: Sleep) -> None:
    def meanwhile() -> None:
        expire(world)
        applied(world, rewind(3))  # which finishes the set-offset first
        world.land(4)
        assert world.staged(4).key.id == 4

    sleep.before(Write, "apply", meanwhile, writes("commits/4"))  # type: ignore[arg-type]
    with pytest.raises(MaintenanceError, match="finished by another"):
        applied(world, back_to_the_third)
    world.expire_leases()
    world.run(4, try_number=2)
    assert rows(world) == [0, 1, 2, 3, 4]
    assert verify_all(world.checkpoint) == []


def test_nor_is_it_where_the_sleeper_dies_right_after_it(
    world: World, sleep: Sleep, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = world.root / "checkpoint" / "commits" / "4"

    def meanwhile() -> None:
        expire(world)
        applied(world, rewind(3))
        world.land(4)
        world.staged(4)
        monkeypatch.setattr(Write, "take_back_if_late", killed)

    sleep.before(Write, "apply", meanwhile, writes("commits/4"))  # type: ignore[arg-type]
    with pytest.raises(Killed):
        applied(world, back_to_the_third)
    monkeypatch.undo()
    assert late.exists()
    world.expire_leases()
    with pytest.raises(BrokenLogError, match="for another plan of batch 4"):
        world.run(4, try_number=2)
    assert [finding.kind for finding in verify_all(world.checkpoint)] == ["contradiction"]
    applied(world)
    assert not late.exists()
    world.run(4, try_number=3)
    assert rows(world) == [0, 1, 2, 3, 4]
    assert verify_all(world.checkpoint) == []


def test_a_position_that_was_set_half_is_not_set_once_the_command_is_given_up(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    location = str(world.root / "checkpoint")
    with monkeypatch.context() as patch:
        Sleep(patch).before(Write, "apply", killed, writes("commits/4"))  # type: ignore[arg-type]
        with pytest.raises(Killed):
            applied(world, back_to_the_third)
    expire(world)
    world.checkpoint.maintenance.give_up(by="me@here", ended_ms=0)
    world.land(4)
    with pytest.raises(BrokenLogError, match="sets the position by hand, and is not committed"):
        world.run(4)
    assert main(["check", location]) == 1
    assert "given up half way" in capsys.readouterr().out
    assert main(["repair", location]) == 0
    world.run(4)
    assert rows(world) == [0, 1, 2, 3, 4]
    assert main(["check", location]) == 0


def test_a_command_that_was_given_up_while_it_slept_sets_no_position(world: World, sleep: Sleep) -> None:
    sleep.before(Write, "apply", given_up(world), writes("commits/4"))  # type: ignore[arg-type]
    with pytest.raises(MaintenanceError, match="given up"):
        applied(world, back_to_the_third)
    world.land(4)
    world.run(4)
    assert rows(world) == [0, 1, 2, 3, 4]
    assert verify_all(world.checkpoint) == []


def test_a_command_that_was_given_up_while_it_slept_takes_nothing_out_of_the_table(world: World, sleep: Sleep) -> None:
    sleep.before(DropOutput, "apply", given_up(world))
    with pytest.raises(MaintenanceError, match="given up"):
        applied(world, rewind(1))
    assert rows(world) == [0, 1, 2, 3]
    assert verify_all(world.checkpoint) == []


def test_what_it_was_about_to_take_out_and_is_out_then_is_named(world: World, sleep: Sleep) -> None:
    sleep.before(FileSink, "withdraw", given_up(world))
    with pytest.raises(MaintenanceError, match=r"live/3 was taken out of .* after that\. .*clear its task"):
        applied(world, rewind(1))
    world.run(3, clear_number=1)
    assert rows(world) == [0, 1, 2, 3]
    assert verify_all(world.checkpoint) == []


def test_what_the_next_repair_writes_alike_is_not_taken_back_by_one_that_slept(world: World, sleep: Sleep) -> None:
    metadata = world.root / "checkpoint" / "metadata"
    metadata.unlink()

    def meanwhile() -> None:
        given_up(world)()
        assert metadata.exists()

    sleep.before(Write, "apply", meanwhile, writes("metadata"))  # type: ignore[arg-type]
    with pytest.raises(MaintenanceError, match="given up"):
        applied(world)
    assert metadata.exists()
    world.land(4)
    world.run(4)
    assert rows(world) == [0, 1, 2, 3, 4]
