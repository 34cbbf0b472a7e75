"""What ``microbatch check`` says of a batch that is set aside."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import BatchSetAsideError, TransformError
from airflow_provider_microbatch.execution.set_aside import all_aside
from tests.execution.maintaining import applied
from tests.execution.test_set_aside import broken
from tests.execution.typed_commands import advised, said
from tests.execution.world import World


def test_check_names_it_until_it_has_run(tmp_path: Path) -> None:
    """Once its run is deleted, nothing else tells that its rows are in no table."""
    world = World(tmp_path, on_failure="set_aside", set_aside_after=2)
    world.land(1)
    world.run(0)
    world.land(2)
    with pytest.raises(TransformError):
        world.run(1, broken())
    with pytest.raises(BatchSetAsideError):
        world.run(2, broken())
    world.expire_leases()
    status, text = said(["check", world.pipeline.checkpoint, "--table"])
    assert status == 1
    assert "set aside: " in text
    assert "clear the batch's task of run 'run-1' of DAG 'orders' or run 'run-2' of DAG 'orders'" in text
    assert "1 finding (live: 2 planned, 2 committed; table: 1 of 1 asked for)" in text
    (words,) = advised(text, world)
    assert said(words)[0] == 0
    world.run(3)
    assert said(["check", world.pipeline.checkpoint, "--table"])[0] == 0
    assert world.table() == {0: [1], 1: [2]}


@pytest.mark.parametrize("how", ["torn", "missing", "answered by no attempt"])
def test_nor_is_it_forgotten_once_a_request_to_run_it_was_repaired(tmp_path: Path, how: str) -> None:
    """An answer in the place of the request would stand for rows that are in no table. Older versions gave it one."""
    world = World(tmp_path, on_failure="set_aside", set_aside_after=1, min_batches_to_retain=2)
    world.land(0)
    with pytest.raises(BatchSetAsideError):
        world.run(0, broken())
    for clear in (1, 2):
        with pytest.raises(TransformError):
            world.run(0, broken(), clear_number=clear)
    (request,) = tmp_path.glob("checkpoint/**/replays/live/0/1")
    if how == "torn":
        request.write_bytes(b"")
    elif how == "missing":
        request.unlink()
    else:
        world.checkpoint.replays.epochs.end(BatchKey("live", 0), 1, {"attempt": 0, "completed_ms": 1})
    world.expire_leases()
    said(["repair", world.pipeline.checkpoint])
    world.checkpoint.replays.withdraw(BatchKey("live", 0), 2, reason="its run is gone")
    for number in range(1, 5):
        world.land(number)
        world.run(number)
    world.expire_leases()
    world.janitor()
    status, text = said(["check", world.pipeline.checkpoint, "--table"])
    assert status == 1
    assert "batch live/0 failed too often and was set aside" in text
    world.run(0, clear_number=3)
    assert world.table() == {number: [number] for number in range(5)}


def test_a_table_that_is_away_while_a_request_is_repaired_does_not_say_that_it_lacks_the_batch(tmp_path: Path) -> None:
    """The clear was answered, and both entries are torn."""
    world = World(tmp_path, on_failure="set_aside", set_aside_after=1)
    world.land(0)
    with pytest.raises(BatchSetAsideError):
        world.run(0, broken())
    world.land(1)
    world.run(1)
    world.run(0, clear_number=1)
    for entry in tmp_path.glob("checkpoint/**/replays/live/0/1*"):
        entry.write_bytes(b"")
    world.expire_leases()
    world.lake.rename(tmp_path / "unmounted")
    world.lake.mkdir()
    (problem,) = applied(world).problems
    assert "nobody can tell now whether it was answered" in problem.what
    world.lake.rmdir()
    (tmp_path / "unmounted").rename(world.lake)
    assert applied(world).problems == ()
    assert all_aside(world.checkpoint, "live") == []
    assert said(["check", world.pipeline.checkpoint, "--table"])[0] == 0
    assert world.table() == {0: [0], 1: [1]}
