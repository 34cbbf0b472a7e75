"""A command sleeps until the checkpoint was restored from a backup of before it: it does nothing there any more."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from airflow_provider_microbatch.checkpoint.maintenance import Maintenance, MaintenanceLog
from airflow_provider_microbatch.checkpoint.verify import verify_all
from airflow_provider_microbatch.exceptions import MaintenanceError
from airflow_provider_microbatch.stores.posix import PosixStore
from airflow_provider_microbatch.upkeep.commands.steps import DropOutput
from airflow_provider_microbatch.upkeep.source_check import check_sources
from tests.execution.maintaining import applied, expire, filled, rewind
from tests.execution.sleepers import Sleep, to_the_first
from tests.execution.test_source_names import rename
from tests.execution.world import World


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Four committed batches of a row each, and a backup of the checkpoint."""
    world = filled(World(tmp_path), 4)
    world.expire_leases()
    shutil.copytree(world.root / "checkpoint", world.root / "backup")
    return world


def restored(world: World) -> None:
    shutil.rmtree(world.root / "checkpoint")
    shutil.copytree(world.root / "backup", world.root / "checkpoint")


def saved_anew(world: World) -> None:
    shutil.rmtree(world.root / "backup")
    shutil.copytree(world.root / "checkpoint", world.root / "backup")


def went_on(world: World, count: int) -> Callable[[], None]:
    """The checkpoint is restored, and so many batches are made there."""

    def act() -> None:
        restored(world)
        for number in range(4, 4 + count):
            world.land(number)
            world.run(number)
        world.expire_leases()

    return act


def is_sound(world: World, count: int) -> None:
    """Each row is in the table once, and what comes next too."""
    world.land(count)
    world.run(count)
    assert world.table() == {number: [number] for number in range(count + 1)}
    assert [*verify_all(world.checkpoint), *check_sources(world.checkpoint)] == []


def test_a_rewind_takes_nothing_out_of_the_table_any_more(world: World, sleep: Sleep) -> None:
    sleep.before(DropOutput, "apply", went_on(world, 2))
    with pytest.raises(MaintenanceError, match="restored meanwhile"):
        applied(world, rewind(1))
    is_sound(world, 6)


@pytest.mark.parametrize("path", ["commits/3", "offsets/3", "offsets/2"])
def test_what_it_was_about_to_remove_and_is_the_same_file_again_is_put_back(
    world: World, sleep: Sleep, path: str
) -> None:
    sleep.before(PosixStore, "delete_if", lambda: restored(world), lambda _, name, data: name == path)
    with pytest.raises(MaintenanceError, match="restored meanwhile"):
        applied(world, rewind(1))
    assert world.checkpoint.commit_log.ids() == world.checkpoint.offset_log.ids() == [0, 1, 2, 3]


def is_stopped_and_then_repaired(world: World) -> None:
    with pytest.raises(MaintenanceError, match="restored from a backup"):
        applied(world, rewind(1))
    expire(world)
    applied(world)
    assert world.table() == {0: [0], 1: [1]}


@pytest.mark.parametrize(("saved", "asleep"), [(1, 2), (1, 7), (3, 4), (3, 7), (5, 6), (6, 7)])
def test_a_backup_of_the_middle_of_it_is_finished_by_repair_and_not_said_to_be_done(
    world: World, sleep: Sleep, saved: int, asleep: int
) -> None:
    """The backup is taken before one of its steps, and restored before a later one, or before its end."""
    looks = iter(range(1, 100))
    real, now = MaintenanceLog.is_held, [0]

    def is_held(log: MaintenanceLog, begun: Maintenance) -> bool:
        now[0] = next(looks)
        if now[0] == saved:
            saved_anew(world)
        if now[0] == asleep:
            restored(world)
        return real(log, begun)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MaintenanceLog, "is_held", is_held)
        is_stopped_and_then_repaired(world)
    for number in (4, 5):
        world.run(number)
    assert world.table() == {number: [number] for number in range(4)}
    assert verify_all(world.checkpoint) == []


def test_so_is_one_that_was_taken_within_a_step(world: World) -> None:
    """Its sign of life is in the backup already, and what the step writes is not."""
    real, held, looks = MaintenanceLog.hold, MaintenanceLog.is_held, list[bool]()

    def hold(log: MaintenanceLog, number: int, **named: bool) -> bool:
        held = real(log, number, **named)
        looks.append(True)
        if len(looks) == 4:  # before the second step
            saved_anew(world)
        return held

    def is_held(log: MaintenanceLog, begun: Maintenance) -> bool:
        if len(looks) == 5:  # after it
            looks.append(True)
            restored(world)
        return held(log, begun)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MaintenanceLog, "hold", hold)
        patch.setattr(MaintenanceLog, "is_held", is_held)
        is_stopped_and_then_repaired(world)


