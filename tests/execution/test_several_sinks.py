"""A batch that goes to several tables: it is in all of them once, of one attempt, whatever dies between two of them."""

from __future__ import annotations

import itertools
import json
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest import mock

import pytest
from acme_microbatch.counter import CounterSource

from airflow_provider_microbatch.checkpoint.key import LIVE, BatchKey
from airflow_provider_microbatch.cli.main import main
from airflow_provider_microbatch.exceptions import (
    BatchSetAsideError,
    DefinitionError,
    MaintenanceError,
    SinkError,
    SourceError,
    TransformError,
)
from airflow_provider_microbatch.execution.settle import settle
from airflow_provider_microbatch.pipeline import Pipeline
from airflow_provider_microbatch.sinks import ExpectedBatch, SinkContext
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sinks.several import Sinks
from airflow_provider_microbatch.upkeep.commands.adopt import plan_adopt
from airflow_provider_microbatch.upkeep.commands.site import Recorded
from airflow_provider_microbatch.upkeep.commands.steps import DropOutput
from airflow_provider_microbatch.upkeep.table_check import check_table
from tests.execution.maintaining import applied, expire, planned, rewind
from tests.execution.two_tables import NAMES, Two, coded, die_between_two_tables, dying, is_clean
from tests.execution.world import run_identity
from tests.sinks.stages import expect, write_stage
from tests.support.inline_engine import InlineEngine


@pytest.fixture
def world(tmp_path: Path) -> Two:
    world = Two(tmp_path)
    world.land(1, 2)
    return world


def narrow(world: Two) -> None:
    """The pipeline names the first table alone."""
    world.options["sink"] = world.sink_of(world.root).sinks["orders"]


def test_a_batch_is_committed_when_all_tables_have_it(world: Two) -> None:
    summary = world.run(0, coded())
    assert summary is not None
    assert (summary.rows_out, summary.rows_by_sink, summary.files_out) == (4, {"orders": 2, "daily": 2}, 2)
    assert world.tables() == [{0: [(1, 1), (2, 1)]}] * 2
    assert is_clean(world)
    assert world.run(1, coded()) is None


def test_the_pipeline_takes_them_by_name(tmp_path: Path) -> None:
    world = Two(tmp_path)
    sinks = {name: FileSink(str(tmp_path / name), format="json") for name in NAMES}
    made = Pipeline("orders", checkpoint=str(tmp_path / "c"), sources=world.sources, sinks=sinks)
    assert made.sink == world.sink_of(tmp_path)
    assert Pipeline.from_dict(json.loads(json.dumps(made.to_dict()))) == made
    with pytest.raises(DefinitionError, match=r"sink=… or sinks=\{…\}, not both"):
        Pipeline("orders", checkpoint=str(tmp_path / "c"), sources=world.sources, sinks=sinks, sink=sinks["orders"])
    with pytest.raises(DefinitionError, match="'orders': sinks must be a dict of at least two"):
        Pipeline("orders", checkpoint=str(tmp_path / "c"), sources=world.sources, sinks={})
    inside = {**sinks, "daily": FileSink(str(tmp_path))}
    with pytest.raises(DefinitionError, match="one within the other's"):
        Pipeline("orders", checkpoint=str(tmp_path / "c"), sources=world.sources, sinks=inside)


def test_what_died_between_two_tables_is_finished_without_spark(world: Two) -> None:
    die_between_two_tables(world)
    assert world.tables("orders") != world.tables("daily") == [{}]
    world.expire_leases()
    world.land(3)
    engine = coded()
    summary = world.run(1, engine)
    assert summary is not None
    assert str(summary.key) == "live/0"
    assert engine.jobs == []
    assert world.tables("orders") == world.tables("daily")
    world.run(2, coded())
    assert [sorted(table) for table in world.tables()] == [[0, 1], [0, 1]]
    assert is_clean(world)


@pytest.mark.parametrize("cleaner", ["janitor", "settle", "none"])
def test_nobody_drops_what_is_left_to_publish_of_it(world: Two, cleaner: str) -> None:
    die_between_two_tables(world)
    if cleaner == "settle":
        ti_id = run_identity(0).ti_id
        assert ti_id is not None
        settle(world.execution, ti_id=ti_id, error=OSError("full"), engine_of=lambda name: InlineEngine())
    world.expire_leases()
    if cleaner == "janitor":
        assert world.janitor().of("waits for its commit") == ["live/0 attempt 1"]
    engine = coded()
    world.run(1, engine)
    assert engine.jobs == []
    assert world.tables("orders") == world.tables("daily")


