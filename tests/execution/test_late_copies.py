"""A rename that sleeps, or gets no answer, while it is given up and taken back: its copies are neither lost nor taken
for a source's own log."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_microbatch.exceptions import CheckpointError, MaintenanceError, SourceRenamedError
from airflow_provider_microbatch.sources.file import FileSource
from airflow_provider_microbatch.stores.posix import PosixStore
from airflow_provider_microbatch.upkeep.commands.rename_source import plan_add_source
from tests.execution.maintaining import applied, applier, checkpoint_files, expire
from tests.execution.test_rename_given_up import RENAME, batches, called, is_sound
from tests.execution.world import World


@pytest.mark.parametrize("number", [0, 1])
def test_of_two_that_move_a_file_to_and_fro_the_last_sees_that_it_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """The rename sleeps before it deletes the file under the old name, until the repair is about to delete the one
    under the new name: both have seen the other one."""
    world = batches(tmp_path)
    before = checkpoint_files(world.root / "checkpoint")
    sleeper: list[object] = []
    real = PosixStore.delete_if

    def delete_if(store: PosixStore, path: str, data: bytes) -> bool:
        if path == f"sources/orders/{number}" and not sleeper:
            sleeper.append(path)
            expire(world)
            applier(world).give_up(by="me@here")
            applied(world)
            return False
        if path == f"sources/sales/{number}" and len(sleeper) == 1:
            # The sleeper's delete comes here, after its look whether the command is over; it sees this copy.
            sleeper.append(path)
            assert real(store, f"sources/orders/{number}", data)
        return real(store, path, data)

    monkeypatch.setattr(PosixStore, "delete_if", delete_if)
    with pytest.raises(MaintenanceError):
        applied(world, RENAME)
    assert len(sleeper) == 2
    assert checkpoint_files(world.root / "checkpoint") == before
    world.land(2)
    world.run(2)
    is_sound(world)


@pytest.mark.parametrize("was_done", [True, False], ids=["done", "not done"])
@pytest.mark.parametrize("name", ["put_if_absent", "delete_if"])
def test_a_late_change_without_an_answer_leaves_the_file_where_the_repair_has_put_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, was_done: bool
) -> None:
    """The rename sleeps in the change until it is given up and repaired; then the store gives no answer."""
    world = batches(tmp_path)
    before = checkpoint_files(world.root / "checkpoint")
    slept: list[str] = []
    real = getattr(PosixStore, name)
    of = "sales" if name == "put_if_absent" else "orders"

    def no_answer(store: PosixStore, path: str, data: bytes) -> bool:
        if path == f"sources/{of}/0" and not slept:
            slept.append(path)
            expire(world)
            applier(world).give_up(by="me@here")
            applied(world)
            if was_done:
                real(store, path, data)
            raise CheckpointError("no answer")
        return bool(real(store, path, data))

    monkeypatch.setattr(PosixStore, name, no_answer)
    with pytest.raises(MaintenanceError, match="no answer"):
        applied(world, RENAME)
    assert slept
    assert checkpoint_files(world.root / "checkpoint") == before
    applied(world, RENAME)
    called(world, "sales")
    world.land(2)
    world.run(2)
    is_sound(world)


def with_a_late_copy(tmp_path: Path) -> World:
    """The process died right after its late put."""
    world = batches(tmp_path)
    log = world.root / "checkpoint/sources"
    (log / "sales").mkdir()
    (log / "sales/0").write_bytes((log / "orders/0").read_bytes())
    return world


def test_a_name_that_has_but_a_copy_of_another_log_is_not_known_and_can_be_renamed_to(tmp_path: Path) -> None:
    world = with_a_late_copy(tmp_path)
    called(world, "sales")
    world.land(2)
    before = world.files()
    with pytest.raises(SourceRenamedError, match="rename-source"):
        world.run(2)
    assert world.files() == before
    applied(world, RENAME)
    world.run(2)
    is_sound(world)


def test_a_name_that_has_but_a_copy_of_another_log_can_be_said_to_be_new(tmp_path: Path) -> None:
    world = with_a_late_copy(tmp_path)
    world.sources = {"sales": FileSource(str(world.landing("sales")), schema="id long")}
    world.land(7, source="sales")
    with pytest.raises(SourceRenamedError, match="add-source"):
        world.run(2)
    applied(world, lambda drafting: plan_add_source(drafting, name="sales"))
    world.run(2)
    assert world.table() == {0: [0], 1: [1], 2: [7]}
