"""Adopted output is where it was found: it counts like what an attempt has published there, once the pipeline names
another table."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from airflow_provider_microbatch import settings
from airflow_provider_microbatch.definition import class_path
from airflow_provider_microbatch.exceptions import MaintenanceError, SinkError
from airflow_provider_microbatch.settings import Settings
from airflow_provider_microbatch.sinks.delta import DeltaSink
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sinks.several import Sinks
from tests.execution.kept_tables import adopt, planned_where_another_is, refused, restored_and_planned_anew
from tests.execution.maintaining import applied, expire_all
from tests.execution.test_lost_in_table import restore, table
from tests.execution.two_tables import is_clean, read
from tests.execution.typed_commands import advised
from tests.execution.world import World, run_identity
from tests.support.inline_engine import InlineEngine


@dataclass(frozen=True)
class Ours(FileSink):
    """A class of the company's own."""


def adopting(tmp_path: Path, *, moved: bool = True) -> World:
    """Somebody has just declared what the table has under number 1 to be batch 1; then the table's path is changed."""
    world = restored_and_planned_anew(tmp_path)
    applied(world, adopt(1))
    if moved:
        world.options["sink"] = FileSink(str(tmp_path / "moved"), format="json")
    return world


def adopted(tmp_path: Path) -> World:
    """A run has committed that before the path is changed."""
    world = adopting(tmp_path, moved=False)
    world.run(2, try_number=2)
    assert world.table() == {0: [1], 1: [2]}
    world.options["sink"] = FileSink(str(tmp_path / "moved"), format="json")
    return world


def test_it_is_not_replayed_into_another_table(tmp_path: Path) -> None:
    world = adopted(tmp_path)
    world.land(3)
    world.run(3)
    with pytest.raises(SinkError, match=r"batch live/1 was published to .*orders, and is there"):
        world.run(2, clear_number=1)
    assert (world.table(), sorted(read(tmp_path / "moved"))) == ({0: [1], 1: [2]}, [2])


def test_nor_is_the_batch_made_there_before_a_run_has_committed_it(tmp_path: Path) -> None:
    world = adopting(tmp_path)
    with pytest.raises(SinkError, match=r"batch live/1 was published to .*orders, and is there"):
        world.run(2, try_number=2)
    assert read(tmp_path / "moved") == {}
    shutil.rmtree(world.lake / "lane=live" / "batch_id=1")
    world.run(2, try_number=3)
    assert sorted(read(tmp_path / "moved")) == [1]


def test_nor_while_nobody_can_ask_the_table_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = adopting(tmp_path)
    entry = tmp_path / "only" / "checkpoint" / "adopted" / "live" / "1"
    entry.write_text(entry.read_text().replace(class_path(FileSink), class_path(Ours)))
    with monkeypatch.context() as patch:
        patch.setattr(settings, "_given", Settings)
        with pytest.raises(SinkError, match=r"batch live/1 was made for another table before.* Nobody has looked: "):
            world.run(2, try_number=2)
    assert read(tmp_path / "moved") == {}


def test_a_run_that_was_refused_stops_not_the_next_ones(tmp_path: Path) -> None:
    """Nothing was published by the refused attempt, whose table is not there yet: it is not away."""
    world = adopting(tmp_path)
    before, moved = FileSink(str(world.lake), format="json"), world.options["sink"]
    with pytest.raises(SinkError, match=r"batch live/1 was published to .*orders, and is there"):
        world.run(2, try_number=2)
    expire_all(tmp_path)
    world.options["sink"] = before
    world.run(2, try_number=3)
    world.options["sink"] = moved
    world.land(3)
    world.run(3)
    assert sorted(read(tmp_path / "moved")) == [2]


def only(world: World, *names: str) -> None:
    """The pipeline writes to these tables from now on."""
    tables = {name: FileSink(str(world.lake.parent / name), format="json") for name in names}
    world.options["sink"] = Sinks(tables) if len(tables) > 1 else tables[names[0]]
    expire_all(world.root.parent)


