"""A batch that was cut off between two tables, once the pipeline names the second one alone: taken out of the first
one, it would be made again without it."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pytest

from airflow_provider_microbatch.exceptions import MaintenanceError, SinkError
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sinks.several import OpenSinks
from tests.execution.maintaining import applied, expire_all, rewind
from tests.execution.test_sinks_in_force import Told
from tests.execution.two_tables import is_clean
from tests.execution.typed_commands import advised


def batches(world: Told, table: str) -> list[int]:
    return sorted(int(one.name.partition("=")[2]) for one in (world.root / table).glob("lane=live/batch_id=*"))


def cut_off(world: Told) -> int:
    """Batch 1 is in the first table, and not in the second; returns its run."""
    world.live("a b")
    world.name("a b")
    number = world.lands()
    full = mock.patch.object(OpenSinks, "_follow", side_effect=SinkError("the disk is full"))
    with full, pytest.raises(SinkError, match="the disk is full"):
        world.run(number)
    assert (batches(world, "a"), batches(world, "b")) == ([0, 1], [0])
    expire_all(world.root)
    return number


def test_it_is_finished_there_and_no_rewind_is_named_that_would_lose_it(tmp_path: Path) -> None:
    world = Told(tmp_path)
    number = cut_off(world)
    world.name("b")
    with pytest.raises(SinkError, match=r"live/1 was published to \S+a, and is there.* Name the old table") as refused:
        world.run(number)
    assert advised(str(refused.value), world) == []
    expire_all(tmp_path)
    with pytest.raises(MaintenanceError, match=r"batch live/1 is in \S+a, .* with --allow-skip"):
        applied(world, rewind(0))
    world.name("a b")
    world.run(number)
    assert batches(world, "a") == batches(world, "b") == [0, 1]
    assert is_clean(world)


def test_it_is_lost_there_by_word_alone(tmp_path: Path) -> None:
    world = Told(tmp_path)
    number = cut_off(world)
    world.name("b")
    with pytest.raises(SinkError):
        world.run(number)
    expire_all(tmp_path)
    assert applied(world, rewind(0, allow_skip=True)).steps
    world.run(number + 1)
    assert (batches(world, "a"), batches(world, "b")) == ([0], [0, 1])


def test_one_that_got_nowhere_is_in_no_way(tmp_path: Path) -> None:
    world = Told(tmp_path)
    world.live("a b")
    number = world.lands()
    for names in ("a b", "b"):
        world.name(names)
        full = mock.patch.object(FileSink, "publish", side_effect=SinkError("the disk is full"))
        with full, pytest.raises(SinkError, match="the disk is full"):
            world.run(number)
        expire_all(tmp_path)
    applied(world, rewind(0))
    assert world.checkpoint.offset_log.ids() == [0]
