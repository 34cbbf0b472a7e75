"""``target_seconds``: the size of a batch follows what the batches before it took."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_microbatch.checkpoint.codec import decode_commit, encode_commit
from airflow_provider_microbatch.exceptions import DefinitionError
from airflow_provider_microbatch.execution.pace import limits
from airflow_provider_microbatch.runtime.job import Job
from airflow_provider_microbatch.sources import ReadLimit
from airflow_provider_microbatch.sources.file import FileSource
from airflow_provider_microbatch.stores.posix import PosixStore
from tests.execution.world import World
from tests.support.inline_engine import InlineEngine, local


class Timed(InlineEngine):
    """Spark that says it took ``fixed`` seconds and ``each`` seconds a file."""

    def __init__(self, *, fixed: float, each: float) -> None:
        super().__init__(after_stage=self._tell)
        self.fixed, self.each = fixed, each
        self.sizes: list[int] = []

    def _tell(self, job: Job) -> None:
        files = sum(len(group["paths"]) for group in job.sources["orders"].arguments["groups"])
        self.sizes.append(files)
        path = local(job.stage.arguments["path"]) / "_manifest" / "part-0.txt"
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        lines[0]["result"]["durationMs"] = {"total": round((self.fixed + self.each * files) * 1000)}
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def paced(root: Path, *, files: int, max_files: int | None = None, first: int = 1, **pipeline: float) -> World:
    world = World(root, **pipeline)
    world.land(*range(first))
    for number in range(first, files):
        world.land(number)
    if max_files is not None:
        world.sources["orders"] = FileSource(str(world.landing()), schema="id long", max_files=max_files)
    return world


def drained(world: World, engine: Timed, *, batches: int) -> list[int]:
    for number in range(batches):
        world.run(number, engine)
    return engine.sizes


def test_batches_grow_to_the_target_and_stay_there(tmp_path: Path) -> None:
    world = paced(tmp_path, files=400, target_seconds=20.0)
    engine = Timed(fixed=2, each=0.5)
    world.sources["orders"] = FileSource(str(world.landing()), schema="id long", max_files=2)
    world.run(0, engine)
    world.sources["orders"] = FileSource(str(world.landing()), schema="id long")
    sizes = drained(world, engine, batches=8)
    assert sizes[0] == 2
    assert max(later / earlier for earlier, later in pairwise(sizes)) <= 4
    assert all(15 <= 2 + 0.5 * size <= 21 for size in sizes[-3:]), sizes


def test_batches_shrink_when_files_become_slow(tmp_path: Path) -> None:
    world = paced(tmp_path, files=300, target_seconds=10.0)
    fast, slow = Timed(fixed=0, each=0.1), Timed(fixed=0, each=1.0)
    world.sources["orders"] = FileSource(str(world.landing()), schema="id long", max_files=100)
    world.run(0, fast)
    drained(world, slow, batches=4)
    assert slow.sizes[-1] <= 20


def test_the_limits_of_the_source_hold(tmp_path: Path) -> None:
    world = paced(tmp_path, files=12, max_files=3, target_seconds=1000.0)
    assert drained(world, Timed(fixed=1, each=0), batches=4) == [3, 3, 3, 3]


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(fixed=st.floats(0.001, 1000), each=st.floats(0, 1000), target=st.floats(0.001, 10_000))
def test_there_is_always_a_next_batch(
    tmp_path_factory: pytest.TempPathFactory, fixed: float, each: float, target: float
) -> None:
    world = paced(tmp_path_factory.mktemp("pace"), files=3, max_files=1, target_seconds=target)
    assert drained(world, Timed(fixed=fixed, each=each), batches=3) == [1, 1, 1]


@pytest.mark.parametrize("wrong", [0, -1, "60", True])
def test_a_target_that_is_no_time_is_refused(tmp_path: Path, wrong: object) -> None:
    with pytest.raises(DefinitionError, match="target_seconds"):
        World(tmp_path, target_seconds=wrong).pipeline  # noqa: B018


def measured(world: World, **figures: int) -> dict[str, ReadLimit]:
    """The limits after one batch of 10 seconds that had these figures."""
    return limits_after(world, figures)


def limits_after(world: World, figures: dict[str, int] | None) -> dict[str, ReadLimit]:
    world.run(0)
    store = PosixStore(world.root / "checkpoint")
    data = store.get("commits/0")
    assert data is not None
    entry = decode_commit(data, where="commits/0")
    progress = {**entry.progress, "durationMs": {"total": 10_000}, "sources": {"orders": figures}}
    (world.root / "checkpoint" / "commits" / "0").write_bytes(encode_commit(replace(entry, progress=progress)))
    return limits(world.checkpoint.lane("live"), splits={"orders": "shards"}, target_seconds=20)


def test_a_source_whose_figures_are_null_is_not_paced(tmp_path: Path) -> None:
    assert limits_after(paced(tmp_path, files=1), None) == {}


def test_a_source_is_paced_by_what_it_counts_in_its_own_words(tmp_path: Path) -> None:
    figures = {"shards": 8, "rows": 100, "bytes": 5_000}
    world = paced(tmp_path, files=1)
    assert measured(world, **figures) == {"orders": ReadLimit(splits=16)}
    assert measured(world, rows=100, bytes=5_000) == {"orders": ReadLimit(rows=200)}
    assert measured(world, bytes=5_000) == {"orders": ReadLimit(bytes=10_000)}
    assert measured(world, files=8) == {}, "another source's word"
