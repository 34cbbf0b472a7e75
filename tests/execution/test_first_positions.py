"""Where a source's first batch begins is as durable as any other position."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from acme_microbatch.polled_queue import PolledQueue

from airflow_provider_microbatch.exceptions import MaintenanceError
from airflow_provider_microbatch.upkeep.commands.set_offset import plan_set_offset
from tests.execution.maintaining import Make, applied, planned, rewind
from tests.execution.world import KEY, World, run_identity
from tests.support.inline_engine import InlineEngine


class Queued(World):
    """A pipeline of a queue that is polled, and begins where ``first`` says."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch, **pipeline: Any) -> None:
        super().__init__(root, **pipeline)
        self.first = 0
        self.sources["orders"] = PolledQueue(str(root / "queue"))  # type: ignore[assignment]
        monkeypatch.setattr(PolledQueue, "initial_offset", lambda _: {"n": self.first})

    def append(self, *ids: int) -> None:
        with (self.root / "queue").open("a") as queue:
            queue.writelines(f'[{{"id": {id}}}]\n' for id in ids)


def set_offset(offset: str | None, *, allow_skip: bool = False) -> Make:
    return partial(
        plan_set_offset, lane="live", source="orders", offset=offset, allow_skip=allow_skip, allow_reread=True
    )  # fmt: skip


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Queued:
    return Queued(tmp_path, monkeypatch)


def test_the_first_batch_begins_where_the_source_said_and_its_replay_does_too(world: Queued) -> None:
    world.append(1, 2, 3)
    world.first = 1
    world.run(1)
    assert world.table() == {0: [2, 3]}
    world.first = 0
    engine = InlineEngine()
    world.run(1, engine, clear_number=1)
    assert [job.sources["orders"].arguments["start"] for job in engine.jobs] == [{"n": 1}]
    assert world.table() == {0: [2, 3]}


def test_a_source_that_had_nothing_new_keeps_its_first_position(world: Queued, tmp_path: Path) -> None:
    world.sources["other"] = PolledQueue(str(tmp_path / "other"))  # type: ignore[assignment]
    (tmp_path / "other").write_text('[{"id": 9}]\n[{"id": 10}]\n')
    world.append(1)
    world.first = 1  # the newest of the one, the middle of the other
    world.run(1)
    assert world.table() == {0: [10]}
    entry = world.checkpoint.offset_log.get(KEY.id)
    assert entry is not None
    assert (entry.starts["orders"], entry.ends["orders"]) == ('{"n": 1}', '{"n": 1}')
    world.first = 0
    world.append(2)
    world.run(2)
    assert world.table() == {0: [10], 1: [2]}


def test_a_source_that_begins_at_its_newest_data_has_its_first_position_from_the_first_batch_on(world: Queued) -> None:
    world.append(1)
    world.first = 1
    assert world.execution.should_fire(run_identity(1)).fire, "nothing is new, and it has no position yet"
    world.run(1)
    assert world.table() in ({}, {0: []})
    assert not world.execution.should_fire(run_identity(2)).fire
    world.append(2)
    world.first = 2  # where it would begin by now
    assert world.execution.should_fire(run_identity(2)).fire
    world.run(2)
    assert world.table()[1] == [2]


def test_a_rewind_to_before_the_first_batch_loses_nothing_that_a_source_would_begin_behind(world: Queued) -> None:
    """One that answers with its newest data began there: what was in the table, and what came since, was in none."""
    world.append(1)
    world.first = 1
    world.run(1)
    world.append(2, 3)
    world.run(2)
    world.first = 3
    told = r"source 'orders' begins at \{\"n\": 3\} by now, and its first batch .* at \{\"n\": 1\}: .*Nothing was done"
    with pytest.raises(MaintenanceError, match=told):
        applied(world, rewind(-1))
    assert "lost to the table: source 'orders' begins" in " ".join(planned(world, rewind(-1, allow_skip=True)).notes)
    world.first = 0  # before it: nothing is lost
    applied(world, rewind(-1))
    world.expire_leases()
    applied(world, set_offset('{"n": 1}', allow_skip=True))
    world.run(3)
    applied(world, rewind(-1))
    for number in (4, 5):
        world.run(number)
    assert sorted(id for ids in world.table().values() for id in ids) == [1, 2, 3]


@pytest.mark.parametrize("to", [-1, 0])
def test_nor_does_one_lose_what_a_source_had_that_came_later(world: Queued, tmp_path: Path, to: int) -> None:
    """The entry that stays has no position of it either."""
    world.append(1)
    world.run(1)
    (tmp_path / "other").write_text('[{"id": 9}]\n')
    world.sources["other"] = PolledQueue(str(tmp_path / "other"))  # type: ignore[assignment]
    world.run(2)
    assert world.table() == {0: [1], 1: [9]}
    world.first = 1
    with pytest.raises(MaintenanceError, match=rf"begins at .* by now, and its first batch behind live/{to} began at"):
        applied(world, rewind(to))
    world.first = 0
    applied(world, rewind(to))
    for number in (3, 4):
        world.run(number)
    assert sorted(id for ids in world.table().values() for id in ids) == [1, 9]


def test_a_position_that_is_set_to_the_beginning_skips_nothing_that_is_unread(world: Queued) -> None:
    world.append(1)
    world.run(1)
    world.append(2, 3)
    world.expire_leases()
    world.first = 3
    with pytest.raises(MaintenanceError, match=r"after \{\"n\": 1\} up to \{\"n\": 3\}.* would never be read"):
        applied(world, set_offset(None))
    world.first = 0
    assert "read again: source 'orders' after its beginning" in " ".join(applied(world, set_offset(None)).notes)
