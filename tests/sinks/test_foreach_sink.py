"""Sinks of the user's own: when their function is called, and what ``microbatch check-sink`` says of those that keep
their promises, and of those that break one. (tests/contract/test_sink.py has what they share with every sink.)"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

from airflow_provider_microbatch.cli.main import main
from airflow_provider_microbatch.exceptions import DefinitionError, MaintenanceError, PublishConflictError, SinkError
from airflow_provider_microbatch.sinks import SinkContext
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sinks.foreach import ForeachBatch, StagedRows
from airflow_provider_microbatch.sinks.trial import CASES, Trial, verdicts
from airflow_provider_microbatch.verdict import FAILED, NOT_TRIED, OK
from tests.execution.maintaining import applied, rewind
from tests.execution.world import World
from tests.sinks.stages import BATCH, EXPECTED, KEY, write_stage
from tests.support import foreach_sinks
from tests.support.foreach_sinks import HasNoTakeOut, LosesTheAnswer, RowsInSqlite, Typed

ROWS: list[Mapping[str, Any]] = [{"id": 1, "note": "ü"}, {"id": 2, "note": None}]
FORK = multiprocessing.get_context("fork")


@dataclass(frozen=True)
class Told(RowsInSqlite):
    """Keeps what it was called with."""

    calls: ClassVar[list[ForeachBatch]] = []

    def write(self, batch: ForeachBatch, rows: StagedRows) -> None:
        self.calls.append(batch)
        super().write(batch, rows)


@dataclass(frozen=True)
class DiesAfterwards(RowsInSqlite):
    """The process ends before anybody hears that the rows are in."""

    def write(self, batch: ForeachBatch, rows: StagedRows) -> None:
        super().write(batch, rows)
        os.kill(os.getpid(), signal.SIGKILL)


class Killed(BaseException):
    """The process is gone."""


@dataclass(frozen=True)
class Raises(HasNoTakeOut):
    def write(self, batch: ForeachBatch, rows: StagedRows) -> None:
        raise ValueError("no room")


def made(cls: type[RowsInSqlite], folder: Path, **given: Any) -> Any:
    return cls(str(folder / "stages"), str(folder / "rows.db"), **{"format": "json", **given})


def held(folder: Path) -> list[Mapping[str, Any]]:
    whose = ForeachBatch(key=KEY, checkpoint=EXPECTED.identity.checkpoint, pipeline="orders", epoch=0, is_replay=False)
    found: list[Mapping[str, Any]] = made(RowsInSqlite, folder).held(whose)
    return found


def test_the_function_is_called_once_for_a_batch_and_again_for_its_replay(tmp_path: Path) -> None:
    Told.calls.clear()
    sink = made(Told, tmp_path).open(SinkContext())
    for epoch in (1, 2, 3):
        write_stage(sink, epoch, rows=epoch)
    for _ in range(2):
        sink.publish(EXPECTED, 1)
    assert [(call.epoch, call.is_replay) for call in Told.calls] == [(1, False)]
    assert sink.publish(EXPECTED, 2).epoch == 1
    for _ in range(2):
        sink.replace(EXPECTED, 3)
    with pytest.raises(PublishConflictError):
        sink.replace(EXPECTED, 2)
    assert [(call.epoch, call.is_replay) for call in Told.calls] == [(1, False), (3, True)]
    assert Told.calls[0].key == KEY
    assert [row["epoch"] for row in held(tmp_path)] == [3, 3, 3]
    assert not list((tmp_path / "stages").glob("lane=*/batch_id=*/part-*")), "rows lie there twice"


def test_who_dies_before_it_is_known_that_rows_are_in_is_followed_by_who_writes_them_again(tmp_path: Path) -> None:
    sink = made(DiesAfterwards, tmp_path).open(SinkContext())
    write_stage(sink, 1)
    process = FORK.Process(target=sink.publish, args=(EXPECTED, 1))
    process.start()
    process.join(60)
    assert process.exitcode == -9
    assert len(held(tmp_path)) == 3
    Told.calls.clear()
    after = made(Told, tmp_path).open(SinkContext())
    assert after.contains(EXPECTED) is None
    write_stage(after, 2)
    assert after.publish(EXPECTED, 2).epoch == 2
    assert [row["epoch"] for row in held(tmp_path)] == [2, 2, 2]
    assert [call.is_replay for call in Told.calls] == [True], "rows of attempt 1 were there"
    assert after.drop_stage(BATCH, 1)
    assert len(held(tmp_path)) == 3, "the record is another attempt's, and the rows too"


def test_what_a_replay_brought_before_its_record_stays_with_the_record_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch is in, and readers find all of it, by whichever attempt."""

    def die(*_: object) -> None:
        raise Killed

    sink = made(RowsInSqlite, tmp_path).open(SinkContext())
    for epoch in (1, 2):
        write_stage(sink, epoch)
    sink.publish(EXPECTED, 1)
    with monkeypatch.context() as patch:
        patch.setattr(FileSink, "replace", die)
        with pytest.raises(Killed):
            sink.replace(EXPECTED, 2)
    assert sink.drop_stage(BATCH, 2)
    assert sink.seen(EXPECTED).epoch == 1
    assert [row["epoch"] for row in held(tmp_path)] == [2, 2, 2]
    assert sink.withdraw(EXPECTED, 1)
    assert held(tmp_path) == []
    assert sink.seen(EXPECTED) is None


