"""Marks: a reason for the janitor, that decides nothing."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_microbatch.checkpoint.key import LETTERS, LIVE, BatchKey
from airflow_provider_microbatch.checkpoint.marks import Mark
from airflow_provider_microbatch.execution.retention import MARK_SECONDS
from tests.execution.world import KEY, World
from tests.support.hooks import lines


def mark(**changes: Any) -> Mark:
    """Of the task that runs as number 0."""
    values: dict[str, Any] = {
        "dag_id": "orders",
        "run_id": "run-0",
        "task_id": "micro_batch",
        "ti_id": "ti-0-0-1",
        "try_number": 1,
        "status": "canceled",
        "reason": "a user marked the task as failed",
        "marked_ms": 1,
    }
    return Mark(**{**values, **changes})


def of_the_run(**changes: Any) -> Mark:
    """Of the whole DAG run, later than every attempt in it."""
    return mark(task_id=None, ti_id=None, try_number=None, marked_ms=2**60, **changes)


def age(world: World, seconds: float) -> None:
    """Time passes for the marks, by the store's clock."""
    for path in (world.root / "checkpoint" / "marks").iterdir():
        past = path.stat().st_mtime - seconds
        os.utime(path, (past, past))


@pytest.mark.parametrize(
    ("marks", "status", "reason"),
    [
        ([], "failed", "that it runs"),
        ([mark()], "canceled", "Airflow: a user marked the task as failed"),
        ([mark(status="failed", ti_id=None, reason="the process is gone")], "failed", "Airflow: the process is gone"),
        ([mark(status="failed", try_number=2, ti_id=None, reason="a later try")], "failed", "that it runs"),
        ([mark(ti_id="ti-0-1-1")], "failed", "that it runs"),
        ([mark(run_id="run-1")], "failed", "that it runs"),
        ([of_the_run(status="failed", reason="the DAG run failed: task_failure")], "failed", "task_failure"),
        ([of_the_run(status="failed"), mark()], "canceled", "as failed"),
    ],
)
def test_the_janitor_gives_the_reason_that_airflow_gave(
    world: World, diary: Path, marks: list[Mark], status: str, reason: str
) -> None:
    world.staged()
    for one in marks:
        world.checkpoint.marks.put(one)
    world.expire_leases()
    world.janitor()
    assert lines(diary)[1:] == [f"diary {status} live/0 1"]
    ended = world.checkpoint.attempts.ended(KEY, 1)
    assert ended is not None
    assert ended.error is not None
    assert ended.error.endswith(reason)


def test_what_happened_to_the_run_before_it_was_cleared_is_no_reason(world: World, diary: Path) -> None:
    world.checkpoint.marks.put(mark(task_id=None, marked_ms=1))
    world.staged()
    world.expire_leases()
    world.janitor()
    assert lines(diary)[1:] == ["diary failed live/0 1"]


def test_a_marked_attempt_that_is_alive_is_not_touched(world: World) -> None:
    world.staged()
    world.checkpoint.marks.put(mark())
    before = world.files()
    assert world.janitor().of("alive") == ["live/0 attempt 1"]
    assert world.files() == before


def test_said_twice_it_is_one_mark(world: World) -> None:
    world.staged()
    assert world.checkpoint.marks.put(mark())
    assert not world.checkpoint.marks.put(mark(marked_ms=2))
    assert len(world.checkpoint.marks.all()) == 1


def test_a_mark_goes_when_its_attempt_has_ended_and_time_has_passed(world: World) -> None:
    world.staged()
    marks = world.checkpoint.marks
    marks.put(mark())
    age(world, MARK_SECONDS + 1)
    world.janitor()
    assert len(marks.names()) == 1, "its attempt is alive"
    world.expire_leases()
    assert world.janitor().of("retention applied") == ["1 marks of Airflow's events"]
    assert marks.names() == []


def test_what_cannot_be_read_in_one_lane_keeps_nothing_else_from_retention(world: World) -> None:
    world.staged()
    world.checkpoint.marks.put(mark())
    world.expire_leases()
    age(world, MARK_SECONDS + 1)
    for lane in (LIVE, LETTERS):
        strange = Path(world.checkpoint.attempts.epochs.where(BatchKey(lane, 9), 1))
        strange.parent.mkdir(parents=True)
        strange.write_text("v1\nnothing of ours")
    (world.root / "checkpoint" / "lanes" / LETTERS).mkdir(parents=True)
    report = world.janitor()
    told = [action.what for action in report.actions if action.kind == "failed"]
    assert told == ["retention of lane live", "retention of lane dead-letters"]
    assert world.checkpoint.marks.names() == []


def test_a_mark_that_cannot_be_read_keeps_nobody_from_anything(world: World, diary: Path) -> None:
    world.staged()
    folder = world.root / "checkpoint" / "marks"
    folder.mkdir()
    (folder / "torn").write_text("v1\n{")
    (folder / "strange").write_text('v1\n{"status":"failed"}')
    world.expire_leases()
    assert not world.janitor().failed
    assert lines(diary)[1:] == ["diary failed live/0 1"]
    age(world, MARK_SECONDS + 1)
    world.janitor()
    assert list(folder.iterdir()) == []
