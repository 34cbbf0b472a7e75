"""Tables in which no batch can be replaced, such as a topic: a clear of a batch that is in is refused before a job of
Spark runs, and leaves nothing behind."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_microbatch.checkpoint.key import LIVE, BatchKey
from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sinks.manifest import Manifest
from airflow_provider_microbatch.sinks.several import Sinks
from tests.execution.intervals import IntervalWorld, hour
from tests.execution.two_tables import Two, coded
from tests.execution.world import World
from tests.support.inline_engine import InlineEngine


@dataclass(frozen=True)
class AppendedOnly(FileSink):
    """Has no replay, as a topic has none."""

    def not_replaceable(self) -> str | None:
        return "what was read cannot be taken back"


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path, sink=AppendedOnly(str(tmp_path / "lake"), format="json"))


def test_a_clear_of_a_batch_that_is_in_is_refused_before_anything_runs(world: World) -> None:
    world.land(1, 2)
    world.run(0)
    before = world.files()
    engine = InlineEngine()
    with pytest.raises(SinkError, match="batch live/0 is in, and cannot be replayed: what was read cannot be taken"):
        world.run(0, engine, clear_number=1)
    assert engine.jobs == []
    assert world.files() == before
    assert world.table() == {0: [1, 2]}


def test_the_next_batch_comes_after_a_refused_clear(world: World) -> None:
    world.land(1)
    world.run(0)
    with pytest.raises(SinkError):
        world.run(0, clear_number=1)
    world.land(2)
    world.run(1)
    assert world.table() == {0: [1], 1: [2]}


def test_a_retry_of_a_batch_that_is_in_is_no_replay(world: World) -> None:
    world.land(1)
    world.staged()
    world.run(0, try_number=2)
    world.run(0, try_number=3)
    assert world.table() == {0: [1]}


def test_one_of_several_tables_is_enough(tmp_path: Path) -> None:
    sinks = Sinks(
        {
            "orders": FileSink(str(tmp_path / "orders"), format="json"),
            "events": AppendedOnly(str(tmp_path / "events"), format="json"),
        }
    )
    assert sinks.not_replaceable() == "what was read cannot be taken back"


def test_a_backfill_that_reads_an_interval_anew_is_refused_too(tmp_path: Path) -> None:
    sink = AppendedOnly(str(tmp_path / "lake"), format="json")
    world = IntervalWorld(tmp_path, sink=sink, on_overlap="replay")
    world.land_at(1.5, 1)
    world.backfill(hour(1), 1)
    with pytest.raises(SinkError, match="cannot be replayed: what was read cannot be taken back"):
        world.backfill(hour(1), 2)
    assert world.rows() == {"interval-20231115T010000Z-20231115T020000Z/0": [1]}


def test_a_backfill_that_is_refused_has_taken_nothing_that_is_unread(tmp_path: Path) -> None:
    sink = AppendedOnly(str(tmp_path / "lake"), format="json")
    world = IntervalWorld(tmp_path, sink=sink, on_overlap="replay")
    world.land_at(1.5, 1)
    world.run(0)
    world.land_at(1.6, 2)
    for number in (1, 2):
        with pytest.raises(SinkError, match=r"live/0 is in, and cannot be replayed.*on_overlap='skip'"):
            world.backfill(hour(1), number)
    world.run(3)
    assert world.rows() == {"live/0": [1], "live/1": [2]}


class Full:
    """The disk of a table, which takes nothing while it is full."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        self.is_full, publish = True, FileSink.publish

        def published(sink: FileSink, *given: Any) -> Manifest:
            if self.is_full and sink.path.endswith(name):
                raise SinkError("No space left on device")
            return publish(sink, *given)

        monkeypatch.setattr(FileSink, "publish", published)


@pytest.fixture
def two(tmp_path: Path) -> Two:
    sinks = {
        "orders": AppendedOnly(str(tmp_path / "orders"), format="json"),
        "daily": FileSink(str(tmp_path / "daily"), format="json"),
    }
    world = Two(tmp_path, sink=Sinks(sinks))
    world.land(1, 2)
    return world


def test_what_failed_behind_such_a_table_is_published_by_the_next_try(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Full(monkeypatch, "daily")
    for number in (1, 2):
        with pytest.raises(SinkError, match="No space left"):
            two.run(0, coded(number), try_number=number)
    disk.is_full = False
    engine = coded(3)
    two.run(0, engine, try_number=3)
    assert engine.jobs == []
    assert two.tables() == [{0: [(1, 1), (2, 1)]}] * 2
    (attempt,) = two.checkpoint.attempts.all(BatchKey(LIVE, 0))
    assert two.execution.sink.stages(attempt.batch.checkpoint) == []
    end = two.checkpoint.attempts.ended(attempt.key, attempt.epoch)
    assert end is not None
    assert end.state == "succeeded"


def test_what_failed_before_such_a_table_is_made_anew(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Full(monkeypatch, "orders")
    with pytest.raises(SinkError, match="No space left"):
        two.run(0, coded(1))
    disk.is_full = False
    two.run(0, coded(2), try_number=2)
    assert two.tables() == [{0: [(1, 2), (2, 2)]}] * 2
    (attempt, *_) = two.checkpoint.attempts.all(BatchKey(LIVE, 0))
    assert two.execution.sink.stages(attempt.batch.checkpoint) == []
