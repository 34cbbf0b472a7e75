"""A rewind takes no batch that several tables got together out of one that the pipeline names no more: nothing would
put it back there. So no message names such a rewind, and one that somebody types all the same is refused."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from airflow_provider_microbatch import settings
from airflow_provider_microbatch.exceptions import BatchSetAsideError, MaintenanceError, SinkError, SourceError
from airflow_provider_microbatch.execution.intervals import lane_of
from airflow_provider_microbatch.settings import Settings
from airflow_provider_microbatch.sinks import ExpectedBatch, Manifest, Sink
from airflow_provider_microbatch.sinks.delta import DeltaSink
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sinks.several import Sinks
from airflow_provider_microbatch.upkeep.commands.steps import DropOutput
from tests.execution.intervals import IntervalWorld, hour
from tests.execution.maintaining import applied, expire_all, planned, rewind
from tests.execution.test_dead_letters import refusing
from tests.execution.test_lost_behind_a_class import Ours
from tests.execution.test_lost_in_table import restore, table
from tests.execution.two_tables import read
from tests.execution.typed_commands import advised, said
from tests.execution.world import World
from tests.support.inline_engine import InlineEngine

pytestmark = pytest.mark.slow  # the tables are made by libraries of their own


@dataclass(frozen=True)
class Kept(FileSink):
    """Files out of which no batch can be taken, as out of a topic."""

    can_withdraw = False


@dataclass(frozen=True)
class Replaced(FileSink):
    """Files that each batch replaces, as it does in a table of ``mode="create_or_replace"``."""

    can_withdraw = False
    keeps_batches = False


@dataclass(frozen=True)
class Mistyped(FileSink):
    """Files on a server that does not answer."""

    def contains(self, batch: ExpectedBatch) -> Manifest | None:
        raise SinkError(f"{self.location()} cannot be reached")


def sink_of(root: Path, names: str) -> Sink:
    """The sink of these tables; that of the lake is a Delta table, which remembers what it had."""
    sinks: dict[str, Sink] = {"lake": DeltaSink(str(root / "lake"))}
    sinks |= {one.__name__.lower(): one(str(root / one.__name__), format="json") for one in (Kept, Replaced)}
    chosen = {one: sinks.get(one) or FileSink(str(root / one), format="json") for one in names.split()}
    return Sinks(chosen) if len(chosen) > 1 else chosen[names]


def run(world: World, number: int, names: str) -> None:
    world.options["sink"] = sink_of(world.root, names)
    world.land(number)
    world.run(number)


def lost(root: Path, *named: str) -> World:
    """A pipeline that named these tables, one batch after the other. The lake was put back to after the first."""
    world = World(root)
    for number, names in enumerate(named):
        run(world, number, names)
        if number == 0:
            shutil.copytree(world.lake, root / "backup")
    restore(world)
    return world


@pytest.mark.parametrize(
    "named",
    [("lake", "lake orders", "lake", "lake"), ("lake", "lake", "third orders", "lake orders")],
    ids=["of a batch between", "of a later one, to which the table was left out"],
)
def test_none_is_named_for_what_is_lost(tmp_path: Path, named: tuple[str, ...]) -> None:
    world = lost(tmp_path, *named[:-1])
    with pytest.raises(SinkError, match="does not know it") as told:
        run(world, 3, named[-1])
    assert advised(str(told.value), world) == []
    with pytest.raises(MaintenanceError, match=r"is in .*, and was published together .*--allow-skip"):
        planned(world, rewind(0))


@pytest.mark.parametrize(
    "named", [("lake", "kept", "lake", "lake kept"), ("lake replaced",) * 4], ids=["of one between", "of the newest"]
)
def test_nor_where_one_stays_in_its_table(
    tmp_path: Path, named: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "_given", lambda: Settings(trusted_modules=(__name__,)))
    world = lost(tmp_path, *named[:-1])
    with pytest.raises(SinkError, match="does not know it") as told:
        run(world, 3, named[-1])
    assert advised(str(told.value), world) == []
    with pytest.raises(MaintenanceError, match="which no batch can be taken out of"):
        planned(world, rewind(0))


def test_nor_by_a_clear_that_is_refused_for_a_third_table(tmp_path: Path) -> None:
    world = World(tmp_path)
    run(world, 0, "orders")
    run(world, 1, "lake third")
    world.options["sink"] = sink_of(tmp_path, "lake")
    with pytest.raises(SinkError, match=r"batch live/0 was published to .*orders, and is there") as told:
        world.run(0, clear_number=1)
    assert advised(str(told.value), world) == []


def test_nor_for_dead_letters_that_are_sent_nowhere_any_more(tmp_path: Path) -> None:
    world = World(tmp_path, sink=sink_of(tmp_path, "lake orders"), dead_letters=sink_of(tmp_path, "letters"))
    for number in (0, 1):
        world.land(number, number + 2)
        world.run(number, refusing({0: None, 1: None, 2: None, 3: "dead_letter"}))
        if number == 0:
            shutil.copytree(world.lake, tmp_path / "backup")
    world.options |= {"dead_letters": None, "sink": sink_of(tmp_path, "lake")}
    restore(world)
    with pytest.raises(SinkError, match="batch live/1 has its dead letters in ") as told:
        world.run(1, clear_number=1)
    assert advised(str(told.value), world) == []


def test_nor_by_a_change_of_form(tmp_path: Path) -> None:
    world = World(tmp_path)
    run(world, 0, "orders")
    run(world, 1, "lake orders")
    world.options["sink"] = FileSink(str(tmp_path / "orders"), format="csv")
    with pytest.raises(SinkError, match=r"Readers of .*orders could not read both") as told:
        world.run(2)
    assert advised(str(told.value), world) == []


def test_nor_by_check(tmp_path: Path) -> None:
    world = lost(tmp_path, "lake orders", "lake orders")
    with pytest.raises(SinkError, match="does not know it"):
        run(world, 2, "lake")
    world.expire_leases()
    status, told = said(["check", world.pipeline.checkpoint, "--table"])
    assert (status, advised(told, world)) == (1, [])


def test_nor_of_an_interval(tmp_path: Path) -> None:
    """The next one is refused for what the lake has lost, and has left the other table out."""
    world = IntervalWorld(tmp_path)
    for number, names in enumerate(["lake orders", "lake orders", "lake"]):
        world.options["sink"] = sink_of(tmp_path, names)
        world.land_at(number + 0.5, number)
        if number == 2:
            restore(world)
            with pytest.raises(SinkError, match="does not know it") as refused:
                world.backfill(hour(number), number)
            assert advised(str(refused.value), world) == []
        else:
            world.backfill(hour(number), number)
        if number == 0:
            shutil.copytree(world.lake, tmp_path / "backup")
    expire_all(tmp_path)
    status, told = said(["check", world.pipeline.checkpoint, "--table"])
    assert (status, advised(told, world)) == (1, [])
    with pytest.raises(MaintenanceError, match=r"/0 is in .*orders, and was published together"):
        planned(world, rewind(-1, lane=lane_of(hour(1))))


def test_once_both_are_named_again_it_is_taken_out_of_both(tmp_path: Path) -> None:
    """The checkpoint was put back to before a batch that both have, and the pipeline names one of them."""
    world = World(tmp_path)
    run(world, 0, "lake orders")
    shutil.copytree(tmp_path / "checkpoint", tmp_path / "kept")
    run(world, 1, "lake orders")
    shutil.rmtree(tmp_path / "checkpoint")
    (tmp_path / "kept").rename(tmp_path / "checkpoint")
    expire_all(tmp_path)
    with pytest.raises(SinkError, match="is another one than"):
        run(world, 2, "lake")
    with pytest.raises(MaintenanceError, match=r"batch live/1 is in .*orders, and was published together"):
        planned(world, rewind(0))
    with pytest.raises(SinkError, match="is another one than"):
        run(world, 3, "lake orders")
    applied(world, rewind(0))
    run(world, 4, "lake orders")
    for rows in (table(world), read(tmp_path / "orders")):
        assert [len(rows[number]) for number in sorted(rows)] == [1, 4]


def test_or_is_given_up_there_by_word(tmp_path: Path) -> None:
    """One that was set aside before it is to run again, and its run is gone."""
    world = World(tmp_path, on_failure="set_aside", set_aside_after=1)
    run(world, 0, "lake")
    world.land(1)
    with pytest.raises(BatchSetAsideError):
        world.run(1, InlineEngine(transform=lambda sources: 1 / 0))  # type: ignore[arg-type, return-value]
    run(world, 2, "lake orders")
    run(world, 3, "lake")
    expire_all(tmp_path)
    with pytest.raises(MaintenanceError, match=r"batch live/2 is in .*orders, and was published together"):
        planned(world, rewind(0))
    notes = applied(world, rewind(0, allow_skip=True)).notes
    assert any("what is taken out there does not come back" in note for note in notes)


def test_what_was_in_the_other_table_alone_moves(tmp_path: Path) -> None:
    world = World(tmp_path)
    run(world, 0, "lake")
    run(world, 1, "orders")
    run(world, 2, "lake")
    expire_all(tmp_path)
    applied(world, rewind(0))
    for number in (3, 4):
        world.run(number)
    assert (table(world), read(tmp_path / "orders")) == ({0: [0], 1: [1], 2: [2]}, {})


@pytest.mark.parametrize("since", ["in the live lane", "in another interval"])
def test_of_an_interval_it_is_asked_what_the_pipeline_writes_to_since(tmp_path: Path, since: str) -> None:
    """Its own attempt named both: what its next run writes to, the pipeline's later runs tell."""
    world = IntervalWorld(tmp_path, sink=sink_of(tmp_path, "third orders"))

    def go(number: int, names: str) -> None:
        world.options["sink"] = sink_of(tmp_path, names)
        world.land_at(number + 0.5, number)
        world.run(number) if number and since == "in the live lane" else world.backfill(hour(number), number)

    go(0, "third orders")
    go(1, "third")
    expire_all(tmp_path)
    lane = lane_of(hour(0))
    with pytest.raises(MaintenanceError, match=rf"batch {lane}/0 is in .*orders, and was published together"):
        planned(world, rewind(-1, lane=lane))
    go(2, "third orders")
    expire_all(tmp_path)
    assert not any("does not come back" in note for note in applied(world, rewind(-1, lane=lane)).notes)


