"""``set-offset``: the logs only grow, and what is lost or doubled by it was allowed by name."""

from __future__ import annotations

import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest
from acme_microbatch.counter import CounterSource, OpenCounter

from airflow_provider_microbatch.checkpoint.verify import verify_all
from airflow_provider_microbatch.exceptions import (
    BatchSetAsideError,
    ForeignBatchError,
    MaintenanceError,
    SinkError,
    SourceError,
)
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sources.file import FileSource
from airflow_provider_microbatch.upkeep.commands.plan import Drafting, Plan
from airflow_provider_microbatch.upkeep.commands.set_offset import plan_set_offset
from airflow_provider_microbatch.upkeep.commands.site import Recorded
from tests.execution.intervals import IntervalWorld, hour
from tests.execution.maintaining import Make, applied, planned, rewind
from tests.execution.world import World, run_identity
from tests.support.inline_engine import InlineEngine


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Four batches of one row each, all committed."""
    world = World(tmp_path)
    for number in range(4):
        world.land(number)
        world.run(number)
    return world


def set_offset(number: int | None, *, source: str = "orders", skip: bool = False, reread: bool = False) -> Make:
    offset = None if number is None else f'{{"logOffset":{number}}}'
    return lambda drafting: plan_set_offset(
        drafting, lane="live", source=source, offset=offset, allow_skip=skip, allow_reread=reread
    )


def test_backwards_the_rows_are_read_again(world: World) -> None:
    history = {path: data for path, data in world.files().items() if path.startswith(("offsets", "commits"))}
    plan = applied(world, set_offset(1, reread=True))
    assert [step.what for step in plan.steps] == ["offsets/4", "commits/4"]
    assert plan.notes[:-1] == (
        'read again: source \'orders\' after {"logOffset":1} up to {"logOffset":3} (2 files, 20 bytes).',
    )
    assert verify_all(world.checkpoint) == []
    assert history.items() <= world.files().items()
    world.run(5)
    world.run(6)
    assert world.run(7) is None
    assert world.table() == {0: [0], 1: [1], 2: [2], 3: [3], 5: [2], 6: [3]}
    assert verify_all(world.checkpoint) == []


def test_back_over_a_batch_that_is_set_aside_is_refused_since_a_clear_would_double_its_rows(tmp_path: Path) -> None:
    world = World(tmp_path, on_failure="set_aside", set_aside_after=1)
    world.land(0)
    world.run(0)
    world.land(1)
    with pytest.raises(BatchSetAsideError):
        world.run(1, InlineEngine(transform=lambda sources: 1 / 0))  # type: ignore[arg-type, return-value]
    world.land(2)
    world.run(2)
    with pytest.raises(MaintenanceError, match=r"live/1 is set aside[\s\S]*Clear the task first"):
        planned(world, set_offset(0, reread=True))
    assert planned(world, set_offset(1, reread=True)).steps
    world.run(1, clear_number=1)
    applied(world, set_offset(0, reread=True))


def test_to_the_beginning(world: World) -> None:
    applied(world, set_offset(None, reread=True))
    for number in range(5, 9):
        world.run(number)
    assert world.run(9) is None
    assert [ids for batch, ids in sorted(world.table().items()) if batch > 4] == [[0], [1], [2], [3]]


def test_before_the_first_batch_too(world: World) -> None:
    applied(world, rewind(-1))
    applied(world, set_offset(1, skip=True))
    assert world.checkpoint.offset_log.ids() == [0]
    for number in range(5, 7):
        world.run(number)
    assert world.run(8) is None
    assert world.table() == {1: [2], 2: [3]}
    assert verify_all(world.checkpoint) == []


def test_a_first_plan_that_is_refused_leads_on_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path)
    world.sources = {"orders": CounterSource(str(tmp_path / "head"))}  # type: ignore[dict-item]
    (tmp_path / "head").write_text("3")
    with monkeypatch.context() as patch:
        patch.setattr(OpenCounter, "latest_offset", Mock(side_effect=SourceError("1 is gone. Use set-offset")))
        with pytest.raises(SourceError, match="1 is gone"):
            world.run(0)

    def make(drafting: Drafting) -> Plan:
        return plan_set_offset(
            drafting, lane="live", source="orders", offset='{"n": 1}', allow_skip=True, allow_reread=False
        )

    applied(world, make)
    world.run(1)
    assert world.run(2) is None
    assert world.table() == {1: [2, 3]}
    assert verify_all(world.checkpoint) == []


def test_in_a_lane_that_has_no_batch_there_is_no_position(world: World) -> None:
    def make(drafting: Drafting) -> Plan:
        return plan_set_offset(
            drafting, lane="dead-letters", source="orders", offset=None, allow_skip=True, allow_reread=True
        )

    with pytest.raises(MaintenanceError, match="no batch in lane dead-letters yet"):
        planned(world, make)


def test_forwards_what_lies_between_is_lost_and_named(world: World) -> None:
    applied(world, rewind(0))
    plan = applied(world, set_offset(2, skip=True))
    assert plan.notes[:-1] == (
        'lost to the table: source \'orders\' after {"logOffset":0} up to {"logOffset":2} (2 files, 20 bytes).',
    )
    world.run(5)
    assert world.run(6) is None
    assert world.table() == {0: [0], 2: [3]}
    assert verify_all(world.checkpoint) == []


@pytest.mark.parametrize(("make", "allow"), [(set_offset(1, skip=True), "--allow-reread"), (set_offset(1), "rewind")])
def test_doubling_rows_has_to_be_allowed(world: World, make: Make, allow: str) -> None:
    with pytest.raises(MaintenanceError, match=rf"2 files, 20 bytes\) is in the table[\s\S]*{allow}"):
        planned(world, make)


def test_losing_rows_has_to_be_allowed(world: World) -> None:
    applied(world, rewind(0))
    with pytest.raises(MaintenanceError, match=r"2 files, 20 bytes\) would never be read[\s\S]*--allow-skip"):
        planned(world, set_offset(2, reread=True))


@pytest.mark.parametrize("offset", ['{"logOffset":4}', '{"logOffset":-1}', '{"topic":{"0":3}}', "3.5"])
def test_an_offset_that_is_none_of_the_sources_is_refused(world: World, offset: str) -> None:
    with pytest.raises(SourceError, match="orders"):
        planned(
            world,
            lambda drafting: plan_set_offset(
                drafting, lane="live", source="orders", offset=offset, allow_skip=True, allow_reread=True
            ),
        )


def test_the_same_offset_is_nothing_to_do(world: World) -> None:
    assert planned(world, set_offset(3)).steps == ()


def test_a_source_that_is_not_there_is_refused(world: World) -> None:
    with pytest.raises(MaintenanceError, match="no source 'refunds'; it has orders"):
        planned(world, set_offset(1, source="refunds", reread=True))


def test_a_batch_in_progress_comes_first(world: World) -> None:
    world.land(4)
    world.execution.plan(run_identity(4))
    with pytest.raises(MaintenanceError, match="batch 4 of lane live is planned and not committed"):
        planned(world, set_offset(1, reread=True))


def test_what_cannot_be_read_again_is_refused(tmp_path: Path) -> None:
    world = World(tmp_path)
    source = FileSource(str(world.landing()), format="json", schema="id long", clean_source="delete")
    world.sources = {"orders": source}
    for number in range(2):
        world.land(number)
        world.run(number)
    with pytest.raises(MaintenanceError, match="cannot be read again"):
        planned(world, set_offset(0, reread=True))


def test_other_sources_stay_where_they_are(tmp_path: Path) -> None:
    world = World(tmp_path, sources=("orders", "refunds"))
    for number in range(3):
        world.land(number)
        world.land(10 + number, source="refunds")
        world.run(number)
    applied(world, set_offset(1, source="refunds", reread=True))
    world.run(3)
    assert world.table()[4] == [12]


def test_the_entry_says_that_it_was_set_by_hand(world: World) -> None:
    applied(world, set_offset(1, reread=True))
    commit = world.checkpoint.commit_log.get(4)
    assert commit is not None
    assert commit.set_aside
    assert commit.extra["microbatch"]["by_hand"]["by"] == "me@here"


@pytest.mark.parametrize("newest", [1, 2])
def test_what_the_table_has_and_no_log_knows_is_not_counted_over(world: World, newest: int) -> None:
    """The table was restored alone, to a moment before a rewind: it has batches that were taken out of it."""
    shutil.copytree(world.lake, world.root / "saved")
    applied(world, rewind(newest))
    shutil.rmtree(world.lake)
    shutil.copytree(world.root / "saved", world.lake)
    before = world.files()
    with pytest.raises(
        MaintenanceError, match=rf"batch live/{newest + 1} in .* is another one[\s\S]*its rows would be in it twice"
    ):
        planned(world, set_offset(0, reread=True))
    assert world.files() == before


def to_table(world: World, name: str) -> Path:
    """Where the pipeline writes from now on."""
    path = world.root / name
    world.options["sink"] = FileSink(str(path), format="json")
    return path


@pytest.fixture
def switched(tmp_path: Path) -> World:
    """Batches 0 and 1 are in a former table. The checkpoint was restored from before the switch to today's, which has
    batch 2 of the life that is lost, and has refused a plan."""
    world = World(tmp_path)
    to_table(world, "former")
    for number in range(2):
        world.land(number)
        world.run(number)
    shutil.copytree(world.root / "checkpoint", world.root / "backup")
    to_table(world, "today")
    world.land(2)
    world.run(2)
    shutil.rmtree(world.root / "checkpoint")
    (world.root / "backup").rename(world.root / "checkpoint")
    with pytest.raises(ForeignBatchError):
        world.run(3)
    return world


def test_a_table_that_no_attempt_has_written_to_yet_is_asked_too(switched: World) -> None:
    before = switched.files()
    with pytest.raises(MaintenanceError, match=r"live/2 in .*/today is another one[\s\S]*rows would be in it twice"):
        planned(switched, set_offset(0, reread=True))
    assert switched.files() == before


def test_what_another_pipeline_has_in_a_table_that_this_one_never_wrote_to_is_no_matter(world: World) -> None:
    """A table was named by mistake, refused, and never named again."""
    other = World(world.root / "other", name="other")
    path = to_table(other, "lake")
    for number in range(6):
        other.land(number)
        other.run(number)
    world.land(4)
    world.options["sink"] = FileSink(str(path), format="json")
    with pytest.raises(ForeignBatchError):
        world.run(4)
    del world.options["sink"]
    world.run(4)
    assert planned(world, set_offset(1, reread=True)).steps


def test_the_source_is_asked_as_the_plan_that_was_refused_defines_it(world: World) -> None:
    """What was renamed, or moved, is not to be found as the last attempt defined it."""
    good, gone = world.sources, FileSource(str(world.root / "renamed"), format="json", schema="id long")
    world.sources = {"orders": gone}
    with pytest.raises(SourceError, match="renamed"):
        world.run(4)
    to_come = Recorded(world.checkpoint).source_to_come("orders", lane="live")
    assert to_come is not None
    with pytest.raises(SourceError, match="renamed"):
        to_come.check()

    world.sources = good
    world.land(4)
    world.run(4)
    to_come = Recorded(world.checkpoint).source_to_come("orders", lane="live")
    assert to_come is not None
    to_come.check()


def test_the_table_of_the_lane_is_asked_though_another_lanes_clock_was_ahead(tmp_path: Path) -> None:
    world = IntervalWorld(tmp_path, plan="live")
    to_table(world, "former")
    world.land_at(0.5, 0)
    world.clock += 10**9
    world.backfill(hour(0), 0)
    world.clock -= 10**9
    today = to_table(world, "today")
    for number in (1, 2):
        world.land_at(number + 0.5, number)
        world.run(number)
    shutil.copytree(today, world.root / "saved")
    applied(world, rewind(0))
    shutil.rmtree(today)
    shutil.copytree(world.root / "saved", today)
    with pytest.raises(MaintenanceError, match=r"live/1 in .*/today is another one"):
        planned(world, set_offset(None, reread=True))


def test_where_a_server_has_to_be_asked_and_is_away_the_way_on_is_named(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> None:
        raise SinkError("no server at sc://127.0.0.1:1")

    monkeypatch.setattr(FileSink, "contains", away)
    monkeypatch.setattr(FileSink, "is_cheap_to_ask", property(lambda _: False))
    with pytest.raises(MaintenanceError, match=r"no server at sc://127.0.0.1:1[\s\S]*--allow-reread"):
        planned(world, set_offset(None, skip=True))
    plan = planned(world, set_offset(1, reread=True))
    assert plan.steps
    assert "no server at sc://127.0.0.1:1" in plan.notes[0]
