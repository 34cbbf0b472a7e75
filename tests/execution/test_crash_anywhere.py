"""Runs, failures, retries, clears, landings and the janitor in any order, with the process dying at any step of the
protocol: every landed row is in the table exactly once (those of a batch that was set aside when it has been cleared),
the logs verify, every hook is told every end, and one run of the janitor leaves no stage."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from hypothesis import event, given, settings
from hypothesis import strategies as st

from airflow_provider_microbatch.checkpoint.attempts import Attempts
from airflow_provider_microbatch.checkpoint.definitions import Definitions
from airflow_provider_microbatch.checkpoint.deliveries import Deliveries
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.checkpoint.leases import Leases
from airflow_provider_microbatch.checkpoint.log import MetadataLog
from airflow_provider_microbatch.checkpoint.replays import Replays
from airflow_provider_microbatch.checkpoint.verify import verify_all
from airflow_provider_microbatch.exceptions import (
    AttemptFencedError,
    BatchInProgressError,
    BatchSetAsideError,
    TransformError,
)
from airflow_provider_microbatch.execution.execution import Execution
from airflow_provider_microbatch.execution.plan import Planner
from airflow_provider_microbatch.execution.summary import summaries
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sources.file_kept import KeptEntries
from airflow_provider_microbatch.sources.file_log import SourceLog
from tests.execution.world import World
from tests.support.hooks import Diary, lines
from tests.support.inline_engine import InlineEngine

STEPS: list[tuple[type, str]] = [
    (SourceLog, "add"),
    (MetadataLog, "add"),
    (Definitions, "put"),
    (Leases, "begin"),
    (Leases, "renew"),
    (Attempts, "take_exactly"),
    (Attempts, "end"),
    (Deliveries, "record"),
    (Leases, "forget"),
    (Replays, "request"),
    (Replays, "complete"),
    (InlineEngine, "start"),
    (FileSink, "publish"),
    (FileSink, "replace"),
    (FileSink, "drop_stage"),
    (KeptEntries, "keep"),
    (KeptEntries, "release"),
    (Planner, "commit_sources"),
]
"""Everything that changes something outside of the process. Death may come just before and just after each."""


class Killed(BaseException):
    """The process is gone: cleanup code must not run, and no ``except Exception`` may hold it up."""


@contextmanager
def dying_at(moment: int | None) -> Iterator[None]:
    """Die at the ``moment``-th chance, counted from 1; None never dies."""
    chances = 0

    def chance(name: str) -> None:
        nonlocal chances
        chances += 1
        if chances == moment:
            event(f"died {name}")
            raise Killed

    def wrapped(real: Callable[..., Any], name: str) -> Callable[..., Any]:
        def step(*args: Any, **kwargs: Any) -> Any:
            chance(f"before {name}")
            value = real(*args, **kwargs)
            chance(f"after {name}")
            return value

        return step

    real_abandon = Execution.abandon

    def abandon(self: Execution, attempt: Any, *, error: BaseException, **kwargs: Any) -> None:
        if not isinstance(error, Killed):
            real_abandon(self, attempt, error=error, **kwargs)

    with ExitStack() as stack:
        for owner, name in STEPS:
            step = wrapped(getattr(owner, name), f"{owner.__name__}.{name}")
            stack.enter_context(mock.patch.object(owner, name, step))
        stack.enter_context(mock.patch.object(Execution, "abandon", abandon))
        yield


deaths = st.none() | st.integers(min_value=1, max_value=40)
landing = st.tuples(st.just("land"), st.integers(min_value=1, max_value=3), st.none())
running = st.tuples(st.sampled_from(["run", "run", "fail"]), st.just(0), deaths)
clearing = st.tuples(st.sampled_from(["clear", "clear twice"]), st.integers(min_value=0, max_value=4), deaths)
cleaning = st.tuples(st.just("clean"), st.booleans().map(int), deaths)


def attempt_run(
    world: World, number: int, moment: int | None, clear_number: int, engine: InlineEngine | None = None
) -> bool:
    """One try of a task run; False if it died or failed. A run that another one is in the way of skips."""
    try:
        with dying_at(moment):
            world.run(number, engine, clear_number=clear_number)
    except BatchInProgressError:
        event("skipped")
    except BatchSetAsideError:
        event("set aside")
    except AttemptFencedError:
        # Another run is alive at the batch that this one has to replay; the next try comes later.
        event("has to wait")
        world.expire_leases()
        return False
    except TransformError:
        return False
    except Killed:
        return False
    return True


def fail(_: object) -> Any:
    raise ValueError("no")


def clean(world: World, *, expired: bool, moment: int | None) -> None:
    """One run of the janitor, which may die as well."""
    if expired:
        world.expire_leases()
    try:
        with dying_at(moment):
            world.janitor()
    except Killed:
        event("janitor died")


def untold(world: World, diary: Path) -> list[str]:
    """Attempts whose end some hook was not told, or was told wrongly."""
    told: dict[tuple[str, str], str] = {}
    for line in lines(diary):
        name, status, key, epoch = line.split()
        told[name, f"{key} {epoch}"] = status
    wrong = []
    for batch_id in world.checkpoint.attempts.epochs.ids("live"):
        key = BatchKey("live", batch_id)
        for attempt in world.checkpoint.attempts.all(key):
            end = world.checkpoint.attempts.ended(key, attempt.epoch)
            for name in ("a", "b"):
                last = told.get((name, f"{key} {attempt.epoch}"))
                if not attempt.code:
                    right = last is None and end is not None
                else:
                    right = end is not None and last == ("finished" if end.state == "succeeded" else "failed")
                if not right:
                    wrong.append(f"{name}: {key} {attempt.epoch} {end} told {last}")
    return wrong


@settings(max_examples=150, deadline=None)
@given(actions=st.lists(landing | running | clearing | cleaning, max_size=12))
def test_nothing_is_lost_and_nothing_is_doubled(actions: list[tuple[str, int, int | None]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        diary = Path(folder, "diary")
        policy = {"on_failure": "set_aside", "set_aside_after": 2}
        world = World(Path(folder), **policy, hooks=(Diary(str(diary), "a"), Diary(str(diary), "b")))
        world.landing()
        landed: list[int] = []
        clears: dict[int, int] = {}
        current = 0
        for action, number, moment in actions:
            if action == "land":
                rows = list(range(len(landed), len(landed) + number))
                world.land(*rows)
                landed += rows
            elif action == "clean":
                clean(world, expired=bool(number), moment=moment)
            elif action in ("run", "fail"):
                # A run that died is retried under its own name later; one that ended is followed by the next.
                engine = InlineEngine(transform=fail) if action == "fail" else None
                current += attempt_run(world, current, moment, clears.get(current, 0), engine)
            elif number < current:
                clears[number] = clears.get(number, 0) + 1
                while not attempt_run(world, number, moment, clears[number]):
                    moment = None
                    clears[number] += action == "clear twice"
        for number in range(current, current + len(landed) + 2):
            world.expire_leases()
            attempt_run(world, number, None, clears.get(number, 0))
        for commit in [world.checkpoint.commit_log.get(number) for number in world.checkpoint.commit_log.ids()]:
            if commit is not None and commit.set_aside and commit.run is not None:
                cleared = int(commit.run.run_id.removeprefix("run-"))
                assert attempt_run(world, cleared, None, clears.get(cleared, 0) + 1)
        assert {summary.state for summary in summaries(world.checkpoint)} <= {"committed"}
        world.expire_leases()
        report = world.janitor()
        assert not report.failed
        published = sorted(row for rows in world.table().values() for row in rows)
        assert published == landed
        assert verify_all(world.checkpoint) == []
        asked = [BatchKey("live", number) for number in world.checkpoint.replays.epochs.ids("live")]
        assert [key for key in asked if world.checkpoint.replays.pending(key)] == []
        assert world.stages() == []
        assert untold(world, diary) == []
        left = set(world.checkpoint.leases.unfinished())
        assert len(left) == len(report.of("waits for its commit"))
        assert report.of("alive") == []