def killed_behind_its_call(world: World, number: int, **run: Any) -> None:
    """The task of a batch, whose process ends between the function's return and the record of it."""

    def die(*_: object, **__: object) -> None:
        raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FileSink, "publish", die)
        patch.setattr("airflow_provider_microbatch.execution.execution.Execution.abandon", die)
        with pytest.raises(Killed):
            world.run(number, **run)
    world.expire_leases()


def rows_in(folder: Path) -> list[int]:
    with made(RowsInSqlite, folder)._transaction() as database:
        return sorted(json.loads(row)["id"] for (row,) in database.execute("SELECT row FROM rows"))


def test_a_rewind_takes_out_what_was_brought_before_its_record(tmp_path: Path) -> None:
    world = World(tmp_path, sink=made(RowsInSqlite, tmp_path))
    world.land(1)
    world.run(0)
    world.land(2)
    killed_behind_its_call(world, 1)
    assert rows_in(tmp_path) == [1, 2]
    with pytest.raises(MaintenanceError, match="would be in it twice: batch 1"):
        applied(world, rewind(0, drop_output=False))
    applied(world, rewind(0))
    assert rows_in(tmp_path) == [1]
    world.land(3)
    world.run(2)
    world.run(3)
    assert rows_in(tmp_path) == [1, 2, 3]
    assert not list((tmp_path / "stages" / "_called").iterdir())


def test_so_does_the_janitor_and_a_retry_brings_it_again(tmp_path: Path) -> None:
    world = World(tmp_path, sink=made(RowsInSqlite, tmp_path))
    world.land(1)
    killed_behind_its_call(world, 0)
    assert world.janitor().of("stage dropped") == ["live/0 attempt 1"]
    assert rows_in(tmp_path) == []
    killed_behind_its_call(world, 0, try_number=2)
    world.run(0, try_number=3)
    assert rows_in(tmp_path) == [1]


def test_a_class_that_takes_nothing_out_is_not_rewound_over_what_it_may_have_brought(tmp_path: Path) -> None:
    world = World(tmp_path, sink=made(HasNoTakeOut, tmp_path))
    world.land(1)
    killed_behind_its_call(world, 0)
    for drop_output in (True, False):
        with pytest.raises(MaintenanceError, match=r"no batch can be taken out of|would be in it twice"):
            applied(world, rewind(-1, drop_output=drop_output))
    assert world.janitor().of("stage dropped") == ["live/0 attempt 1"]
    with pytest.raises(MaintenanceError, match="no batch can be taken out of"):
        applied(world, rewind(-1))
    world.run(0, try_number=2)
    assert rows_in(tmp_path) == [1]


def test_what_the_function_raises_is_the_attempts_error_and_nothing_is_in(tmp_path: Path) -> None:
    sink = made(Raises, tmp_path).open(SinkContext())
    write_stage(sink, 1)
    with pytest.raises(SinkError, match=r"Raises\.write raised ValueError: no room") as error:
        sink.publish(EXPECTED, 1)
    assert isinstance(error.value.__cause__, ValueError)
    assert sink.contains(EXPECTED) is None
    assert sink.seen(EXPECTED) is None
    assert sink.withdraw(EXPECTED, 1) is False


