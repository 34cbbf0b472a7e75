"""A rename that sleeps, or gets no answer, while it is given up and taken back: its copies are neither lost nor taken
for a source's own log."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_microbatch.exceptions import MaintenanceError
from airflow_provider_microbatch.stores.posix import PosixStore
from tests.execution.maintaining import applied, applier, checkpoint_files, expire
from tests.execution.test_rename_given_up import RENAME, batches, is_sound


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
