"""What a plan that was refused leaves on record: by which definition commands open the sources of the plan to come."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_provider_microbatch.checkpoint.verify import verify_all
from airflow_provider_microbatch.exceptions import CorruptEntryError, ForeignBatchError, MaintenanceError, SourceError
from airflow_provider_microbatch.execution.dead_letters import replaying
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sources.file import FileSource
from airflow_provider_microbatch.upkeep.commands.copy import plan_copy
from airflow_provider_microbatch.upkeep.commands.exchange import plan_export
from airflow_provider_microbatch.upkeep.commands.plan import Plan
from airflow_provider_microbatch.upkeep.commands.set_offset import plan_set_offset
from airflow_provider_microbatch.upkeep.commands.site import Recorded
from tests.execution.intervals import IntervalWorld, hour
from tests.execution.maintaining import Make, applied, filled, planned, rewind
from tests.execution.world import World

RECORD = "checkpoint/microbatch/refused/live"


class Moved(IntervalWorld):
    """A pipeline whose source moves to where nothing is, and back."""

    def __init__(self, root: Path, **pipeline: object) -> None:
        super().__init__(root, **pipeline)
        self.here = self.sources
        self.away = {"orders": FileSource(str(root / "moved"), format="json", schema="id long")}

    def refuse(self, number: int) -> None:
        """The run plans where nothing is."""
        self.sources = self.away
        with pytest.raises(SourceError, match="moved"):
            self.run(number)
        self.sources = self.here

    def to_come_is_away(self) -> bool:
        """Whether commands open the source as the plan that was refused defines it."""
        source = Recorded(self.checkpoint).source_to_come("orders", lane="live")
        assert source is not None
        try:
            source.check()
        except SourceError:
            return True
        return False

    def another_time(self) -> None:
        """Whatever was written so far is old."""
        for path in (self.root / "checkpoint").rglob("*"):
            os.utime(path, (1_600_000_000, 1_600_000_000))


def set_offset(number: int, *, allowed: bool = True) -> Make:
    return lambda drafting: plan_set_offset(
        drafting,
        lane="live",
        source="orders",
        offset=f'{{"logOffset":{number}}}',
        allow_skip=allowed,
        allow_reread=allowed,
    )


@pytest.fixture
def world(tmp_path: Path) -> Moved:
    """Three batches of one row each, all committed."""
    world = Moved(tmp_path)
    filled(world, 3)
    return world


def test_a_definition_that_is_refused_a_second_time_counts_again(world: Moved) -> None:
    world.refuse(3)
    world.another_time()
    world.land(3)
    world.run(3)
    assert not world.to_come_is_away()
    world.refuse(4)
    assert world.to_come_is_away()


def a_backfill(world: Moved) -> None:
    world.options["min_batches_to_retain"] = 100
    world.land_at(0.5, 40)
    world.backfill(hour(0), 40)


def a_run_of_dead_letters(world: Moved) -> None:
    world.options["dead_letters"] = FileSink(str(world.root / "letters"), format="json")
    world.checkpoint.definitions.put(replaying(world.pipeline, "jobs/mend.py:mends").to_dict())


@pytest.mark.parametrize("deed", [a_backfill, a_run_of_dead_letters])
def test_definitions_of_other_lanes_do_not_count(world: Moved, deed: Callable[[Moved], None]) -> None:
    world.refuse(3)
    world.another_time()
    deed(world)
    assert world.to_come_is_away()


def test_no_time_of_a_file_counts(world: Moved) -> None:
    """A checkpoint that was copied, or restored from a backup, has other ones."""
    world.refuse(3)
    shutil.copytree(world.root / "checkpoint", world.root / "restored", copy_function=shutil.copyfile)
    shutil.rmtree(world.root / "checkpoint")
    (world.root / "restored").rename(world.root / "checkpoint")
    world.another_time()
    assert world.to_come_is_away()


@pytest.mark.parametrize("make", [plan_copy, plan_export])
def test_a_copy_of_the_checkpoint_knows_it_too(world: Moved, make: Callable[..., Plan]) -> None:
    world.refuse(3)
    target = str(world.root / "another place")
    applied(world, lambda drafting: make(drafting, target=target))
    world.options["checkpoint"] = target
    assert world.to_come_is_away()


def test_what_was_refused_before_the_newest_batch_does_not_count_even_if_that_is_rewound(world: Moved) -> None:
    world.refuse(3)
    world.land(3)
    world.run(3)
    assert not world.to_come_is_away()
    applied(world, rewind(2))
    assert not world.to_come_is_away()
    world.refuse(4)
    assert world.to_come_is_away()
    world.run(5)
    assert not world.to_come_is_away()


def test_a_position_that_was_set_by_hand_is_no_plan(world: Moved) -> None:
    """A wrong one is set once more, of the same source."""
    world.refuse(3)
    applied(world, set_offset(0))
    assert world.to_come_is_away()
    applied(world, set_offset(1))
    assert world.to_come_is_away()
    world.run(5)
    assert not world.to_come_is_away()
    applied(world, rewind(4))
    assert not world.to_come_is_away()


def test_in_a_log_that_was_rewound_since_nobody_knows(world: Moved) -> None:
    world.refuse(3)
    applied(world, rewind(1))
    assert not world.to_come_is_away()


def test_a_plan_that_a_table_refuses_counts_too(world: Moved) -> None:
    other = World(world.root / "other", name="other")
    filled(other, 5)
    world.land(3)
    world.sources = {"orders": FileSource(str(world.landing()), format="json", schema="id long", max_files=1)}
    world.options["sink"] = FileSink(str(other.lake), format="json")
    with pytest.raises(ForeignBatchError):
        world.run(3)
    record = (world.root / RECORD).read_text()
    assert world.checkpoint.definitions.put(world.pipeline.to_dict()) in record


def test_it_is_written_once_however_often_the_plan_is_refused(world: Moved) -> None:
    world.run(3)
    assert not (world.root / RECORD).exists()
    world.refuse(3)
    before = world.files()
    inode = (world.root / RECORD).stat().st_ino
    world.refuse(3)
    assert world.files() == before
    assert (world.root / RECORD).stat().st_ino == inode


def test_the_command_says_by_which_definition_it_goes(world: Moved) -> None:
    (told,) = planned(world, set_offset(1)).notes[-1:]
    assert "has no plan that was refused" in told
    world.refuse(3)
    (told,) = planned(world, set_offset(1)).notes[-1:]
    assert "as the plan that was refused last defines it" in told
    assert str(world.checkpoint.definitions.where("")) in told


@pytest.mark.parametrize("refused", [False, True])
def test_a_source_that_refuses_the_command_says_by_which_definition_it_was_asked(world: Moved, refused: bool) -> None:
    told = "microbatch/refused/live" if refused else "let it run first"
    if refused:
        world.refuse(3)
    with pytest.raises(SourceError, match=rf"orders[\s\S]*{told}"):
        planned(world, set_offset(7))


def test_a_source_that_only_the_plan_in_vain_had_is_known_by_its_name(world: Moved) -> None:
    world.away = {**world.away, "refunds": FileSource(str(world.landing("refunds")), format="json", schema="id long")}
    world.here = {"orders": world.here["orders"]}
    world.refuse(3)

    def refuse(source: str) -> Make:
        return lambda drafting: plan_set_offset(
            drafting, lane="live", source=source, offset=None, allow_skip=True, allow_reread=True
        )

    with pytest.raises(MaintenanceError, match="no source 'returns'; it has orders, refunds"):
        planned(world, refuse("returns"))


def test_the_janitor_keeps_the_definition_of_the_plan_to_come_alone(tmp_path: Path) -> None:
    world = Moved(tmp_path, min_batches_to_retain=2)
    filled(world, 3)
    world.refuse(3)
    world.janitor()
    assert world.to_come_is_away()
    world.land(3)
    world.run(3)
    world.janitor()
    assert len(world.checkpoint.definitions.names()) == 1


@pytest.mark.parametrize(
    "text", ["v1\n{", 'v1\n{"definition":"../../metadata","next":3,"after":"ab","epoch":0}', 'v1\n{"next":3}', ""]
)
def test_a_torn_record_is_found_and_put_away(world: Moved, text: str) -> None:
    world.refuse(3)
    (world.root / RECORD).unlink()
    (world.root / RECORD).write_text(text)
    with pytest.raises(CorruptEntryError, match="microbatch/refused/live"):
        planned(world, set_offset(1))
    assert [(found.kind, found.where) for found in verify_all(world.checkpoint)] == [
        ("refused plan", str(world.root / RECORD))
    ]
    world.janitor()
    applied(world)
    assert verify_all(world.checkpoint) == []
    assert not world.to_come_is_away()
    world.refuse(3)
    assert world.to_come_is_away()


def test_a_torn_record_is_replaced_by_the_next_plan_that_is_refused(world: Moved) -> None:
    world.refuse(3)
    (world.root / RECORD).unlink()
    (world.root / RECORD).write_text("v1\n{")
    world.refuse(3)
    assert world.to_come_is_away()
    assert verify_all(world.checkpoint) == []


def test_a_record_whose_definition_is_gone_is_none(world: Moved) -> None:
    world.refuse(3)
    for name in world.checkpoint.definitions.names():
        if name in (world.root / RECORD).read_text():
            world.checkpoint.definitions.forget(name)
    assert not world.to_come_is_away()
