"""What was asked to be erased is left out by whoever computes a batch from then on, and it is told which batches were
published before."""

from __future__ import annotations

import io
import json
import re
import shlex
import shutil
import stat
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from airflow_provider_microbatch.checkpoint.forgotten import Forgetting, ForgottenRows
from airflow_provider_microbatch.cli.main import main
from airflow_provider_microbatch.exceptions import (
    AttemptFencedError,
    CheckpointError,
    CorruptEntryError,
    DefinitionError,
    MaintenanceError,
    TransformError,
)
from airflow_provider_microbatch.expectations import check_condition
from airflow_provider_microbatch.sinks.delta import DeltaSink
from airflow_provider_microbatch.sinks.several import Sinks
from tests.execution.maintaining import applied, rewind
from tests.execution.two_tables import Two, coded, is_clean
from tests.execution.world import World, run_identity
from tests.support.inline_engine import InlineEngine

ENTRY = ("microbatch", "forgotten", "0")


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Two batches are published before anybody asks."""
    world = World(tmp_path)
    for number, ids in enumerate(((1, 2), (3, 4))):
        world.land(*ids)
        world.run(number)
    return world


def forget(capsys: pytest.CaptureFixture[str], world: World, *arguments: str) -> str:
    assert main(["forget", world.pipeline.checkpoint, *arguments]) == 0
    return capsys.readouterr().out


def test_later_batches_and_replays_leave_it_out(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    out = forget(capsys, world, "--where", "id = 3")
    assert "Recorded as entry 0" in out
    assert [line.split()[0] for line in out.splitlines() if line.startswith("live/")] == ["live/0", "live/1"]
    assert "id = 3" not in out
    world.run(1, clear_number=1)
    world.land(5, 6)
    world.run(2)
    assert world.table() == {0: [1, 2], 1: [4], 2: [5, 6]}
    out = forget(capsys, world)
    assert [line.split()[0] for line in out.splitlines() if line.startswith("live/")] == ["live/0"]
    world.run(0, clear_number=1)
    assert "No published batch of the log was made before them." in forget(capsys, world)
    assert is_clean(world)


def test_rows_that_a_restore_brought_back_are_told_of_where_the_command_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world = World(tmp_path, sink=DeltaSink(str(tmp_path / "lake")))
    world.land(1, 2)
    world.run(0)
    forget(capsys, world, "--where", "id = 2")
    world.run(0, clear_number=1)
    found = DeltaTable(world.lake)
    found.restore(found.version() - 1)
    (named,) = re.findall("`microbatch (check [^`]+)`", forget(capsys, world))
    assert main(shlex.split(named)) == 1
    assert "batch live/0" in capsys.readouterr().out


def test_batches_that_retention_has_removed_are_said_to_be_unlisted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world = World(tmp_path, min_batches_to_retain=2)
    for number in range(4):
        world.land(number)
        world.run(number)
    assert "The log of lane 'live' begins with batch 2" in forget(capsys, world, "--where", "id = 1")
    for number in (2, 3):
        world.run(number, clear_number=1)
    told = forget(capsys, world)
    assert "No published batch of the log" in told
    assert "begins with batch 2: the batches before it, which retention has removed, are not listed" in told
    assert json.loads(forget(capsys, world, "--json"))["log_begins"] == ["live/2"]
    assert main(["dead-letters", world.pipeline.checkpoint]) == 0
    assert "letters of the batches before it, which retention has removed, are in" in capsys.readouterr().err


def test_an_attempt_that_was_at_work_when_somebody_asked_does_not_publish(world: World, tmp_path: Path) -> None:
    world.land(7, 8)
    attempt = world.staged(2)
    world.checkpoint.forgotten.add("id = 7", sinks=(), by="me@here", at_ms=1)
    with pytest.raises(AttemptFencedError, match=r"has not left out what .* \(entry 0\)"):
        world.execution.publish(attempt)
    assert 2 not in world.table()
    world.expire_leases()
    world.run(3)
    assert world.table()[2] == [8]


def test_who_asks_while_the_checkpoint_is_carried_away_is_told_where_to_ask_again(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    add, target = ForgottenRows.add, str(tmp_path / "elsewhere")

    def carried_away(rows: ForgottenRows, condition: str, **given: Any) -> Forgetting:
        assert main(["copy", world.pipeline.checkpoint, target]) == 0
        return add(rows, condition, **given)

    monkeypatch.setattr(ForgottenRows, "add", carried_away)
    assert main(["forget", world.pipeline.checkpoint, "--where", "id = 3"]) != 0
    said = capsys.readouterr()
    assert "Recorded as entry" not in said.out
    assert "type it again there" in said.err


def test_an_entry_of_a_restored_checkpoint_is_not_taken_for_the_one_whose_number_it_has(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = world.root.joinpath("checkpoint", *ENTRY)
    forget(capsys, world, "--where", "id = 9")
    (lost,) = world.checkpoint.forgotten.all()
    world.run(1, clear_number=1)
    entry.unlink()  # as a backup has it that is older
    assert "Recorded as entry 0" in forget(capsys, world, "--where", "id = 3")
    out = forget(capsys, world)
    assert [line.split()[0] for line in out.splitlines() if line.startswith("live/")] == ["live/0", "live/1"]
    forget(capsys, world, "--lift", lost.mark)
    world.run(1, clear_number=2)
    assert world.table()[1] == [4]


def test_what_is_lifted_no_longer_counts(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    forget(capsys, world, "--where", "id = 9")
    assert "Entry 0 no longer counts" in forget(capsys, world, "--lift", "0")
    world.land(9)
    world.run(2)
    assert world.table()[2] == [9]
    with pytest.raises(MaintenanceError, match="has no entry 0 that counts"):
        world.checkpoint.forgotten.lift(0, by="me@here", at_ms=1)


def test_entries_are_in_order_whoever_writes_at_once(world: World) -> None:
    forgotten = world.checkpoint.forgotten
    numbers = [forgotten.add(f"id = {number}", sinks=(), by="me@here", at_ms=number).number for number in range(3)]
    assert numbers == [0, 1, 2]
    assert [one.condition for one in world.checkpoint.forgotten.all()] == ["id = 0", "id = 1", "id = 2"]


def test_the_condition_is_private_and_shown_to_who_asks_for_it(
    world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("id = 4\n"))
    assert "id = 4" not in forget(capsys, world, "--where", "-")
    entry = Path(world.pipeline.checkpoint).joinpath(*ENTRY)
    assert stat.S_IMODE(entry.stat().st_mode) == 0o600
    assert "id = 4" in forget(capsys, world, "--show")
    told = json.loads(forget(capsys, world, "--json"))
    assert [(one["entry"], "where" in one) for one in told["entries"]] == [(0, False)]
    assert [one["batch"] for one in told["batches"]] == ["live/0", "live/1"]


@pytest.mark.parametrize("condition", ["", "id = 3 --", "id IN (3", "ts < now()", "name = 'x"])
def test_what_cannot_be_a_condition_is_not_recorded(
    world: World, capsys: pytest.CaptureFixture[str], condition: str
) -> None:
    assert main(["forget", world.pipeline.checkpoint, "--where", condition]) == 2
    said = capsys.readouterr().err
    assert "the condition of --where" in said
    assert world.checkpoint.forgotten.all() == []
    with pytest.raises(DefinitionError):
        check_condition(condition, what="it")


def test_a_sink_that_there_is_not_is_named(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["forget", world.pipeline.checkpoint, "--where", "id = 3", "--sink", "daily"]) == 2
    assert "has no sink 'daily'" in capsys.readouterr().err
    assert world.checkpoint.forgotten.all() == []


def test_of_several_sinks_one_may_be_meant(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world = Two(tmp_path)
    world.land(1)
    world.run(0, coded())
    forget(capsys, world, "--where", "id = 3", "--sink", "daily")
    world.land(2)
    engine = coded()
    world.run(1, engine)
    checks = engine.jobs[0].checks
    assert checks is not None
    assert ([one.number for one in checks.forgotten_of("daily")], checks.forgotten_of("orders")) == ([0], [])


def test_an_entry_that_nobody_can_read_lets_nothing_be_published(world: World) -> None:
    world.checkpoint.forgotten.add("id = 3", sinks=(), by="me@here", at_ms=1)
    Path(world.pipeline.checkpoint).joinpath(*ENTRY).write_text("v1\n{")
    world.land(5)
    with pytest.raises(CorruptEntryError, match="microbatch/forgotten/0"):
        world.run(2)
    assert sorted(world.table()) == [0, 1]


def test_what_a_failed_attempt_had_finished_does_not_bring_it_back(tmp_path: Path) -> None:
    """Split by split: what was done before somebody asked is done again."""
    world = World(tmp_path, split_wise=True)
    for number in (1, 2, 3):
        world.land(number)

    def fail_at_the_last(subtask: Any) -> None:
        done.append(subtask)
        if len(done) == 3:
            raise OSError("gone")

    done: list[Any] = []
    with pytest.raises((OSError, TransformError)):
        world.run(0, InlineEngine(before_subtask=fail_at_the_last))
    world.checkpoint.forgotten.add("id = 1", sinks=(), by="me@here", at_ms=1)
    world.expire_leases()
    world.run(0, InlineEngine(), try_number=2)
    assert world.table() == {0: [2, 3]}
    assert run_identity(0).dag_id == "orders"


def left_out(engine: InlineEngine, stage: str) -> list[int]:
    """The entries that the newest job leaves out of a stage."""
    checks = engine.jobs[-1].checks
    assert checks is not None
    return [one.number for one in checks.forgotten_of(stage)]


@pytest.mark.parametrize(("clear_number", "now"), [(0, ""), (0, "by_day"), (1, "by_day")])
def test_a_table_that_has_another_name_by_now_gets_no_such_rows_under_that(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], clear_number: int, now: str
) -> None:
    """It would get them, and its batches would say that they are left out."""
    world = Two(tmp_path)
    world.land(3)
    world.run(0, coded())
    forget(capsys, world, "--where", "id = 3", "--sink", "daily")
    orders, daily = world.options["sink"].sinks.values()
    world.options["sink"] = Sinks({"orders": orders, now: daily}) if now else daily
    world.land(4)
    engine = coded()
    world.run(0 if clear_number else 1, engine, clear_number=clear_number)
    assert (left_out(engine, now), left_out(engine, "orders")) == ([0], [])


def test_an_entry_of_one_sink_has_the_clears_of_before_a_rename_and_the_batches_of_after_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Airflow runs a clear by the code of then, whose sink has the name of then."""
    world = Two(tmp_path)
    then = world.options["sink"]
    world.land(3)
    world.run(0, coded())
    orders, daily = then.sinks.values()
    now = world.options["sink"] = Sinks({"orders": orders, "by_day": daily})
    world.land(4)
    world.run(1, coded())
    forget(capsys, world, "--where", "id = 3", "--sink", "by_day")
    for number, sink, stage in ((0, then, "daily"), (2, now, "by_day")):
        world.options["sink"], engine = sink, coded()
        world.land(5 + number)
        world.run(number, engine, clear_number=int(sink is then))
        assert (left_out(engine, stage), left_out(engine, "orders")) == ([0], [])
    assert "No published batch of the log was made before them" not in forget(capsys, world), "batch 1 was"
    assert not [line for line in forget(capsys, world).splitlines() if line.startswith(("live/0", "live/2"))]


