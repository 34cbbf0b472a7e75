"""Runs at once on one pipeline: each row is published once, and who is not needed skips."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

from airflow_provider_microbatch.checkpoint.verify import verify_all
from airflow_provider_microbatch.exceptions import BatchInProgressError
from tests.execution.world import World

RUNS = 6


def test_of_six_runs_at_once_one_makes_the_batch_and_the_others_skip(tmp_path: Path) -> None:
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
        assert said.count("made it") == 1, said
    assert world.table() == {number: [number] for number in range(5)}
    assert verify_all(world.checkpoint) == []
