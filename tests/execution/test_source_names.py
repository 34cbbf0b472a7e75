"""A source that vanishes while another appears: a person says whether it is the same, and then it is, everywhere."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.entries import Offset
from airflow_provider_microbatch.checkpoint.handover import hand_over
from airflow_provider_microbatch.checkpoint.key import LETTERS, LIVE
from airflow_provider_microbatch.checkpoint.verify import verify_all
from airflow_provider_microbatch.cli.main import main
from airflow_provider_microbatch.exceptions import (
    CheckpointError,
    MaintenanceError,
    NothingInIntervalError,
    SourceCountError,
    SourceRenamedError,
)
from airflow_provider_microbatch.execution.intervals import lane_of
from airflow_provider_microbatch.execution.letters_taken import SOURCE
from airflow_provider_microbatch.sources.file import FileSource
from airflow_provider_microbatch.upkeep.commands.plan import Drafting, Plan
from airflow_provider_microbatch.upkeep.commands.rename_source import plan_add_source, plan_rename_source
from tests.execution.intervals import IntervalWorld, backfill_run, hour
from tests.execution.maintaining import Make, applied, filled, planned, rewind
from tests.execution.world import World, run_identity


def rename(old: str = "orders", new: str = "sales") -> Make:
    def plan(drafting: Drafting) -> Plan:
        return plan_rename_source(drafting, old=old, new=new)

    return plan


def called(world: World, *names: str) -> None:
    """The pipeline names its one folder so from now on; others are folders of their own."""
    landing = str(world.landing("orders"))
    world.sources = {
        name: FileSource(landing if name in ("orders", "sales") else str(world.landing(name)), schema="id long")
        for name in names
    }


@pytest.fixture(params=["v1", "v2"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    """Two committed batches."""
    world = World(tmp_path, checkpoint_format=request.param)
    for number in range(2):
        world.land(number)
        world.run(number)
    return world


def v2(tmp_path: Path) -> World:
    world = World(tmp_path)
    world.land(1)
    world.run(0)
    return world


def test_plan_and_sensor_stop_and_name_both_and_nothing_is_written(tmp_path: Path) -> None:
    world = v2(tmp_path)
    called(world, "sales")
    before = world.files()
    for ask in (world.execution.should_fire, lambda: world.run(1)):
        with pytest.raises(
            SourceRenamedError, match=r"'orders'.*'sales'.*rename-source \S+ orders sales.*add-source \S+"
        ):
            ask()
    assert world.files() == before


def test_v1_says_the_command_too(tmp_path: Path) -> None:
    world = World(tmp_path, checkpoint_format="v1")
    world.land(1)
    world.run(0)
    called(world, "sales")
    with pytest.raises(SourceCountError, match="only has a new name: `microbatch rename-source"):
        world.execution.should_fire()


def test_after_the_rename_nothing_is_read_twice_and_what_comes_is_read(world: World) -> None:
    applied(world, rename())
    called(world, "sales")
    assert not world.execution.should_fire().fire
    assert world.run(5) is None
    world.land(2)
    assert world.run(6) is not None
    assert world.table() == {0: [0], 1: [1], 2: [2]}
    assert verify_all(world.checkpoint) == []


def test_batches_of_before_are_replayed_and_rewound_under_the_new_name(world: World) -> None:
    applied(world, rename())
    called(world, "sales")
    assert world.run(0, clear_number=1) is not None
    applied(world, rewind(0))
    world.run(7)
    assert world.table() == {0: [0], 1: [1]}


def test_a_batch_that_was_planned_before_is_finished_under_the_new_name(world: World) -> None:
    world.land(2)
    world.execution.plan(run_identity(2))
    applied(world, rename())
    called(world, "sales")
    assert world.execution.should_fire().fire
    assert world.run(3) is not None
    assert world.table() == {0: [0], 1: [1], 2: [2]}


def test_there_and_back_again_and_an_old_name_is_given_to_no_other(world: World) -> None:
    applied(world, rename())
    called(world, "orders")
    with pytest.raises(CheckpointError, match=r"was renamed to 'sales'|was made for \['sales'\]"):
        world.execution.should_fire()
    applied(world, rename("sales", "orders"))
    assert world.run(5) is None
    world.land(2)
    world.run(6)
    assert world.table() == {0: [0], 1: [1], 2: [2]}


def test_two_sources_cannot_swap_their_names_but_take_new_ones(tmp_path: Path) -> None:
    world = World(tmp_path, sources=("left", "right"))
    for number, name in enumerate(("left", "right")):
        world.land(number, source=name)
        world.run(number)
    applied(world, rename("left", "between"))
    with pytest.raises(MaintenanceError, match=r"'left'.*was renamed to 'between'.*Use a name that was never used"):
        planned(world, rename("right", "left"))
    applied(world, rename("right", "other"))
    world.sources = {"between": world.sources["left"], "other": world.sources["right"]}
    world.land(2, source="left")
    world.run(2)
    assert world.table() == {0: [0], 1: [1], 2: [2]}


def test_it_is_really_a_new_one(tmp_path: Path) -> None:
    world = v2(tmp_path)
    called(world, "refunds")
    world.land(9, source="refunds")
    with pytest.raises(SourceRenamedError):
        world.run(1)
    applied(world, lambda drafting: plan_add_source(drafting, name="refunds"))
    assert world.run(1) is not None
    assert world.table() == {0: [1], 1: [9]}
    called(world, "refunds", "orders")
    assert world.run(2) is None, "one that comes back goes on where it was"


def test_adding_and_removing_alone_ask_nothing(tmp_path: Path) -> None:
    world = v2(tmp_path)
    called(world, "orders", "refunds")
    assert world.run(1) is None
    called(world, "orders")
    assert world.run(2) is None


def test_lanes_of_intervals_stop_and_go_on_too(tmp_path: Path) -> None:
    world = IntervalWorld(tmp_path, plan="interval")
    world.land_at(0.5, 1)
    world.backfill(hour(0), 1)
    called(world, "sales")
    with pytest.raises(SourceRenamedError):
        world.work(hour(0)).should_fire(backfill_run(2))
    with pytest.raises(SourceRenamedError):
        world.backfill(hour(0), 2)
    applied(world, rename())
    with pytest.raises(NothingInIntervalError, match="read it"):
        world.backfill(hour(0), 3)
    world.land_at(1.5, 2)
    world.backfill(hour(1), 4)
    assert world.ids() == [1, 2]


def without_logs(world: World) -> None:
    """Not every source has a log of its own: what a table's or a topic's batches have read only their entries tell."""
    shutil.rmtree(world.root / "checkpoint/sources")


def read_by_intervals(tmp_path: Path) -> IntervalWorld:
    """Orders by the first interval, refunds beside it by the second one."""
    world = IntervalWorld(tmp_path, plan="interval")
    world.land_at(0.5, 1)
    world.backfill(hour(0), 1)
    called(world, "orders", "refunds")
    world.land_at(1.5, 2, source="refunds")
    world.backfill(hour(1), 2)
    return world


def test_a_renamed_source_that_only_intervals_have_read_stops_them_and_the_live_lane(tmp_path: Path) -> None:
    world = IntervalWorld(tmp_path, plan="interval")
    world.land_at(0.5, 1)
    world.backfill(hour(0), 1)
    without_logs(world)
    called(world, "sales")
    with pytest.raises(SourceRenamedError):
        world.work(hour(1)).should_fire(backfill_run(2))
    with pytest.raises(SourceRenamedError):
        world.backfill(hour(1), 2)
    world.options["plan"] = "live"
    with pytest.raises(SourceRenamedError):
        world.execution.should_fire(run_identity(3))
    with pytest.raises(SourceRenamedError):
        world.run(3)


def test_a_renamed_source_that_the_live_lane_has_read_stops_a_backfill(tmp_path: Path) -> None:
    world = IntervalWorld(tmp_path)
    world.land_at(0.5, 1)
    world.run(0)
    without_logs(world)
    called(world, "sales")
    with pytest.raises(SourceRenamedError):
        world.backfill(hour(0), 1)


def test_a_source_that_only_intervals_have_read_is_none_that_appeared(tmp_path: Path) -> None:
    world = read_by_intervals(tmp_path)
    called(world, "refunds")
    world.land_at(2.5, 3, source="refunds")
    world.backfill(hour(2), 3)
    assert world.ids() == [1, 2, 3]


def test_a_poll_looks_at_no_more_lanes_than_tell_of_a_source_that_was_added(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is a lane for each interval that ever ran."""
    world = IntervalWorld(tmp_path, plan="interval")
    for number in range(4):
        world.land_at(number + 0.5, number)
        world.backfill(hour(number), number)
        called(world, "orders", "refunds")
    looked = looks(monkeypatch)
    assert world.work(hour(4)).should_fire(backfill_run(4)).fire
    assert looked == [lane_of(hour(3))]