def test_an_entry_stays_with_its_table_when_two_sinks_change_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By its name alone the other table would lose rows, and this one would get them again."""
    world = Two(tmp_path)
    world.land(3)
    world.run(0, coded())
    forget(capsys, world, "--where", "id = 3", "--sink", "daily")
    orders, daily = world.options["sink"].sinks.values()
    world.options["sink"] = Sinks({"orders": daily, "daily": orders})
    world.land(4)
    engine = coded()
    world.run(1, engine)
    assert (left_out(engine, "orders"), left_out(engine, "daily")) == ([0], [])


def test_a_name_is_meant_as_the_code_of_now_has_it_whatever_a_clear_has_by_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Airflow runs a clear by the code of then, in which another table had that name."""
    world = Two(tmp_path)
    then = world.options["sink"]
    world.land(3)
    world.run(0, coded())
    orders, daily = then.sinks.values()
    now = world.options["sink"] = Sinks({"daily": orders, "orders": daily})
    world.land(4)
    world.run(1, coded())
    world.options["sink"] = then
    world.run(0, coded(), clear_number=1)
    forget(capsys, world, "--where", "id = 5", "--sink", "orders")
    world.land(5)
    for number, sink, stage, other in ((2, now, "orders", "daily"), (0, then, "daily", "orders")):
        world.options["sink"], engine = sink, coded()
        world.run(number, engine, clear_number=2 * int(sink is then))
        assert (left_out(engine, stage), left_out(engine, other)) == ([0], [])