def test_what_the_pipeline_writes_to_beside_a_class_that_is_not_here_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path)
    for number in (0, 1):
        run(world, number, "third orders")
    world.options["sink"] = Sinks(
        {"third": sink_of(tmp_path, "third"), "ours": Ours(str(tmp_path / "ours"), format="json")}
    )
    shutil.move(world.landing(), tmp_path / "moved")
    with pytest.raises(SourceError):
        world.run(2)
    (tmp_path / "moved").rename(tmp_path / "landing" / "orders")
    expire_all(tmp_path)
    monkeypatch.setattr(settings, "_given", Settings)  # the shell of the command trusts no class
    with pytest.raises(MaintenanceError, match=r"batch live/1 is in .*orders, and was published together"):
        planned(world, rewind(0))
    drops = [step for step in planned(world, rewind(0, allow_skip=True)).steps if isinstance(step, DropOutput)]
    assert [step.why for step in drops] == ["nothing writes to this table any more", "it is read and published again"]
    shutil.rmtree(tmp_path / "third" / "lane=live" / "batch_id=1")
    with pytest.raises(MaintenanceError, match=r"batch live/1 is in .*orders, and was published together"):
        planned(world, rewind(0))


def test_a_table_that_was_named_by_mistake_stands_in_no_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "_given", lambda: Settings(trusted_modules=(__name__,)))
    world = World(tmp_path)
    run(world, 0, "lake")
    shutil.copytree(world.lake, tmp_path / "backup")
    run(world, 1, "lake")
    mistyped = Mistyped(str(tmp_path / "mistyped"), format="json")
    for number in (2, 3):
        world.options["sink"] = mistyped
        with pytest.raises(SinkError, match="cannot be reached"):
            world.run(number)
        if number == 2:
            run(world, 2, "lake")
            restore(world)
    expire_all(tmp_path)
    with pytest.raises(SinkError, match="cannot be reached"):  # what is to come may have been moved there
        planned(world, rewind(0))
    with pytest.raises(SinkError, match="does not know it") as told:
        run(world, 3, "lake")
    assert [command[0] for command in advised(str(told.value), world)] == ["rewind"]
    applied(world, rewind(0))
    for number in (4, 5, 6):
        world.run(number)
    assert table(world) == {number: [number] for number in range(4)}
