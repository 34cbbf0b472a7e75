"""Tables in which no batch can be replaced, such as a topic: a clear of a batch that is in is refused before a job of
Spark runs, and leaves nothing behind; and what is in there is followed by the other tables of the batch."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_microbatch import settings
from airflow_provider_microbatch.checkpoint.entries import Attempt
from airflow_provider_microbatch.exceptions import MaintenanceError, SinkError
from airflow_provider_microbatch.execution.identity import expected
from airflow_provider_microbatch.settings import Settings
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sinks.manifest import Manifest
from airflow_provider_microbatch.sinks.several import Sinks
from airflow_provider_microbatch.upkeep.table_check import check_table
from tests.execution.intervals import IntervalWorld, hour
from tests.execution.maintaining import planned, rewind
from tests.execution.sleepers import Sleep
from tests.execution.two_tables import Two, coded, is_clean
from tests.execution.world import KEY, World
from tests.support.inline_engine import InlineEngine


@dataclass(frozen=True)
class AppendedOnly(FileSink):
    """Has no replay, as a topic has none."""

    def not_replaceable(self) -> str | None:
        return "what was read cannot be taken back"


@dataclass(frozen=True)
class Topic(AppendedOnly):
    """Nobody takes a batch out of it either."""

    can_withdraw = False


@dataclass(frozen=True)
class AppendedAgain(FileSink):
    """Publishes a batch once more beside what is in, as a topic with ``on_replay="append"`` does."""

    @property
    def keeps_replaced(self) -> bool:
        return True


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


def test_check_names_no_rewind_where_the_clear_is_refused_for_the_same_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "_given", lambda: Settings(trusted_modules=(__name__,)))
    orders = FileSink(str(tmp_path / "orders"), format="json")
    world = Two(tmp_path, sink=Sinks({"orders": orders, "events": Topic(str(tmp_path / "events"), format="json")}))
    world.land(1)
    world.run(0)
    folder = tmp_path / "orders" / "lane=live" / "batch_id=0"
    folder.rename(tmp_path / "backup")
    with pytest.raises(SinkError, match="cannot be replayed"):
        world.run(0, clear_number=1)
    with pytest.raises(MaintenanceError, match="no batch can be taken out of"):
        planned(world, rewind(-1))
    (finding,) = check_table(world.checkpoint, everything=True).findings
    assert "microbatch rewind" not in finding.repair
    assert "or the clear is refused, or a source cannot be read again, bring the table" in finding.repair
    (tmp_path / "backup").rename(folder)
    assert is_clean(world)


def test_nor_where_nobody_can_tell_what_the_pipeline_writes_to(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.land(1)
    world.run(0)
    assert world.run(1) is None
    shutil.rmtree(tmp_path / "lake" / "lane=live" / "batch_id=0")
    (record,) = (tmp_path / "checkpoint").rglob("in-force/sinks")
    whole = record.read_bytes()
    record.write_text("torn")
    (finding,) = check_table(world.checkpoint, everything=True).findings
    assert "microbatch rewind" not in finding.repair
    record.write_bytes(whole)
    (finding,) = check_table(world.checkpoint, everything=True).findings
    assert "--to -1 --drop-output" in finding.repair


class Full:
    """The disk of a table, which takes nothing while it is full."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        self.is_full = True
        for change in ("publish", "replace"):
            self._watch(monkeypatch, change, name)

    def _watch(self, monkeypatch: pytest.MonkeyPatch, change: str, name: str) -> None:
        real = getattr(FileSink, change)

        def changed(sink: FileSink, *given: Any) -> Manifest:
            if self.is_full and sink.path.endswith(name):
                raise SinkError("No space left on device")
            found: Manifest = real(sink, *given)
            return found

        monkeypatch.setattr(FileSink, change, changed)