@pytest.mark.parametrize(("clear_number", "has_place"), [(0, True), (1, False)])
def test_a_table_that_nobody_knows_under_its_other_name_gets_no_rows_until_its_entry_is_said_anew(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], clear_number: int, has_place: bool
) -> None:
    """It is elsewhere, too; or an older version has not put on record where it was."""
    world = Two(tmp_path)
    world.land(3)
    world.run(0, coded())
    if has_place:
        forget(capsys, world, "--where", "id = 3", "--sink", "daily")
        world.options["sink"] = Two.sink_of(tmp_path, "orders", "by_day")
    else:
        world.checkpoint.forgotten.add("id = 3", sinks=("daily",), by="me@here", at_ms=1)
        orders, daily = world.options["sink"].sinks.values()
        world.options["sink"] = Sinks({"orders": orders, "by_day": daily})
    world.land(4)
    number = 0 if clear_number else 1
    with pytest.raises(CheckpointError, match="is about the rows of sink 'daily', and the pipeline has ") as refused:
        world.run(number, coded(), clear_number=clear_number)
    assert "id = 3" not in str(refused.value)
    anew, lift = re.findall("`microbatch (forget [^`]+ --(?:where|lift) [^`]+)`", str(refused.value))
    given = anew.replace("…", "'id = 3'").replace("NAME", "by_day")
    for command in (given, lift):
        assert main(shlex.split(command)) == 0
    engine = coded()
    world.run(number, engine, clear_number=clear_number, try_number=2)
    checks = engine.jobs[-1].checks
    assert checks is not None
    assert [(one.number, one.condition) for one in checks.forgotten_of("by_day")] == [(1, "id = 3")]
    assert not checks.forgotten_of("orders")


