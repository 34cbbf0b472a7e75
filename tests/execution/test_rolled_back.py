"""A branch of an Iceberg table that somebody has rolled back: what a check says of it, and what a rewind does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from airflow_provider_microbatch import connections
from airflow_provider_microbatch.exceptions import RolledBackError, SinkError
from airflow_provider_microbatch.upkeep.table_check import check_table
from tests.execution.maintaining import applied, checkpoint_files, expire_all, rewind
from tests.execution.test_branches import rows, table
from tests.execution.world import World
from tests.support.iceberg_table import connection_of, sink_in

pytestmark = pytest.mark.slow  # many tables are made by libraries of their own


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """Four batches of one row each, of two sources in turn."""
    folder = tmp_path / "lake"
    monkeypatch.setattr(connections, "_found_by", [lambda _: connection_of(folder)])
    world = World(tmp_path, sources=("orders", "more"), sink=sink_in(folder))
    for number, source in enumerate(("orders", "more", "orders", "more")):
        world.land(number, source=source)
        world.run(number)
    return world


def set_back(world: World, snapshot: int) -> None:
    """:param snapshot: its place among those that there are; each batch has one."""
    id = table(world).metadata.snapshots[snapshot].snapshot_id
    table(world).manage_snapshots().set_current_snapshot(snapshot_id=id).commit()


def is_to_stay(world: World) -> None:
    """Somebody says so, as the error names it."""
    with table(world).transaction() as change:
        change.remove_properties("microbatch.last.main")


def test_a_rewind_beside_rows_that_came_back_is_refused_before_anything_is_done(world: World) -> None:
    """It had the rows of batch 2 read again, and those of batch 3 were in the table for good, beside a batch that has
    them too."""
    applied(world, rewind(1))
    world.run(5)
    assert rows(world) == [0, 1, 2, 3]
    set_back(world, 3)
    is_to_stay(world)
    told = {finding.message: finding.repair for finding in check_table(world.checkpoint, everything=True).findings}
    (back,) = (message for message in told if "live/3" in message)
    assert "Do that before all else" in told[back]
    before = checkpoint_files(world.root / "checkpoint")
    for refused in (lambda: applied(world, rewind(1)), world.execution.check):
        with pytest.raises(SinkError) as error:
            refused()
        assert str(error.value) == back
    assert checkpoint_files(world.root / "checkpoint") == before
    (condition,) = re.findall(r"DELETE FROM \S+ WHERE (.*?)\), then", back)
    table(world).delete(condition)
    expire_all(world.root)
    applied(world, rewind(1))
    world.run(6)
    assert rows(world) == [0, 1, 2, 3]
    assert check_table(world.checkpoint, everything=True).findings == []


def test_where_no_batch_can_be_taken_out_a_rewind_does_nothing(world: World) -> None:
    """The rollback has passed over nothing but a batch that had been taken out. Check was clean, each run was refused,
    and a rewind stopped half way."""
    applied(world, rewind(2))
    set_back(world, 2)
    (finding,) = check_table(world.checkpoint, everything=True).findings
    assert "whose batches had all been taken out again" in finding.message
    before = checkpoint_files(world.root / "checkpoint")
    for refused in (lambda: applied(world, rewind(1)), world.execution.check):
        with pytest.raises(RolledBackError) as error:
            refused()
        assert str(error.value) == finding.message
    assert checkpoint_files(world.root / "checkpoint") == before
    is_to_stay(world)
    assert check_table(world.checkpoint, everything=True).findings == []
    applied(world, rewind(1))
    world.run(4)
    assert rows(world) == [0, 1, 2, 3]
