"""A table whose columns that say which batch a row is of are gone, or that was written anew by other partitions: no row
of it is doubled, and it is said."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.cli.main import main
from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.sinks.delta import DeltaSink
from airflow_provider_microbatch.sinks.iceberg.ledger import Ledger
from airflow_provider_microbatch.sinks.iceberg.opened import OpenIceberg
from tests.execution.typed_commands import said
from tests.execution.world import World
from tests.sinks.delta_stages import write_delta_stage
from tests.sinks.stages import batch_of, expect
from tests.sinks.test_iceberg_sink import publish, table
from tests.support.iceberg_table import opened_in

GONE = r"has batches, such as live/\d, and no column 'lane' and 'batch_id' any more"


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Three batches in a Delta table, which somebody has overwritten with its other columns."""
    world = World(tmp_path, sink=DeltaSink(str(tmp_path / "lake"), schema_policy="add_columns"))
    for number in range(3):
        world.land(number)
        world.run(number)
    write_deltalake(
        world.lake, DeltaTable(world.lake).to_pyarrow_table(columns=["id"]), mode="overwrite", schema_mode="overwrite"
    )
    return world


def ids(world: World) -> Sequence[int]:
    return sorted(DeltaTable(world.lake).to_pyarrow_table(columns=["id"]).column("id").to_pylist())


def test_a_delta_table_without_them_gets_no_batch_twice(world: World) -> None:
    with pytest.raises(SinkError, match=GONE):
        world.run(1, clear_number=1)
    world.land(3)
    with pytest.raises(SinkError, match=GONE):
        world.run(3)
    checkpoint = world.pipeline.checkpoint
    for words in (["check", checkpoint, "--table"], ["rewind", checkpoint, "--to", "1", "--drop-output"]):
        status, text = said(words)
        assert status != 0
        assert "no column 'lane' and 'batch_id' any more" in text
    assert ids(world) == [0, 1, 2]


def test_behind_a_restore_it_goes_on(world: World) -> None:
    found = DeltaTable(world.lake)
    found.restore(found.version() - 1)
    world.run(1, clear_number=1)
    world.land(3)
    world.run(3)
    assert main(["check", world.pipeline.checkpoint, "--table"]) == 0
    assert ids(world) == [0, 1, 2, 3]


def test_by_other_partitions_nothing_begins_that_would_stop_half_way(world: World) -> None:
    found = DeltaTable(world.lake)
    good = found.version() - 1
    found.restore(good)
    rows = DeltaTable(world.lake).to_pyarrow_table()
    write_deltalake(world.lake, rows, mode="overwrite", schema_mode="overwrite", partition_by=["batch_id"])
    told = r"is partitioned by \['batch_id'\] since version"
    world.land(3)
    for run in ((1, {"clear_number": 1}), (3, {})):
        with pytest.raises(SinkError, match=told):
            world.run(run[0], **run[1])
    checkpoint = world.pipeline.checkpoint
    for words in (["check", checkpoint, "--table"], ["rewind", checkpoint, "--to", "1", "--drop-output"]):
        status, text = said(words)
        assert status != 0
        assert re.search(told, text), text
    DeltaTable(world.lake).restore(good)
    world.run(1, clear_number=1)
    world.run(3)
    assert main(["check", checkpoint, "--table"]) == 0
    assert ids(world) == [0, 1, 2, 3]


def test_an_iceberg_table_without_them_gets_no_batch_twice(tmp_path: Path) -> None:
    sink: OpenIceberg = opened_in(tmp_path / "lake", schema_policy="add_columns")
    publish(sink, 6)
    with table(sink).update_schema(allow_incompatible_changes=True) as change:
        change.delete_column("lane").delete_column("batch_id")
    asked = expect(BatchKey("live", 6))
    write_delta_stage(sink, 2, batch=batch_of(asked.key))
    for doing in (sink.check, sink.check_whole, lambda: sink.replace(asked, 2), lambda: sink.withdraw(asked, 1)):
        with pytest.raises(SinkError, match=GONE):
            doing()
    assert len(table(sink).scan().to_arrow()) == 3


def test_an_iceberg_table_with_them_is_not_asked_for_all_its_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There may be 100,000, and it is asked between look and commit."""
    sink: OpenIceberg = opened_in(tmp_path / "lake")
    publish(sink, 6)
    monkeypatch.setattr(Ledger, "batches", lambda *_: pytest.fail("all batches were read"))
    sink.check_whole()
    publish(sink, 7)
    assert len(table(sink).scan().to_arrow()) == 6