@pytest.mark.parametrize("asleep", ["maintenance/1-1-6", "maintenance/1-1-13", "1.end"])
def test_so_is_one_that_is_restored_while_it_gives_a_sign_of_life_or_ends(
    world: World, sleep: Sleep, asleep: str
) -> None:
    """It has seen its last sign of life, and sleeps before it puts the next one, or its end."""

    def is_at(name: str) -> Callable[..., bool]:
        return lambda store, path, data: path == name and "/maintenance" in store.location

    sleep.before(PosixStore, "put_if_absent", lambda: saved_anew(world), is_at("maintenance/1-1-4"))
    sleep.before(PosixStore, "put_if_absent", lambda: restored(world), is_at(asleep))
    with pytest.raises(MaintenanceError, match="restored from a backup"):
        applied(world, rewind(1))
    expire(world)
    applied(world)
    assert world.table() == {0: [0], 1: [1]}
    for number in (4, 5):
        world.run(number)
    assert world.table() == {number: [number] for number in range(4)}
    assert verify_all(world.checkpoint) == []


@pytest.mark.parametrize("asleep", ["sources/sales/2", "maintenance/1-1-5"])
def test_a_rename_moves_again_what_a_backup_has_put_back_within_its_step(
    world: World, sleep: Sleep, asleep: str
) -> None:
    """It has moved some of the source's log when the backup is taken, and more, or all, when that is restored."""
    first, later = "sources/orders/0", asleep
    sleep.before(PosixStore, "delete_if", lambda: saved_anew(world), lambda store, path, data: path == first)
    sleep.before(PosixStore, "put_if_absent", lambda: restored(world), lambda store, path, data: path == later)
    applied(world, rename())
    assert sorted(path.name for path in (world.root / "checkpoint/sources").glob("sales/*")) == ["0", "1", "2", "3"]
    assert not list((world.root / "checkpoint/sources").glob("orders/*"))
    world.sources = {"sales": world.sources["orders"]}
    is_sound(world, 4)


def test_a_command_that_comes_at_the_same_moment_does_not_stop_one_that_has_begun(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, holds = MaintenanceLog.hold, list[int]()

    def hold(log: MaintenanceLog, number: int, **named: bool) -> bool:
        held = real(log, number, **named)
        holds.append(number)
        if len(holds) == 3:
            # It saw no other, and slept until now.
            late = MaintenanceLog(PosixStore(world.root / "checkpoint/maintenance"))
            seen = iter([number - 1])
            monkeypatch.setattr(late, "check_none", lambda: next(seen, number))
            with pytest.raises(MaintenanceError, match="another command came first"):
                late.begin(command="another", by="somebody", started_ms=0, steps=[])
        return held

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MaintenanceLog, "hold", hold)
        applied(world, rewind(1))
    assert world.table() == {0: [0], 1: [1]}
    assert verify_all(world.checkpoint) == []


def test_a_position_is_not_set_any_more(world: World, sleep: Sleep) -> None:
    sleep.before(PosixStore, "put_if_absent", lambda: restored(world), lambda _, name, data: name == "offsets/4")
    with pytest.raises(MaintenanceError, match="restored meanwhile"):
        applied(world, to_the_first)
    is_sound(world, 4)


@pytest.mark.parametrize("name", ["put_if_absent", "delete_if"])
def test_a_rename_moves_nothing_any_more(world: World, sleep: Sleep, name: str) -> None:
    def is_at_the_log(_: PosixStore, path: str, data: bytes) -> bool:
        return path.startswith("sources/")

    sleep.before(PosixStore, name, lambda: restored(world), is_at_the_log)
    with pytest.raises(MaintenanceError, match="restored meanwhile"):
        applied(world, rename())
    assert not list((world.root / "checkpoint/sources").glob("sales/*"))
    is_sound(world, 4)


@pytest.mark.parametrize("wakes", ["allow", "end"])
def test_it_neither_begins_nor_ends_another_that_has_its_number_by_then(world: World, sleep: Sleep, wakes: str) -> None:
    begun = []

    def another_begins() -> None:
        restored(world)
        log = world.checkpoint.maintenance
        begun.append(log.begin(command="another", by="him@there", started_ms=1, steps=[]))

    sleep.before(MaintenanceLog, wakes, another_begins)
    with pytest.raises(MaintenanceError, match="restored meanwhile") if wakes == "allow" else nullcontext():
        applied(world, rewind(1))
    log = world.checkpoint.maintenance
    [other] = begun
    assert log.unfinished() == other
    assert log.allow(other, steps=False) is False, "nobody has decided for it"