def test_nor_does_any_where_the_pipeline_has_no_such_sink_any_more_until_the_entry_is_lifted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world = Two(tmp_path)
    world.land(3)
    world.run(0, coded())
    forget(capsys, world, "--where", "id = 3", "--sink", "daily")
    world.options["sink"] = world.options["sink"].sinks["orders"]
    world.land(4)
    with pytest.raises(CheckpointError, match="--lift 0"):
        world.run(1, coded())
    forget(capsys, world, "--lift", "0")
    world.run(1, coded(), try_number=2)
    assert world.tables() == [{0: [(3, 1)], 1: [(4, 1)]}, {0: [(3, 1)]}]


def restored(world: World, capsys: pytest.CaptureFixture[str]) -> str:
    """Row 3 was to be forgotten, batch 1 was cleared for that, and the checkpoint is of before again.

    :return: the mark of the entry that it has lost.
    """
    checkpoint, backup = world.root / "checkpoint", world.root / "backup"
    shutil.copytree(checkpoint, backup)
    forget(capsys, world, "--where", "id = 3")
    (entry,) = world.checkpoint.forgotten.all()
    world.run(1, clear_number=1)
    assert world.table()[1] == [4]
    shutil.rmtree(checkpoint)
    backup.rename(checkpoint)
    return entry.mark


