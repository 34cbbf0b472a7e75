"""Lanes of intervals that a table has, and its checkpoint, restored from a backup, does not know: no table forgets to
tell of them. (tests/execution/test_unknown_batches.py has the ways on.)"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from airflow_provider_microbatch.exceptions import ForeignBatchError
from airflow_provider_microbatch.execution.intervals import lane_of
from airflow_provider_microbatch.sinks import SinkContext
from airflow_provider_microbatch.upkeep.table_check import check_table
from tests.execution.intervals import IntervalWorld, hour
from tests.execution.maintaining import applied, expire_all, rewind
from tests.execution.two_tables import coded
from tests.support.table_systems import FilesIntoDelta, FilesIntoIceberg, FilesIntoPostgres

pytestmark = pytest.mark.slow

SYSTEMS = {"delta": FilesIntoDelta, "iceberg": FilesIntoIceberg, "postgres": FilesIntoPostgres}


@pytest.mark.parametrize("system_name", SYSTEMS)
def test_lanes_of_after_the_backup_are_not_read_again(
    tmp_path: Path, system_name: str, request: pytest.FixtureRequest
) -> None:
    if system_name == "postgres":
        request.getfixturevalue("postgres_server")
    system = SYSTEMS[system_name](tmp_path)
    world = IntervalWorld(tmp_path, sink=system.sink())

    def rows() -> Sequence[int]:
        return sorted(row["id"] for batches in system.published() for batch in batches.values() for row in batch)

    for number in range(4):
        world.land_at(number + 0.5, number)
    world.backfill(hour(0), 0, coded())
    shutil.copytree(world.root / "checkpoint", world.root / "backup")
    world.backfill(hour(1), 1, coded())
    shutil.rmtree(world.root / "checkpoint")
    (world.root / "backup").rename(world.root / "checkpoint")
    with pytest.raises(
        ForeignBatchError, match=r"restored from an older backup.*--to -1 --drop-output --lane"
    ) as error:
        world.run(2, coded())
    assert [one.message for one in check_table(world.checkpoint, everything=False).findings] == [str(error.value)]
    assert rows() == [0, 1]
    assert set(world.pipeline.sink.open(SinkContext()).lanes(world.checkpoint.tables) or ()) == {
        lane_of(hour(0)), lane_of(hour(1))
    }  # fmt: skip
    expire_all(world.root)
    applied(world, rewind(-1, lane=lane_of(hour(1))))
    world.run(3, coded())
    assert rows() == [0, 1, 2, 3]