def cut_off(world: World, attempt: Attempt, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The attempt, which had passed the fence, publishes, and is killed before the table of that name."""
    execution, disk = world.execution, Full(monkeypatch, name)
    batch = expected(world.checkpoint, execution.load(attempt.key).identity, attempt)
    with pytest.raises(SinkError, match="No space left"):
        execution.sink.publish(batch, attempt.epoch)
    disk.is_full = False


def two_of(root: Path, first: type[FileSink]) -> Two:
    """The first of its tables is of that class."""
    sinks = {
        "orders": first(str(root / "orders"), format="json"),
        "daily": FileSink(str(root / "daily"), format="json"),
    }
    world = Two(root, sink=Sinks(sinks))
    world.land(1, 2)
    return world


@pytest.fixture
def two(tmp_path: Path) -> Two:
    return two_of(tmp_path, AppendedOnly)


def is_over(world: Two, epoch: int) -> bool:
    """Whether the attempt has succeeded, and nothing is left of any."""
    end = world.checkpoint.attempts.ended(KEY, epoch)
    return end is not None and end.state == "succeeded" and world.execution.sink.stages(world.checkpoint_id) == []


@pytest.mark.parametrize("first", [AppendedOnly, AppendedAgain])
def test_what_failed_behind_such_a_table_is_published_by_the_next_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: type[FileSink]
) -> None:
    two = two_of(tmp_path, first)
    disk = Full(monkeypatch, "daily")
    for number in (1, 2):
        with pytest.raises(SinkError, match="No space left"):
            two.run(0, coded(number), try_number=number)
    disk.is_full = False
    engine = coded(3)
    two.run(0, engine, try_number=3)
    assert engine.jobs == []
    assert two.tables() == [{0: [(1, 1), (2, 1)]}] * 2
    assert is_over(two, 1)


def test_a_replay_that_failed_behind_such_a_table_is_brought_to_its_end_by_the_next_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = two_of(tmp_path, AppendedAgain)
    two.run(0, coded(1))
    disk = Full(monkeypatch, "daily")
    for number in (2, 3):
        with pytest.raises(SinkError, match="No space left"):
            two.run(0, coded(number), clear_number=1, try_number=number)
    disk.is_full = False
    engine = coded(4)
    two.run(0, engine, clear_number=1, try_number=4)
    assert engine.jobs == []
    assert two.tables() == [{0: [(1, 2), (2, 2)]}] * 2
    assert two.checkpoint.replays.pending(KEY) == []
    assert is_over(two, 2)


@pytest.mark.parametrize("who", ["the next run", "the janitor"])
def test_what_is_published_there_while_its_stages_are_dropped_is_published_behind_it_too(
    two: Two, monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    attempt = two.staged()
    two.expire_leases()
    Sleep(monkeypatch).before(AppendedOnly, "drop_stage", partial(cut_off, two, attempt, monkeypatch, "daily"))
    if who == "the janitor":
        report = two.janitor(sinks=[two.pipeline.sink])
        assert report.of("stage kept") == report.of("waits for its commit") == ["live/0 attempt 1"]
    two.run(1, coded(2))
    assert two.tables() == [{0: [(1, 0), (2, 0)]}] * 2
    assert two.checkpoint.commit_log.latest_id() == 0
    assert two.execution.sink.stages(two.checkpoint_id) == []


def test_no_stage_waits_for_a_table_that_the_pipeline_goes_on_without(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = two.execution.sink
    Full(monkeypatch, "daily")
    with pytest.raises(SinkError, match="No space left"):
        two.run(0, coded(1))
    two.options["sink"] = both.tables[0].definition
    two.run(0, coded(2), try_number=2)
    assert two.checkpoint.commit_log.latest_id() == 0
    two.expire_leases()
    report = two.janitor(sinks=[both.definition])
    assert (report.of("stage dropped"), report.of("stage kept")) == (["live/0 attempt 1"], [])
    assert both.stages(two.checkpoint_id) == []


def test_what_failed_before_such_a_table_is_made_anew(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Full(monkeypatch, "orders")
    with pytest.raises(SinkError, match="No space left"):
        two.run(0, coded(1))
    disk.is_full = False
    two.run(0, coded(2), try_number=2)
    assert two.tables() == [{0: [(1, 2), (2, 2)]}] * 2
    assert two.execution.sink.stages(two.checkpoint_id) == []