@pytest.mark.parametrize("is_down", [False, True])
def test_what_was_brought_by_a_call_that_raised_behind_its_commit_is_taken_out_with_the_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_down: bool
) -> None:
    monkeypatch.setattr(LosesTheAnswer, "is_down", is_down)
    world = World(tmp_path, sink=made(LosesTheAnswer, tmp_path))
    world.land(1)
    with pytest.raises(SinkError, match="server closed the connection"):
        world.run(0)
    assert rows_in(tmp_path) == ([1] if is_down else [])
    monkeypatch.setattr(LosesTheAnswer, "is_down", False)
    with pytest.raises(SinkError, match="server closed the connection"):
        world.run(0, try_number=2)
    assert rows_in(tmp_path) == []
    applied(world, rewind(-1, drop_output=False))
    world.options["sink"] = made(RowsInSqlite, tmp_path)
    world.land(2)
    world.run(1)
    world.run(2)
    assert rows_in(tmp_path) == [1, 2]


def test_rows_of_parquet_come_as_rows_and_as_a_frame(tmp_path: Path) -> None:
    trial = Trial(made(RowsInSqlite, tmp_path, format="parquet"), rows=ROWS)
    staged = trial.stage(trial.batch(), 1, ROWS)
    assert list(staged) == ROWS
    assert staged.frame.to_pylist() == ROWS
    with pytest.raises(SinkError, match='format="parquet"'):
        _ = StagedRows((), "json").frame


def test_a_format_that_tasks_cannot_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DefinitionError, match="none of parquet, json"):
        made(RowsInSqlite, tmp_path, format="orc")


def tried(cls: type[RowsInSqlite], folder: Path, **given: Any) -> dict[str, str]:
    return {one.case: one.state for one in verdicts(Trial(made(cls, folder, **given), rows=ROWS))}


@pytest.mark.parametrize("format", ["json", "parquet"])
def test_a_sink_that_keeps_all_promises_passes_and_leaves_nothing(tmp_path: Path, format: str) -> None:
    found = tried(RowsInSqlite, tmp_path, format=format)
    assert found == {case.__name__.replace("_", " "): OK for case in CASES}
    sink = made(RowsInSqlite, tmp_path)
    with sink._transaction() as database:
        assert database.execute("SELECT count(*) FROM rows").fetchone() == (0,)
    assert not list((tmp_path / "stages").glob("lane=*"))


def test_rows_of_whole_numbers_and_fractions_are_those_of_one_column(tmp_path: Path) -> None:
    """A database gives 1.0 back, where a file of rows has 1."""
    rows = [{"amount": 2.5}, {"amount": 1}]
    found = {one.case: one.state for one in verdicts(Trial(made(Typed, tmp_path), rows=rows))}
    assert set(found.values()) == {OK}


BREAKS = {
    "Appends": {
        "a write that nobody heard of is said again and changes nothing",
        "a replay leaves only its own rows",
        "a batch can be taken out and come back",
    },
    "WritesBitByBit": {"a write that was cut off is made good by the next"},
    "SwallowsErrors": {"a write that was cut off is made good by the next"},
    "ForgetsRows": {
        "those of two checkpoints do not meet",
        "rows are there as they were given",
        "batches do not meet",
        "a write that nobody heard of is said again and changes nothing",
        "a write that was cut off is made good by the next",
        "a replay leaves only its own rows",
        "a batch can be taken out and come back",
    },
    "TakesNothingOut": {"a batch can be taken out and come back"},
    "KnowsNoCheckpoints": {"those of two checkpoints do not meet"},
}


@pytest.mark.parametrize("name", BREAKS)
def test_a_broken_promise_is_found(tmp_path: Path, name: str) -> None:
    found = tried(getattr(foreach_sinks, name), tmp_path)
    assert {case for case, state in found.items() if state == FAILED} == BREAKS[name]
    assert NOT_TRIED not in found.values()


def test_the_command_says_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"id": 1}\n{"id": 2}\n')
    fields = ["--set", f"stages={tmp_path / 'stages'}", "--set", f"database={tmp_path / 'rows.db'}"]
    fields += ["--rows", str(rows)]
    module = foreach_sinks.__name__
    assert main(["check-sink", f"{module}:RowsInSqlite", *fields]) == 0
    assert f"{module}:RowsInSqlite: {len(CASES)} ok, 0 FAILED, 0 not tried" in capsys.readouterr().out
    assert main(["check-sink", f"{module}:Appends", *fields, "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    (message,) = [one["message"] for one in told if one["case"].startswith("a replay")]
    assert "too many" in message
    assert main(["check-sink", "json:JSONDecoder"]) == 2
