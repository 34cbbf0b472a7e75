"""Hooks of a job are told of each run once, whoever dies."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_microbatch import FileSink, FileSource
from airflow_provider_microbatch.exceptions import DefinitionError, HookError
from airflow_provider_microbatch.graph import JobGraph
from airflow_provider_microbatch.graph import status as of_status
from airflow_provider_microbatch.graph.status import JobStatus, RunEnd, end_of, life_of
from tests.execution.world import Killed, run_identity
from tests.graph.run_hooks import RunDiary, told

RUN = replace(run_identity(0), run_started="2026-01-01T00:00:00+00:00")
DONE = RunEnd(status="finished")


@pytest.fixture
def diary(tmp_path: Path) -> Path:
    return tmp_path / "diary"


def job(diary: Path) -> JobStatus:
    return JobStatus("shop", checkpoint=str(diary.parent / "checkpoints"), hooks=[RunDiary(str(diary))])


def test_the_first_pipeline_tells_that_the_run_is_there_and_the_others_do_not(diary: Path) -> None:
    for task in ("orders", "people"):
        job(diary).begin(replace(RUN, task_id=task, ti_id=task))
    assert told(diary, "run-0") == ["created"]
    assert job(diary).end(RUN, lambda: DONE) == DONE
    assert job(diary).end(RUN, lambda: RunEnd(status="failed")) is None
    job(diary).begin(RUN)
    assert told(diary, "run-0") == ["created", "finished"]


def test_a_run_in_which_nothing_began_has_no_end(diary: Path) -> None:
    assert job(diary).end(RUN, lambda: DONE) is None
    assert not diary.exists()


def test_a_clear_is_told_as_a_run_of_its_own(diary: Path) -> None:
    for clear in range(2):
        run = replace(RUN, clear_number=clear)
        job(diary).begin(run)
        job(diary).end(run, lambda: DONE)
    assert told(diary, "run-0") == ["created", "finished"] * 2


def test_the_first_end_that_is_said_stays(diary: Path) -> None:
    job(diary).begin(RUN)
    fails = diary.with_name("diary.fails")
    fails.write_text("failed")
    with pytest.raises(HookError, match="on_failed: OSError"):
        job(diary).end(RUN, lambda: RunEnd(status="failed", error="failed: orders"))
    fails.unlink()
    # Its task was cleared since, and succeeded; what was told to some hooks is told to all.
    assert job(diary).end(RUN, lambda: DONE) == RunEnd(status="failed", error="failed: orders")
    assert told(diary, "run-0") == ["created", "failed failed: orders", "failed failed: orders"]


def test_a_hook_that_fails_for_good_is_given_up(diary: Path) -> None:
    job(diary).begin(RUN)
    diary.with_name("diary.fails").write_text("finished")
    for _ in range(of_status.MOST_TRIES):
        with pytest.raises(HookError):
            job(diary).end(RUN, lambda: DONE)
    assert [one.run_id for one in job(diary).open_runs(but=run_identity(1))] == ["run-0"]
    assert job(diary).end(RUN, lambda: DONE) == DONE
    assert job(diary).open_runs(but=run_identity(1)) == []
    assert told(diary, "run-0") == ["created"] + ["finished"] * of_status.MOST_TRIES


class Dying:
    """A store in front of a process that dies before its next write but ``after``."""

    def __init__(self, store: object, after: int) -> None:
        self._store = store
        self._left = after

    def __getattr__(self, name: str) -> object:
        method = getattr(self._store, name)
        if name not in ("put_if_absent", "delete"):
            return method

        def counted(*arguments: object) -> object:
            self._left -= 1
            if self._left < 0:
                raise Killed
            return method(*arguments)

        return counted


@given(st.lists(st.tuples(st.sampled_from(["begin", "end"]), st.integers(0, 8)), max_size=8))
@settings(max_examples=100, deadline=None)
def test_killed_between_any_two_writes_each_is_told_and_none_twice_but_where_the_record_was_cut_off(
    tmp_path_factory: pytest.TempPathFactory, moves: list[tuple[str, int]]
) -> None:
    diary = tmp_path_factory.mktemp("job") / "diary"
    cut_off = 0
    for move, after in [("begin", 99), *moves, ("end", 99)]:
        one = job(diary)
        one._store = Dying(one._store, after)  # type: ignore[assignment]
        before = told(diary, "run-0").count("finished")
        try:
            one.begin(RUN) if move == "begin" else one.end(RUN, lambda: DONE)
        except Killed:
            cut_off += told(diary, "run-0").count("finished") > before
    assert told(diary, "run-0").count("created") == 1
    assert 1 <= told(diary, "run-0").count("finished") <= 1 + cut_off
    assert job(diary).open_runs(but=run_identity(1)) == []


def test_old_runs_do_not_stay_on_record_for_ever(diary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_status, "KEPT", 3)
    open_one = replace(RUN, run_id="open")
    job(diary).begin(open_one)
    for day in range(1, 10):
        run = replace(RUN, run_id=f"run-{day}", run_started=f"2026-02-0{day}T00:00:00+00:00")
        job(diary).begin(run)
        job(diary).end(run, lambda: DONE)
    kept = sorted(path.name for path in (diary.parent / "checkpoints" / "_job" / "told").iterdir())
    assert [life_of(open_one), *(name[:8] for name in kept[1:])] == [kept[0], "20260207", "20260208", "20260209"]


@pytest.mark.parametrize(
    ("states", "canceled", "end"),
    [
        (["success", "skipped"], [], RunEnd(status="finished")),
        (["success", "failed"], [], RunEnd(status="failed", error="failed: b")),
        (["failed", "failed"], ["b"], RunEnd(status="failed", error="failed: a")),
        (["success", "failed"], ["b"], RunEnd(status="canceled")),
        (["success", None], [], RunEnd(status="canceled")),
        (["success", "upstream_failed"], [], RunEnd(status="failed", error="failed: b")),
    ],
)
def test_how_a_run_ended(states: list[str | None], canceled: list[str], end: RunEnd) -> None:
    assert end_of(dict(zip("ab", states, strict=True)), canceled=canceled) == end


def test_what_no_other_process_could_call_is_refused_as_the_graph_is_made() -> None:
    class Here(RunDiary):
        pass

    for hook in (Here("x"), "no hook"):
        with pytest.raises(DefinitionError, match=r"cannot be imported by another|JobRunHooks"):
            JobGraph("shop", checkpoint="/data/checkpoints/shop", run_hooks=[hook])  # type: ignore[list-item]
    with JobGraph("shop", checkpoint="/data/checkpoints/shop", run_hooks=[RunDiary("x")]) as graph:
        graph.sink("orders", graph.source("orders", FileSource("/a", schema="id long")), FileSink("/b"))
    assert graph.run_hooks == (RunDiary("x"),)
