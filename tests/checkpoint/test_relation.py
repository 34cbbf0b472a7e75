"""How a task run stands to one that is on record: retry, clear, later clear, or another run."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from airflow_provider_microbatch.checkpoint.entries import Relation, RunIdentity


def made(second: int, **values: Any) -> RunIdentity:
    """A try that Airflow made at that second."""
    ti_id = f"{second * 1000:012x}"
    known: dict[str, Any] = {"first_try": 1, "run_started": "2026-01-01T00:00:00+00:00", **values}
    return RunIdentity(
        dag_id="orders",
        run_id="run-1",
        task_id=known.pop("task_id", "micro_batch"),
        ti_id=f"{ti_id[:8]}-{ti_id[8:]}-7000-8000-000000000000",
        **known,
    )


FIRST = made(10)
ANEW = {"run_started": "2026-01-02T00:00:00+00:00"}


@pytest.mark.parametrize(
    ("later", "relation", "backwards"),
    [
        pytest.param(FIRST, "SAME", "SAME", id="the same try"),
        pytest.param(made(20, try_number=2), "SAME", "SAME", id="a retry"),
        pytest.param(made(10, task_id="commit"), "SAME", "SAME", id="another task of the run"),
        pytest.param(made(20, try_number=2, clear_number=1, **ANEW), "LATER", "EARLIER", id="a clear"),
        pytest.param(made(20, clear_number=1, task_id="plan"), "LATER", "EARLIER", id="a clear, another task"),
        pytest.param(made(20, try_number=2, first_try=2), "LATER", "EARLIER", id="a clear that leaves the number"),
        pytest.param(made(20, try_number=2, first_try=2, **ANEW), "LATER", "EARLIER", id="such one, run started anew"),
        pytest.param(made(9, try_number=2, first_try=2), "LATER", "EARLIER", id="such one, by a clock that is behind"),
        pytest.param(made(20), "LATER", "EARLIER", id="a task instance that was deleted and made again"),
        pytest.param(made(20, **ANEW), "OTHER", "OTHER", id="a run that was deleted and made again"),
        pytest.param(made(20, try_number=2, **ANEW), "OTHER", "OTHER", id="its retry"),
        pytest.param(dataclasses.replace(FIRST, run_id="run-2", ti_id="ti"), "OTHER", "OTHER", id="another run"),
        pytest.param(dataclasses.replace(FIRST, map_index=1), "OTHER", "SAME", id="a slot but the first, and the task"),
        pytest.param(made(20, map_index=1, try_number=2, clear_number=1), "OTHER", "EARLIER", id="its clear"),
        pytest.param(
            made(20, map_index=0, try_number=2, clear_number=1), "LATER", "EARLIER", id="a task with slots now"
        ),
    ],
)
def test_a_task_run_stands_to_the_first_one(later: RunIdentity, relation: str, backwards: str) -> None:
    assert later.relation_to(FIRST) is Relation[relation]
    assert FIRST.relation_to(later) is Relation[backwards]


def test_slots_are_other_runs_to_each_other() -> None:
    first, second = (made(10, map_index=index) for index in range(2))
    assert first.relation_to(second) is second.relation_to(first) is Relation.OTHER


def test_a_retry_is_one_though_the_task_has_more_retries_by_now_than_when_it_was_cleared() -> None:
    """By which its first try since the clear is told. It answers the request of the clear, and is not fenced by it."""
    cleared = made(20, try_number=2, first_try=2, clear_number=1)
    retry = made(30, try_number=3, first_try=1, clear_number=1)
    assert retry.relation_to(cleared) is cleared.relation_to(retry) is Relation.SAME


@pytest.mark.parametrize("started", ["2026-01-01T00:00:00+00:00", None])
def test_a_retry_is_one_though_another_schedulers_clock_says_that_it_came_first(started: str | None) -> None:
    values = {"clear_number": 1, "first_try": 3, "run_started": started}
    one, retry = made(10, try_number=3, **values), made(9, try_number=4, **values)
    assert retry.relation_to(one) is one.relation_to(retry) is Relation.SAME


def test_a_run_that_is_made_again_is_another_than_one_that_was_cleared_and_deleted() -> None:
    cleared = made(20, try_number=2, first_try=2, clear_number=1)
    assert made(30, **ANEW).relation_to(cleared) is Relation.OTHER


@pytest.mark.parametrize(
    ("try_number", "relation"), [(1, Relation.OTHER), (2, Relation.SAME)], ids=["made again", "a retry"]
)
def test_of_entries_of_older_versions_the_try_tells(try_number: int, relation: Relation) -> None:
    old = dataclasses.replace(FIRST, first_try=None, run_started=None)
    assert made(20, try_number=try_number).relation_to(old) is relation
