"""A table that is written in another form from now on: refused before anything is planned, with the ways on."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from airflow_provider_microbatch.cli.main import main
from airflow_provider_microbatch.exceptions import BatchSetAsideError, DefinitionError, SinkError
from airflow_provider_microbatch.execution import table_shape
from airflow_provider_microbatch.execution.intervals import lane_of
from airflow_provider_microbatch.execution.table_shape import OTHERS, check_shape
from airflow_provider_microbatch.sinks import SinkContext
from airflow_provider_microbatch.sinks.delta import DeltaSink
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sinks.merge import Merge
from airflow_provider_microbatch.sinks.several import Sinks
from airflow_provider_microbatch.stores.posix import PosixStore
from tests.execution.intervals import IntervalWorld, hour
from tests.execution.kept_tables import adopt, restored_and_planned_anew
from tests.execution.maintaining import applied, filled, rows
from tests.execution.world import CODE, KEY, World, run_identity
from tests.support.inline_engine import InlineEngine


def write(world: World, *, path: Path | None = None, **options: Any) -> None:
    """The definition of the DAG from now on."""
    world.options["sink"] = FileSink(str(path or world.lake), **{"format": "json", **options})


@pytest.mark.parametrize("options", [{"format": "csv"}, {"partition_by": ["day"]}], ids=["format", "partition_by"])
def test_what_readers_could_not_read_together_is_not_planned(tmp_path: Path, options: dict[str, Any]) -> None:
    world = filled(World(tmp_path), 2)
    world.land(2)
    write(world, **options)
    with pytest.raises(SinkError, match=f"was|were written with {next(iter(options))}="):
        world.run(2)
    assert world.checkpoint.offset_log.ids() == [0, 1]
    with pytest.raises(SinkError, match="Readers of"):
        world.run(1, clear_number=1)
    write(world)
    world.run(2)
    assert rows(world) == [0, 1, 2]


def test_nor_on_top_of_what_a_clear_has_put_there(tmp_path: Path) -> None:
    """The batch was first published when the pipeline named another table alone."""
    world = filled(World(tmp_path), 1)
    both = {
        "orders": FileSink(str(world.lake), format="json"),
        "daily": FileSink(str(tmp_path / "daily"), format="json"),
    }
    world.options["sink"] = Sinks(both)
    world.run(0, clear_number=1)
    world.land(1)
    world.options["sink"] = Sinks({**both, "daily": FileSink(str(tmp_path / "daily"), format="csv")})
    with pytest.raises(SinkError, match=r"Readers of .*daily could not read both"):
        world.run(1)


def test_nor_on_top_of_what_was_adopted(tmp_path: Path) -> None:
    """No attempt of this checkpoint has written it."""
    world = restored_and_planned_anew(tmp_path)
    applied(world, adopt(1))
    world.run(2)
    world.land(3)
    write(world, format="csv")
    with pytest.raises(SinkError, match="could not read both"):
        world.run(3)
    write(world)
    world.run(3)
    assert rows(world) == [1, 2, 3]


def test_nor_is_a_batch_continued_that_was_planned_before(tmp_path: Path) -> None:
    world = filled(World(tmp_path), 2)
    world.land(2)
    world.staged(2)
    world.expire_leases()
    write(world, format="csv")
    with pytest.raises(SinkError, match="could not read both"):
        world.run(2, try_number=2)
    write(world)
    world.run(2, try_number=3)
    assert rows(world) == [0, 1, 2]


def test_nor_after_a_batch_that_was_set_aside(tmp_path: Path) -> None:
    world = filled(World(tmp_path, on_failure="set_aside", set_aside_after=1), 2)
    world.land(2)
    with pytest.raises(BatchSetAsideError):
        world.run(2, InlineEngine(transform=lambda sources: 1 / 0))
    world.land(3)
    write(world, format="csv")
    with pytest.raises(SinkError, match="could not read both"):
        world.run(3)
    write(world)
    world.run(3)
    assert rows(world) == [0, 1, 3]


def test_nor_does_a_task_after_the_plan_write_it(tmp_path: Path) -> None:
    world = filled(World(tmp_path), 2)
    world.land(2)
    run = run_identity(2)
    planned = world.execution.plan(run)
    assert planned is not None
    write(world, format="csv")
    for key, by in ((planned.key, run), (KEY, run_identity(0, clear_number=1))):
        engine, execution = InlineEngine(), world.execution
        found = execution.look(key, by, engine_of=lambda name: None)
        attempt = execution.open_next(found, run=by, code=CODE, engine=engine)
        assert attempt is not None
        with pytest.raises(SinkError, match="could not read both"):
            execution.run_attempt(attempt=attempt, job=execution.job(attempt, None), engine=engine, code=CODE)
        assert engine.jobs == []
        world.expire_leases()
    write(world)
    world.run(2, try_number=2)
    world.run(0, clear_number=1, try_number=2)
    assert rows(world) == [0, 1, 2]


def test_a_lane_that_went_to_another_table_hides_none_that_did_not(tmp_path: Path) -> None:
    world = IntervalWorld(tmp_path)
    for number in (0, 1):
        if number == 1:
            write(world, path=tmp_path / "second")
        world.land_at(number + 0.5, number)
        world.backfill(hour(number), number)
    write(world, format="csv")
    world.land(7)
    with pytest.raises(SinkError, match=r"format='json'.* --lane interval-"):
        world.run(7)
    write(world)
    assert world.run(7) is not None
    write(world, path=tmp_path / "second", format="csv")
    world.land(8)
    with pytest.raises(SinkError, match="could not read both"):
        world.run(8)


def test_nor_does_the_address_from_which_the_table_was_moved(tmp_path: Path) -> None:
    world = filled(World(tmp_path), 2)
    world.land(2)
    moved = world.lake.rename(tmp_path / "moved")
    write(world, path=moved, format="csv")
    with pytest.raises(SinkError, match="could not read both"):
        world.run(2)


def test_the_lanes_that_are_looked_at_are_few_and_none_if_the_own_one_has_published(tmp_path: Path) -> None:
    world = filled(World(tmp_path), 2)
    listed: list[str] = []

    real = PosixStore.list

    def counting(store: PosixStore, folder: str) -> list[str]:
        listed.append(folder)
        return real(store, folder)

    def looked(lane: str) -> int:
        listed.clear()
        with mock.patch.object(PosixStore, "list", counting):
            check_shape(world.checkpoint, world.pipeline.sink, lane=lane)
        return len(listed)

    few = looked("live")
    lanes = [lane_of(hour(number)) for number in range(100)]
    for lane in lanes:
        (tmp_path / "checkpoint" / "lanes" / lane / "commits").mkdir(parents=True)
    assert looked("live") == few
    assert looked(lanes[50]) < few + 5
    write(world, path=tmp_path / "second")
    assert looked("live") < few + 4 * OTHERS


def test_nor_do_intervals_that_keep_failing_hide_those_that_were_published(tmp_path: Path) -> None:
    world = IntervalWorld(tmp_path, plan="interval")
    count = 2 * OTHERS
    world.land_at(0.5, 1)
    world.backfill(hour(0), 1)
    for number in range(1, count):
        (tmp_path / "checkpoint" / "lanes" / lane_of(hour(number)) / "commits").mkdir(parents=True)
    world.land_at(count + 0.5, 2)
    write(world, format="csv")
    with pytest.raises(SinkError, match="could not read both"):
        world.backfill(hour(count), 2)
    write(world)
    world.backfill(hour(count), 3)
    assert world.ids() == [1, 2]


def test_the_ways_on_that_the_error_names_lead_on(tmp_path: Path) -> None:
    world = filled(World(tmp_path), 2)
    write(world, options={"compression": "gzip"})
    world.land(2)
    world.run(2)
    write(world, path=tmp_path / "other", format="csv")
    world.land(3)
    assert world.run(3) is not None, "another table"
    world = filled(World(tmp_path / "second"), 2)
    write(world, format="csv")
    with pytest.raises(SinkError, match="rewind"):
        world.run(2)
    world.expire_leases()
    assert main(["rewind", str(world.root / "checkpoint"), "--to", "-1", "--drop-output"]) == 0
    assert world.run(2) is not None
    assert world.published() is not None


@pytest.mark.parametrize(
    "given",
    [{"merge": Merge(keys=("id",), sequence_by=("id",))}, {"partition_by": ("id",)}],
    ids=["changes", "partitions"],
)
def test_no_rewind_is_named_for_a_table_that_would_be_of_the_old_form_without_a_batch(
    tmp_path: Path, given: dict[str, Any]
) -> None:
    """Readers would find it empty, and no batch would ever go in again."""
    world = World(tmp_path, sink=DeltaSink(str(tmp_path / "lake")))
    world.land(0)
    world.run(0)
    sink = DeltaSink(str(tmp_path / "lake"), **given).open(SinkContext())
    looked = mock.patch.object(table_shape, "rewind_named", side_effect=AssertionError)  # at each batch of the lane
    with looked, pytest.raises(SinkError, match=r"could not read both\. Go on as before; or write to another table\.$"):
        check_shape(world.checkpoint, sink, lane="live")


def test_a_partition_column_whose_folders_spark_hides_is_refused() -> None:
    with pytest.raises(DefinitionError, match=r"'\.day': Spark reads no folder"):
        FileSink("/lake", partition_by=(".day",))