def test_where_its_stage_is_gone_the_next_attempt_takes_the_place_in_all_tables(world: Two) -> None:
    die_between_two_tables(world)
    shutil.rmtree(world.root / "daily" / "_staging")
    world.expire_leases()
    world.run(1, coded(2))
    assert world.tables() == [{0: [(1, 2), (2, 2)]}] * 2
    assert is_clean(world)


def deaths(root: Path, prepare: Callable[[Two], object], action: Callable[[Two], object]) -> Iterator[Two]:
    """A world for each moment at which the action can die."""
    for moment in itertools.count(1):
        world = Two(root / str(moment))
        world.land(1, 2)
        prepare(world)
        if not dying(moment, partial(action, world)):
            return
        world.expire_leases()
        expire(world)
        yield world


@pytest.mark.slow
def test_whatever_dies_when_in_a_batch_it_is_in_both_tables_once(tmp_path: Path) -> None:
    count = 0
    for world in deaths(tmp_path, lambda world: None, lambda world: world.run(0, coded(1))):
        for number in (1, 2):
            world.run(number, coded(number + 1))
        one, other = world.tables()
        assert one == other, f"death {count + 1}"
        assert [row for row, _ in one[0]] == [1, 2]
        assert is_clean(world)
        assert world.stages() == []
        count += 1
    assert count > 12


@pytest.mark.slow
def test_whatever_dies_when_in_a_replay_both_tables_get_the_new_code(tmp_path: Path) -> None:
    count = 0
    for world in deaths(
        tmp_path, lambda world: world.run(0, coded(1)), lambda world: world.run(0, coded(2), clear_number=1)
    ):
        world.run(0, coded(2), clear_number=1, try_number=2)
        assert world.tables() == [{0: [(1, 2), (2, 2)]}] * 2, f"death {count + 1}"
        assert is_clean(world)
        count += 1
    assert count > 11


@pytest.mark.slow
def test_whatever_dies_when_in_a_rewind_nothing_is_left_in_either_table(tmp_path: Path) -> None:
    count = 0
    for world in deaths(tmp_path, lambda world: world.run(0, coded(1)), lambda world: applied(world, rewind(-1))):
        applied(world, rewind(-1))
        assert world.tables() == [{}, {}], f"death {count + 1}"
        world.run(1, coded(2))
        assert world.tables() == [{0: [(1, 2), (2, 2)]}] * 2
        count += 1
    assert count > 10


def test_a_rewind_takes_out_what_was_published_to_a_part_of_the_tables(world: Two) -> None:
    die_between_two_tables(world)
    expire(world)
    world.land(3)
    applied(world, rewind(-1))
    assert world.tables() == [{}, {}]
    world.run(1, coded(2))
    assert world.tables() == [{0: [(1, 2), (2, 2)]}] * 2
    world.run(2, coded(2))
    assert world.tables() == [{0: [(1, 2), (2, 2)], 1: [(3, 2)]}] * 2
    assert is_clean(world)


def test_a_rewind_says_what_does_not_come_back(world: Two) -> None:
    world.run(0, coded())
    world.options["sink"] = FileSink(str(world.root / "orders"), format="json")
    world.land(3)
    world.run(1, coded())
    with pytest.raises(MaintenanceError, match=r"batch live/0 is in .*daily, and was published together with another"):
        planned(world, rewind(-1))
    shown = planned(world, rewind(-1, allow_skip=True))
    whys = {Path(step.where).name: step.why for step in shown.steps if isinstance(step, DropOutput)}
    assert whys == {
        "orders": "it is read and published again",
        "daily": "nothing writes to this table any more",
    }
    assert any("daily: what is taken out there does not come back" in note for note in shown.notes)


