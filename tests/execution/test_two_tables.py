"""Commands and the janitor over batches of two tables: what is in one of them only is not the batch."""

from __future__ import annotations

import shutil
from pathlib import Path
from unittest import mock

import pytest

from airflow_provider_microbatch.checkpoint.key import LIVE, BatchKey
from airflow_provider_microbatch.exceptions import BrokenLogError
from airflow_provider_microbatch.execution.ending import Ending
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.upkeep.commands.withdraw_clear import plan_withdraw_clear
from airflow_provider_microbatch.upkeep.table_check import check_table
from tests.execution.maintaining import applied, expire, planned, rewind
from tests.execution.two_tables import NAMES, Two, coded, die_between_two_tables, is_clean
from tests.execution.world import Killed

KEY = BatchKey(LIVE, 1)
TORN = "v1\n{"


@pytest.fixture
def world(tmp_path: Path) -> Two:
    """Batch 0 was written when the pipeline had one table; batch 1 is for both."""
    world = Two(tmp_path)
    world.options["sink"] = FileSink(str(world.root / "orders"), format="json")
    world.land(1)
    world.run(0, coded())
    world.options["sink"] = world.sink_of(world.root)
    world.land(2)
    return world


def cut_off_replay(world: Two) -> None:
    """Batch 1 is committed by attempt 1; attempt 2, of a clear, has replaced it in the first table and died then."""
    world.run(1, coded(1))
    real = FileSink.publish

    def publish(sink: FileSink, *given: object) -> object:
        if sink.path.endswith(NAMES[1]):
            raise Killed
        return real(sink, *given)  # type: ignore[arg-type]

    dead = mock.patch.object(Ending, "abandon", side_effect=Killed)
    with dead, mock.patch.object(FileSink, "publish", publish), pytest.raises(Killed):
        world.run(1, coded(2), clear_number=1)
    expire(world)
    assert [table[1] for table in world.tables()] == [[(2, 2)], [(2, 1)]]


def test_check_asks_all_tables_that_the_attempt_wrote_to(world: Two) -> None:
    world.run(1, coded())
    shutil.rmtree(world.root / "daily" / "lane=live" / "batch_id=1")
    (finding,) = check_table(world.checkpoint, everything=True).findings
    assert finding.message.startswith("batch live/1 is committed and not in ")
    assert "daily" in finding.message


def test_check_tells_of_a_batch_that_the_tables_have_of_two_attempts(world: Two) -> None:
    cut_off_replay(world)
    (finding,) = check_table(world.checkpoint, everything=True).findings
    assert "orders has it of attempt 2" in finding.message
    assert "daily has it of attempt 1" in finding.message
    assert "microbatch janitor" in finding.repair
    (newest,) = (one for one in world.checkpoint.attempts.all(KEY) if one.epoch == 2)
    world.execution.keep(newest, seconds=3600)  # as the steps do, whose audits the janitor leaves it to
    (finding,) = check_table(world.checkpoint, everything=True).findings
    assert "Clear the commit task of run" in finding.repair
    assert "microbatch janitor" not in finding.repair
    world.run(1, coded(2), clear_number=1, try_number=2)
    assert is_clean(world)


def test_repair_commits_nothing_that_one_of_the_tables_lacks(world: Two) -> None:
    die_between_two_tables(world, 1)
    expire(world)
    (world.root / "checkpoint" / "commits" / "1").write_text(TORN)
    applied(world)
    assert world.checkpoint.commit_log.ids() == [0]
    world.run(1, coded(2))
    one, other = world.tables()
    assert one[1] == other[1]
    assert is_clean(world)


def test_repair_commits_nothing_that_is_of_two_attempts(world: Two) -> None:
    cut_off_replay(world)
    (world.root / "checkpoint" / "commits" / "1").write_text(TORN)
    applied(world)
    assert world.checkpoint.commit_log.ids() == [0]
    world.run(1, coded(3), clear_number=1, try_number=2)
    assert [table[1] for table in world.tables()] == [[(2, 2)]] * 2
    assert is_clean(world)


def test_repair_plans_nothing_again_that_one_of_the_tables_has(world: Two) -> None:
    die_between_two_tables(world, 1)
    expire(world)
    (world.root / "checkpoint" / "offsets" / "1").write_text(TORN)
    (problem,) = planned(world).problems
    assert "Batch 1 is in" in problem.what
    assert "not free to be planned again" in problem.what


def test_the_janitor_finishes_a_replay_that_was_cut_off_between_two_tables(world: Two) -> None:
    cut_off_replay(world)
    assert world.janitor(dry_run=True).of("clear answered") == ["live/1 attempt 2"]
    assert world.tables()[1][1] == [(2, 1)]
    assert world.janitor().of("clear answered") == ["live/1 attempt 2"]
    assert [table[1] for table in world.tables()] == [[(2, 2)]] * 2
    assert world.checkpoint.replays.pending(KEY) == []
    assert is_clean(world)


def test_where_its_stage_is_gone_the_clear_goes_on_waiting(world: Two) -> None:
    cut_off_replay(world)
    shutil.rmtree(world.root / "daily" / "_staging")
    assert world.janitor().of("clear answered") == []
    shown = planned(world, lambda drafting: plan_withdraw_clear(drafting, KEY))
    assert any("of two attempts" in note for note in shown.notes)
    world.run(1, coded(3), clear_number=1, try_number=2)
    assert [table[1] for table in world.tables()] == [[(2, 3)]] * 2
    assert is_clean(world)


def test_a_rewind_leaves_no_stage_where_that_can_be_seen_to(world: Two) -> None:
    attempt = world.staged(1)
    expire(world)
    dear = property(lambda sink: not sink.path.endswith(NAMES[1]))
    with mock.patch.object(FileSink, "is_cheap_to_ask", dear):
        applied(world, rewind(0))
    folders = world.execution.sink.stages_by_name(attempt.batch, attempt.epoch).values()
    assert [Path(stage.report.removeprefix("file://")).exists() for stage in folders] == [False, True]
    with pytest.raises(BrokenLogError, match="was never planned"):
        world.execution.publish(attempt)
    assert [sorted(table) for table in world.tables()] == [[0], []]