def test_a_checkpoint_that_was_restored_does_not_bring_back_what_the_table_says_is_left_out(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    mark, engine = restored(world, capsys), InlineEngine()
    with pytest.raises(CheckpointError, match=rf"nothing was run: .* no such entry.*--lift {mark}`") as refused:
        world.run(1, engine, clear_number=2)
    assert not engine.jobs, "it is known before Spark has done all its work"
    assert world.table()[1] == [4]
    assert main(["check", world.pipeline.checkpoint, "--table"]) == 1
    told = capsys.readouterr().out
    assert told.count(mark) == 2  # the finding, and what to type: once for all batches
    anew, lift = re.findall("`microbatch (forget [^`]+ --(?:where|lift) [^`]+)`", str(refused.value))
    assert f"`microbatch {lift}`" in told
    for command in (anew.replace("…", "'id = 3'"), lift):
        assert main(shlex.split(command)) == 0
    world.run(1, clear_number=2, try_number=2)
    assert world.table()[1] == [4]
    world.run(0, clear_number=2)
    assert is_clean(world)
    assert "No published batch of the log was made before them." in forget(capsys, world)


def test_nor_has_its_next_batch_what_the_newest_one_says_is_left_out(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    mark = restored(world, capsys)
    world.land(5, 3)
    with pytest.raises(CheckpointError, match=rf"nothing was made on top of it: batch live/1.* {mark}") as refused:
        world.run(2)
    assert world.checkpoint.offset_log.latest_id() == 1, "nothing is planned"
    anew, lift = re.findall("`microbatch (forget [^`]+ --(?:where|lift) [^`]+)`", str(refused.value))
    for command in (anew.replace("…", "'id = 3'"), lift):
        assert main(shlex.split(command)) == 0
    world.run(2)
    assert world.table()[2] == [5]


def test_nor_does_one_that_was_restored_while_spark_was_at_work(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    forget(capsys, world, "--where", "id = 3")
    world.run(1, clear_number=1)
    engine = InlineEngine(after_stage=lambda job: world.root.joinpath("checkpoint", *ENTRY).unlink())
    with pytest.raises(CheckpointError, match=r"nothing was replaced: .* no such entry"):
        world.run(1, engine, clear_number=2)
    assert world.table()[1] == [4]


def test_nor_does_its_rewind_and_what_was_lifted_before_is_lifted_by_its_mark(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    mark = restored(world, capsys)
    with pytest.raises(CheckpointError, match=rf"nothing was done: batch live/1.* {mark}"):
        applied(world, rewind(0, drop_output=True))
    assert world.table()[1] == [4]
    forget(capsys, world, "--lift", mark)
    applied(world, rewind(0, drop_output=True))
    world.run(9)
    assert world.table()[1] == [3, 4]
    assert is_clean(world)


def test_a_mark_that_an_entry_has_here_lifts_none(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    forget(capsys, world, "--where", "id = 3")
    (entry,) = world.checkpoint.forgotten.all()
    assert main(["forget", world.pipeline.checkpoint, "--lift", entry.mark]) == 2
    assert f"no entry {entry.mark} that counts; those that do: 0" in capsys.readouterr().err


def test_a_mark_in_a_table_is_no_text_to_type(world: World) -> None:
    marks = ["0-0123456789abcdef", "0-0123456789abcdef`; rm -rf /", "x", ""]
    assert world.checkpoint.forgotten.lost(marks) == ["0-0123456789abcdef"]