@pytest.mark.parametrize("plan", ["interval", "live"])
def test_while_no_lane_has_a_source_that_was_added_its_first_poll_alone_looks_at_each_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plan: str
) -> None:
    world = IntervalWorld(tmp_path, plan=plan)
    for number in range(4):
        world.land_at(number + 0.5, number)
        world.backfill(hour(number), number)
    called(world, "orders", "refunds")
    looked = looks(monkeypatch)

    def fires(searched_ms: int | None) -> bool:
        asked = world.work(hour(60)) if plan == "interval" else world.execution
        return asked.should_fire(run_identity(4), searched_ms=searched_ms).fire

    assert not fires(None)
    assert looked == [lane_of(hour(3)), LIVE, *(lane_of(hour(number)) for number in (2, 1, 0))]
    assert not fires(world.clock)
    assert len(looked) == 5


def looks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The lanes whose newest entry is looked at for its sources, from now on."""
    looked: list[str] = []
    real = Checkpoint._newest_readable

    def look(self: Checkpoint, lane: str) -> Mapping[str, Offset | None]:
        looked.append(lane)
        return real(self, lane)

    monkeypatch.setattr(Checkpoint, "_newest_readable", look)
    return looked


def test_the_dead_letters_that_were_run_again_are_no_source_that_vanished(tmp_path: Path) -> None:
    world = v2(tmp_path)
    entry = world.checkpoint.offset_log.get(0)
    assert entry is not None
    letters = world.checkpoint.lane(LETTERS).offset_log
    letters.add(0, dataclasses.replace(entry, ends={SOURCE: '{"logOffset":0}'}, starts={}))
    called(world, "orders", "refunds")
    world.land(2, source="refunds")
    world.run(1)
    assert world.table() == {0: [1], 1: [2]}
    with pytest.raises(MaintenanceError, match=f"no source '{SOURCE}'"):
        applied(world, rename(SOURCE, "sales"))


def test_a_source_that_only_intervals_have_read_is_renamed_and_no_other_gets_its_name(tmp_path: Path) -> None:
    world = read_by_intervals(tmp_path)
    without_logs(world)
    with pytest.raises(MaintenanceError, match="two positions"):
        applied(world, rename("orders", "refunds"))
    applied(world, rename("refunds", "returns"))
    assert world.checkpoint.read_names() == {"orders", "returns"}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [("returns", "sales", "no source 'returns'; it has"), ("orders", "refunds", "two positions")],
)
def test_what_cannot_be_renamed_is_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    world = World(tmp_path, sources=("orders", "refunds"))
    world.land(1)
    world.land(2, source="refunds")
    world.run(0)
    before = world.files()
    with pytest.raises(MaintenanceError, match=message):
        applied(world, rename(old, new))
    assert world.files() == before


def test_a_query_gets_it_once_the_new_name_is_written(tmp_path: Path) -> None:
    world = v2(tmp_path)
    applied(world, rename())
    with pytest.raises(CheckpointError, match=r"has the source orders by its name before .*one more batch"):
        hand_over(world.checkpoint)
    called(world, "sales")
    world.land(2)
    world.run(1)
    hand_over(world.checkpoint)
    written = (world.root / "checkpoint/offsets/1").read_text().splitlines()
    assert written[-1] == 'sales:{"logOffset":1}'
    assert sorted(path.name for path in (world.root / "checkpoint/sources/sales").iterdir()) == ["0", "1"]


def test_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world = v2(tmp_path)
    location = world.pipeline.checkpoint
    assert main(["rename-source", location, "orders", "sales", "--dry-run"]) == 0
    assert "move   sources/orders to sources/sales" in capsys.readouterr().out
    assert main(["rename-source", location, "orders", "sales"]) == 0
    called(world, "sales", "refunds")
    assert main(["add-source", location, "refunds"]) == 0
    assert main(["add-source", location, "refunds"]) == 0
    said = capsys.readouterr().out
    assert "nothing to do" in said
    assert "source 'refunds' is known, as one of its own" in said
    assert world.run(1) is None


def test_a_name_of_before_a_rename_is_no_new_source(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every run would refuse it: older entries mean another source by it."""
    world = filled(World(tmp_path), 1)
    location = str(world.root / "checkpoint")
    world.expire_leases()
    assert main(["rename-source", location, "orders", "sales"]) == 0
    assert main(["add-source", location, "orders"]) == 2
    assert "was renamed to 'sales'" in capsys.readouterr().err
