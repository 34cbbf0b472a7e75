"""Late ends under processes that die anywhere, clears, rewinds and a source that goes on all the while: each number is
in the table once, in batches that follow each other."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_provider_microbatch.checkpoint.log import MetadataLog
from airflow_provider_microbatch.checkpoint.resolutions import Resolutions
from airflow_provider_microbatch.cli.main import main
from airflow_provider_microbatch.sinks.file import FileSink
from tests.execution.test_late_ends import Counted
from tests.execution.world import Killed
from tests.support.inline_engine import InlineEngine

BEFORE, AFTER = "before", "after"
STEPS: dict[str, tuple[type, str]] = {
    "plan or commit": (MetadataLog, "add"),
    "resolve": (Resolutions, "choose"),
    "publish": (FileSink, "publish"),
}
"""Where a process dies: a method of a class, before or after it has done its work."""

moves = st.lists(
    st.one_of(
        st.tuples(st.just("count"), st.integers(1, 3)),
        st.tuples(st.just("run"), st.integers(0, 3)),
        st.tuples(st.just("die"), st.tuples(st.sampled_from(sorted(STEPS)), st.sampled_from([BEFORE, AFTER]))),
        st.tuples(st.just("clear"), st.integers(0, 3)),
        st.tuples(st.just("rewind"), st.integers(1, 2)),
        st.tuples(st.just("lose the resolution"), st.none()),
    ),
    min_size=3,
    max_size=14,
)


class Played(Counted):
    """The world, and what people and crashes do in it."""

    def __init__(self, root: Path, version: str) -> None:
        super().__init__(root, checkpoint_format=version)
        self.head = 0
        self.runs = 0
        self.cleared = 0

    def count(self, more: int) -> None:
        self.head += more
        self.count_to(self.head)

    def next_run(self, engine: InlineEngine | None = None) -> None:
        self.expire_leases()
        self.runs += 1
        super().run(self.runs, engine)

    def die(self, at: tuple[str, str]) -> None:
        """The process of the next run dies there. The source goes on while the batch is made."""
        (owner, name), when = STEPS[at[0]], at[1]
        real = getattr(owner, name)

        def dies(*arguments: object, **named: object) -> object:
            if when == AFTER:
                real(*arguments, **named)
            raise Killed

        with mock.patch.object(owner, name, dies), suppress(Killed):
            self.next_run(InlineEngine(before_stage=lambda job: self.count(1)))

    def clear(self, back: int) -> None:
        newest = self.checkpoint.commit_log.latest_id()
        entry = None if newest is None else self.checkpoint.commit_log.get(max(0, newest - back))
        if entry is not None and entry.run is not None:
            self.expire_leases()
            self.cleared += 1
            number = int(entry.run.run_id.removeprefix("run-"))
            super().run(number, clear_number=self.cleared)

    def rewind(self, back: int) -> None:
        newest = self.checkpoint.commit_log.latest_id()
        if newest is not None and newest >= back:
            self.expire_leases()
            assert main(["rewind", self.pipeline.checkpoint, "--to", str(newest - back), "--drop-output"]) == 0

    def lose(self) -> None:
        """A backup of before the newest batch was resolved; if that was committed, nobody may go on."""
        newest = self.checkpoint.offset_log.latest_id()
        if newest is not None and self.checkpoint.commit_log.latest_id() != newest:
            for path in (self.root / "checkpoint" / "resolved" / "live" / str(newest)).glob("*"):
                path.unlink()


@pytest.mark.slow
@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(moves=moves, version=st.sampled_from(["v1", "v2"]))
def test_each_number_is_in_the_table_once(
    moves: list[tuple[str, object]], version: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    world = Played(tmp_path_factory.mktemp("late"), version)
    deeds: dict[str, Callable[..., None]] = {
        "count": world.count,
        "run": lambda more: world.next_run(InlineEngine(before_stage=lambda job: world.count(more))),
        "die": world.die,
        "clear": world.clear,
        "rewind": world.rewind,
        "lose the resolution": lambda _: world.lose(),
    }
    world.count(1)
    for name, argument in moves:
        deeds[name](argument)
    for _ in range(3):  # one takes up what is left, one reads what came meanwhile, one finds nothing
        world.next_run()
    assert sorted(number for rows in world.table().values() for number in rows) == list(range(1, world.head + 1))
    world.expire_leases()
    world.janitor()
    assert world.checkpoint.leases.unfinished() == []
    assert world.stages() == []
