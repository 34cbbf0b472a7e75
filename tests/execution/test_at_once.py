"""Runs at once on one pipeline: each row is published once, and who is not needed skips."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from airflow_provider_microbatch.checkpoint.verify import verify_all
from airflow_provider_microbatch.exceptions import BatchInProgressError, ConcurrentPlanError
from airflow_provider_microbatch.execution.execution import Execution
from airflow_provider_microbatch.execution.plan import Planner
from airflow_provider_microbatch.sinks import ExpectedBatch, Manifest
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.stores.posix import PosixStore
from tests.execution.sleepers import Sleep
from tests.execution.world import KEY, World, run_identity

RUNS = 6


def test_of_six_runs_at_once_one_plans_the_batch_one_makes_it_and_the_others_skip(tmp_path: Path) -> None:
    world = World(tmp_path)
    for number in range(5):
        world.land(number)
        together = Barrier(RUNS)

        def run(slot: int, number: int = number, together: Barrier = together) -> str:
            together.wait()
            try:
                return "made it" if world.run(number * RUNS + slot) else "nothing new"
            except BatchInProgressError as skip:
                return str(skip)

        with ThreadPoolExecutor(RUNS) as pool:
            said = list(pool.map(run, range(RUNS)))
        # Its planner may find that another run has been quicker from there: then it is the batch of both.
        entries = world.checkpoint.offset_log.get(number), world.checkpoint.commit_log.get(number)
        owners = {entry.run.run_id for entry in entries if entry is not None and entry.run is not None}
        made = {f"run-{number * RUNS + slot}" for slot, what in enumerate(said) if what == "made it"}
        assert made, said
        assert made <= owners, said
    assert world.table() == {number: [number] for number in range(5)}
    assert verify_all(world.checkpoint) == []


def test_a_checkpoint_that_another_run_claims_between_two_looks_is_not_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, real, others = World(tmp_path), PosixStore.list, list[int]()
    world.land(1)

    def listed(store: PosixStore, path: str) -> list[str]:
        if path == "offsets" and not others:
            others.append(2)
            world.run(2)
        return real(store, path)

    monkeypatch.setattr(PosixStore, "list", listed)
    assert world.run(1) is None
    assert others == [2]
    assert world.table() == {0: [1]}


def test_a_batch_that_another_run_makes_between_two_looks_is_no_strangers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path)
    world.land(0)
    contains, looks = FileSink.contains, []

    def another_run_first(sink: FileSink, batch: ExpectedBatch) -> Manifest | None:
        looks.append(batch)
        if len(looks) == 1:
            assert world.run(1) is not None
        return contains(sink, batch)

    monkeypatch.setattr(FileSink, "contains", another_run_first)
    with pytest.raises(ConcurrentPlanError, match="run-1"):
        world.run(0)
    assert world.table() == {0: [0]}


def test_a_run_that_comes_to_a_batch_that_another_one_commits_then_goes_on_with_what_is_new(
    tmp_path: Path, sleep: Sleep
) -> None:
    world = World(tmp_path)
    world.land(0)
    world.execution.plan(run_identity(0))
    world.land(1)
    sleep.before(Planner, "claim", lambda: world.run(2))
    summary = world.run(1)
    assert summary is not None
    assert (summary.key.id, summary.rows_out) == (1, 1)
    assert world.table() == {0: [0], 1: [1]}


def test_nor_does_one_take_the_commit_for_its_own_that_another_makes_just_before(tmp_path: Path, sleep: Sleep) -> None:
    world = World(tmp_path)
    world.land(0)
    world.staged(0)
    world.expire_leases()
    published = world.execution.publish(world.checkpoint.attempts.all(KEY)[0])
    world.land(1)
    sleep.before(Execution, "commit", lambda: world.execution.commit(key=KEY, manifest=published, run=run_identity(2)))
    summary = world.run(1)
    assert summary is not None
    assert (summary.key.id, summary.rows_out) == (1, 1)
    assert world.table() == {0: [0], 1: [1]}