def rows_of(world: World, name: str) -> list[int]:
    return sorted(row for rows in read(world.lake.parent / name).values() for row, _ in rows)


@pytest.mark.parametrize("beside", ["a table", "dead letters"])
def test_nothing_takes_its_place_for_a_table_that_is_named_since(tmp_path: Path, beside: str) -> None:
    world = planned_where_another_is(tmp_path)
    refused(world, 0)
    applied(world, adopt(0, allow_skip=True))
    letters = FileSink(str(tmp_path / "letters"), format="json")
    if beside == "a table":
        only(world, "orders", "daily")
    else:
        world.options["dead_letters"] = letters
    engine = InlineEngine()
    with pytest.raises(SinkError, match=r"adopted in \S+orders, and not in \S+(daily|letters): .*Name \S+orders"):
        world.run(0, engine)
    assert (engine.jobs, rows_of(world, "orders")) == ([], [1])
    del world.options["dead_letters" if beside == "dead letters" else "sink"]
    only(world, "orders")
    world.run(0, try_number=2)
    if beside == "a table":
        only(world, "orders", "daily")
    else:
        world.options["dead_letters"] = letters
    world.land(9)
    world.run(1)
    assert rows_of(world, "orders") == [1, 9]
    assert is_clean(world)


def test_what_is_in_one_of_two_tables_is_adopted_where_that_is_named_alone(tmp_path: Path) -> None:
    world = planned_where_another_is(tmp_path)
    only(world, "orders", "daily")
    refused(world, 0)
    with pytest.raises(MaintenanceError, match=r"is in \S+orders alone, .*Name \S+orders for this batch, and no other"):
        applied(world, adopt(0, allow_skip=True))
    only(world, "orders")
    refused(world, 0)
    applied(world, adopt(0, allow_skip=True))
    world.run(0, try_number=2)
    only(world, "orders", "daily")
    world.land(9)
    world.run(1)
    assert (rows_of(world, "orders"), rows_of(world, "daily")) == ([1, 9], [9])
    assert is_clean(world)


@pytest.fixture
def of_both(tmp_path: Path) -> World:
    """Batch 2 is what a copy of the checkpoint had published to both tables. The pipeline names one of these now."""
    lake, orders = DeltaSink(str(tmp_path / "lake")), FileSink(str(tmp_path / "orders"), format="json")
    world = World(tmp_path, sink=Sinks({"lake": lake, "orders": orders}))
    for number in (0, 1):
        world.land(number)
        world.run(number)
        if number == 0:
            shutil.copytree(world.lake, tmp_path / "backup")
    world.land(2)
    checkpoint, kept, copy = (tmp_path / name for name in ("checkpoint", "kept", "copy"))
    shutil.copytree(checkpoint, copy)
    world.execution.plan(run_identity(2))
    checkpoint.rename(kept)
    copy.rename(checkpoint)
    world.run(2)
    shutil.rmtree(checkpoint)
    kept.rename(checkpoint)
    applied(world, adopt(2))
    world.run(2)
    world.options["sink"] = lake
    return world


@pytest.mark.slow
def test_nor_is_it_replayed_in_one_of_two_tables_that_have_it(of_both: World) -> None:
    """The other one would have it as it was before."""
    told = r"batch live/2 was published to .*orders, and is there.* Name .*orders and .*lake for this batch, and no oth"
    with pytest.raises(SinkError, match=told):
        of_both.run(2, clear_number=1)


@pytest.mark.slow
def test_what_one_of_them_has_lost_comes_back_there_alone(of_both: World) -> None:
    """A rewind would take it out of the other one for good."""
    restore(of_both)
    of_both.land(3)
    with pytest.raises(SinkError, match=r"batch live/2 is committed, and .*lake does not know it") as told:
        of_both.run(3)
    assert advised(str(told.value), of_both) == []
    for number in (1, 2):
        of_both.run(number, clear_number=1)
    of_both.run(3, try_number=2)
    assert table(of_both) == {0: [0], 1: [1], 2: [2], 3: [3]}
    assert sorted(read(of_both.root / "orders")) == [0, 1, 2]