def test_check_names_the_table_that_lacks_a_batch_and_a_clear_puts_it_back(world: Two) -> None:
    world.run(0, coded())
    shutil.rmtree(world.root / "daily" / "lane=live" / "batch_id=0")
    (finding,) = check_table(world.checkpoint, everything=True).findings
    assert "daily" in finding.message
    assert "/orders" not in finding.message
    world.run(0, coded(2), clear_number=1)
    assert world.tables() == [{0: [(1, 2), (2, 2)]}] * 2
    assert is_clean(world)


def test_check_names_no_table_where_none_could_tell(world: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(sink: FileSink, batch: ExpectedBatch) -> None:
        raise SinkError("it was dropped")

    world.run(0, coded())
    monkeypatch.setattr(FileSink, "contains", fail)
    (finding,) = check_table(world.checkpoint, everything=True).findings
    assert finding.message == "it was dropped"
    assert "is among it" not in finding.repair


def test_a_table_that_lost_a_batch_is_missed_also_when_it_was_replayed_without_it(world: Two) -> None:
    world.run(0, coded())
    shutil.rmtree(world.root / "daily" / "lane=live" / "batch_id=0")
    narrow(world)
    (finding,) = check_table(world.checkpoint, everything=True).findings
    assert f"see that file://{world.root}/daily is among it" in finding.repair
    world.run(0, coded(2), clear_number=1)
    (finding,) = check_table(world.checkpoint, everything=True).findings
    assert f"not in file://{world.root}/daily:" in finding.message
    world.options["sink"] = world.sink_of(world.root)
    world.run(0, coded(3), clear_number=2)
    assert world.tables() == [{0: [(1, 3), (2, 3)]}] * 2
    assert is_clean(world)


def test_one_that_was_taken_away_and_dropped_is_told_and_no_finding(
    world: Two, capsys: pytest.CaptureFixture[str]
) -> None:
    """The check would be red until retention has removed the last batch of before, over rows that nobody misses."""
    world.run(0, coded())
    shutil.rmtree(world.root / "daily")
    assert check_table(world.checkpoint, everything=True).findings, "the pipeline names it: it may be away"
    narrow(world)
    world.land(3)
    world.run(1, coded())
    assert main(["check", "--table", str(world.root / "checkpoint")]) == 0
    assert re.search(r"note: \S*/daily is away, and the pipeline names it no more", capsys.readouterr().out)
    shutil.rmtree(world.root / "orders" / "lane=live" / "batch_id=0")
    assert main(["check", "--table", str(world.root / "checkpoint")]) == 1, "what is named has lost a batch"


def test_what_the_pipeline_names_by_now_is_looked_up_once_a_lane(world: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time all attempts of the lane are listed: a check of a year's batches would list them all for each."""
    for number in range(3):
        world.land(10 + number)
        world.run(number, coded())
    shutil.rmtree(world.root / "daily")
    narrow(world)
    world.land(20)
    world.run(3, coded())
    looked, today = list[str](), Recorded.today
    monkeypatch.setattr(Recorded, "today", lambda self, lane: (looked.append(lane), today(self, lane))[1])
    assert check_table(world.checkpoint, everything=True).findings == []
    assert looked == [LIVE]


def test_one_that_is_away_and_named_is_a_finding_beside_one_that_has_the_batch(world: Two) -> None:
    narrow(world)
    world.run(0, coded())
    world.options["sink"] = world.sink_of(world.root)
    world.land(3)
    world.run(1, coded())
    shutil.rmtree(world.root / "daily")
    found = check_table(world.checkpoint, everything=True)
    assert any("/daily" in finding.message for finding in found.findings)
    assert not found.notes


def test_a_table_that_is_named_no_more_and_is_away_is_not_asked_for_batches_that_never_went_there(world: Two) -> None:
    """Dropped long ago, it kept each later batch from being rewound."""
    world.run(0, coded())
    narrow(world)
    for number in (1, 2):
        world.land(10 + number)
        world.run(number, coded())
    shutil.rmtree(world.root / "daily")
    shown = applied(world, rewind(1))
    assert any(f"file://{world.root}/daily does not tell which batches it has" in note for note in shown.notes)
    assert [sorted(table) for table in world.tables("orders")] == [[0, 1]]
    world.run(3, coded())
    assert [sorted(table) for table in world.tables("orders")] == [[0, 1, 2]]
    with pytest.raises(MaintenanceError, match=r"daily is away, .*if it is gone for good, with --allow-skip"):
        applied(world, rewind(-1))
    applied(world, rewind(-1, allow_skip=True))
    world.run(4, coded())
    assert [sorted(table) for table in world.tables("orders")] == [[0]]


def test_one_that_is_named_again_and_is_away_is_asked_for_each_batch(world: Two) -> None:
    """Somebody may have copied what the others have into it, before it was named."""
    world.run(0, coded())
    narrow(world)
    world.land(11)
    world.run(1, coded())
    world.options["sink"] = world.sink_of(world.root)
    assert world.run(2, coded()) is None
    shutil.rmtree(world.root / "daily")
    with pytest.raises(SinkError, match="daily is away"):
        applied(world, rewind(0))


def test_no_batch_of_before_a_rewind_is_missed_in_a_table_that_was_taken_away_since(world: Two) -> None:
    world.run(0, coded())
    applied(world, rewind(-1))
    narrow(world)
    world.run(1, coded(2))
    assert world.tables("orders") == [{0: [(1, 2), (2, 2)]}]
    assert is_clean(world)


def test_a_batch_that_is_in_a_part_of_the_tables_is_not_set_aside(tmp_path: Path) -> None:
    world = Two(tmp_path, on_failure="set_aside", set_aside_after=1)
    world.land(1)
    die_between_two_tables(world)
    shutil.rmtree(world.root / "daily" / "_staging")
    world.expire_leases()
    broken = InlineEngine(transform=lambda sources: 1 / 0)  # type: ignore[arg-type, return-value]
    for number in (1, 2):
        with pytest.raises(TransformError):
            world.run(number, broken)
    world.run(3, coded(2))
    assert world.tables() == [{0: [(1, 2)]}] * 2
    world.land(2)
    with pytest.raises(BatchSetAsideError):
        world.run(4, broken)


def test_a_table_can_be_added_and_taken_away(world: Two) -> None:
    world.options["sink"] = FileSink(str(world.root / "orders"), format="json")
    world.run(0, coded())
    world.options["sink"] = world.sink_of(world.root)
    world.land(3)
    world.run(1, coded())
    assert [sorted(table) for table in world.tables()] == [[0, 1], [1]]
    assert is_clean(world)
    world.run(0, coded(2), clear_number=1)
    assert world.tables() == [{0: [(1, 2), (2, 2)], 1: [(3, 1)]}] * 2, "a replay puts it into both"
    world.options["sink"] = FileSink(str(world.root / "daily"), format="json")
    world.land(4)
    world.run(2, coded())
    assert [sorted(table) for table in world.tables()] == [[0, 1], [0, 1, 2]]
    assert is_clean(world)
    with pytest.raises(SinkError, match="its rows would be in both"):
        world.run(1, coded(2), clear_number=1)


def test_an_added_table_that_has_somebody_elses_batch_is_refused_before_anything_is_published(world: Two) -> None:
    other = Two(world.root / "other", sink=FileSink(str(world.root / "daily"), format="json"), name="returns")
    other.land(7)
    other.run(0, coded())
    with pytest.raises(SinkError, match="published by pipeline 'returns'"):
        world.run(0, coded())
    assert world.tables("orders") == [{}]


def test_a_range_whose_end_is_known_only_after_reading_is_not_read_for_several(tmp_path: Path) -> None:
    world = Two(tmp_path)
    world.sources = {"numbers": CounterSource(str(tmp_path / "head"), late=True)}  # type: ignore[dict-item]
    (tmp_path / "head").write_text("3")
    with pytest.raises(SourceError, match="source numbers has an end that is known only after reading"):
        world.run(0, coded())
    assert world.checkpoint.offset_log.ids() == []


def test_a_checkpoint_that_was_restored_takes_no_number_that_a_part_is_published_under(world: Two) -> None:
    planned = world.execution.plan(run_identity(0))
    assert planned is not None
    shutil.copytree(world.root / "checkpoint", world.root / "backup")
    die_between_two_tables(world)
    shutil.rmtree(world.root / "daily" / "_staging")
    shutil.rmtree(world.root / "checkpoint")
    (world.root / "backup").rename(world.root / "checkpoint")
    world.expire_leases()
    world.run(0, coded(2), try_number=2)
    assert world.tables() == [{0: [(1, 2), (2, 2)]}] * 2
    commit = world.checkpoint.commit_log.get(0)
    assert commit is not None
    assert commit.epoch == 2


@pytest.mark.parametrize("before", [NAMES, ("daily", "audit"), ("daily",)])
def test_none_of_the_tables_changes_its_form(tmp_path: Path, before: tuple[str, ...]) -> None:
    world = Two(tmp_path)
    world.options["sink"] = FileSink(str(tmp_path / "daily"), format="json")
    if len(before) > 1:
        world.options["sink"] = world.sink_of(tmp_path, *before)
    world.land(1)
    world.run(0, coded())
    another = FileSink(str(tmp_path / "daily"), format="json", partition_by=("id",))
    world.options["sink"] = Sinks({"orders": FileSink(str(tmp_path / "orders"), format="json"), "daily": another})
    world.land(2)
    with pytest.raises(SinkError, match=r"/daily has batches that were written with partition_by=\(\)"):
        world.run(1, coded())
    assert world.tables("orders", "daily")[1] == {0: [(1, 1)]}


def test_output_of_another_checkpoint_is_adopted_in_all_tables_or_not_at_all(tmp_path: Path) -> None:
    world = Two(tmp_path)
    world.options["sink"] = FileSink(str(tmp_path / "orders"), format="json")
    world.land(1)
    world.run(0, coded())
    world.options["sink"] = world.sink_of(tmp_path)
    world.land(2)
    assert world.execution.plan(run_identity(1)) is not None
    key = BatchKey(LIVE, 1)
    theirs = expect(key, checkpoint="another")
    for table in world.sink_of(tmp_path).open(SinkContext()).tables:
        write_stage(table, 1, batch=theirs.identity, rows=1)
        table.publish(theirs, 1)
    with pytest.raises(SinkError, match="is another one than pipeline 'orders'"):
        world.run(1, coded())
    applied(world, lambda drafting: plan_adopt(drafting, key, allow_skip=True))
    world.run(1, coded())
    assert [table[1] for table in world.tables()] == [[(0, 0)]] * 2
    assert is_clean(world)


def test_a_table_that_lacks_the_batch_opens_no_way_round_what_a_replay_must_not_do(world: Two) -> None:
    gone = world.land(3)
    source = world.sources["orders"]
    world.sources["orders"] = replace(source, on_missing="skip")
    world.options["sink"] = FileSink(str(world.root / "orders"), format="json")
    world.run(0, coded())
    world.options["sink"] = world.sink_of(world.root)
    gone.unlink()
    with pytest.raises(SourceError, match=r"nothing was replaced.*1 planned file\(s\) are gone"):
        world.run(0, coded(2), clear_number=1)
    assert world.tables() == [{0: [(1, 1), (2, 1), (3, 1)]}, {}]


def test_tables_of_two_attempts_are_not_committed(world: Two) -> None:
    die_between_two_tables(world)
    shutil.rmtree(world.root / "daily" / "_staging")
    world.expire_leases()
    # The other order from now on: attempt 2 is published to daily, and then the disk of orders is full.
    world.options["sink"] = world.sink_of(world.root, "daily", "orders")
    with mock.patch.object(FileSink, "replace", side_effect=SinkError("the disk is full")), pytest.raises(SinkError):
        world.run(1, coded(2))
    assert world.tables() == [{0: [(1, 0), (2, 0)]}, {0: [(1, 2), (2, 2)]}]
    world.run(1, coded(3), try_number=2)
    assert world.tables() == [{0: [(1, 3), (2, 3)]}] * 2
    assert is_clean(world)


def test_a_table_that_was_added_can_begin_with_a_cleared_batch(world: Two) -> None:
    world.options["sink"] = FileSink(str(world.root / "orders"), format="json")
    world.run(0, coded())
    world.options["sink"] = world.sink_of(world.root)
    world.run(0, coded(2), clear_number=1)
    assert world.tables() == [{0: [(1, 2), (2, 2)]}] * 2
    world.land(3)
    world.run(1, coded(2))
    assert world.tables() == [{0: [(1, 2), (2, 2)], 1: [(3, 2)]}] * 2
    assert is_clean(world)
