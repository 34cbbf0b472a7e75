"""A source of which nobody knows where a batch ends before it is read: planned, resolved, committed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from acme_microbatch.counter import CounterSource, OpenCounter

from airflow_provider_microbatch.checkpoint.handover import hand_over
from airflow_provider_microbatch.checkpoint.key import LIVE
from airflow_provider_microbatch.checkpoint.resolutions import Resolution, Resolutions
from airflow_provider_microbatch.cli.main import main
from airflow_provider_microbatch.exceptions import (
    AttemptFencedError,
    BrokenLogError,
    CheckpointError,
    MicroBatchError,
    TransformError,
)
from airflow_provider_microbatch.execution.identity import expected
from airflow_provider_microbatch.execution.opened_sources import Ranges
from airflow_provider_microbatch.runtime.job import Job
from airflow_provider_microbatch.upkeep.commands.adopt import plan_adopt
from tests.execution.maintaining import applied, planned
from tests.execution.world import CODE, KEY, Killed, World, run_identity
from tests.support.inline_engine import InlineEngine


class Counted(World):
    """A pipeline that counts."""

    def __init__(self, root: Path, *, late: bool = True, max_rows: int | None = None, **pipeline: Any) -> None:
        super().__init__(root, **pipeline)
        self.sources = {"numbers": CounterSource(str(root / "head"), late=late, max_rows=max_rows)}  # type: ignore[dict-item]

    def count_to(self, number: int) -> None:
        (self.root / "head").write_text(str(number))

    def entry(self, number: int = 0) -> bytes:
        return (self.root / "checkpoint" / "offsets" / str(number)).read_bytes()

    def ends(self) -> list[str | None]:
        """Of the batches, as a fresh process finds them."""
        return [entry.ends["numbers"] for _, entry in self.checkpoint.offset_log.range()]

    def counting(self, number: int) -> InlineEngine:
        """An engine whose source goes on before it is read."""
        return InlineEngine(before_stage=lambda job: self.count_to(number))


def killed(job: Job) -> None:
    raise Killed


def numbers(world: World) -> list[int]:
    return sorted(number for rows in world.table().values() for number in rows)


@pytest.fixture(params=["v1", "v2"])
def world(tmp_path: Path, request: pytest.FixtureRequest) -> Counted:
    return Counted(tmp_path, checkpoint_format=request.param)


def die_before_publish(world: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch is resolved, and the process gone before it is published."""
    sink = type(world.execution.sink)
    with monkeypatch.context() as patch:

        def gone(*_: object, **__: object) -> None:
            raise Killed

        patch.setattr(sink, "publish", gone)
        with pytest.raises(Killed):
            world.run(0)
    world.expire_leases()


def test_a_batch_ends_where_its_attempt_came_to_and_the_next_begins_there(world: Counted) -> None:
    world.count_to(3)
    world.run(0, world.counting(5))
    world.count_to(9)
    world.run(1)
    assert world.table() == {0: [1, 2, 3, 4, 5], 1: [6, 7, 8, 9]}
    assert world.ends() == ['{"n": 5}', '{"n": 9}']
    assert world.run(2) is None


def test_its_entry_in_the_offset_log_is_never_changed(world: Counted) -> None:
    world.count_to(3)
    batch = world.execution.plan(run_identity(0))
    assert batch is not None
    before = world.entry()
    world.run(0)
    assert world.entry() == before
    assert batch.entry.unresolved == ("numbers",)
    assert batch.identity == world.execution.load(KEY).identity


def test_an_attempt_that_died_unresolved_decides_nothing(world: Counted) -> None:
    world.count_to(3)
    with pytest.raises(Killed):
        world.run(0, InlineEngine(after_stage=killed))
    world.expire_leases()
    world.count_to(4)
    world.run(1)
    assert world.table() == {0: [1, 2, 3, 4]}


def test_what_was_resolved_is_read_exactly_by_whoever_comes_next(
    world: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.count_to(3)
    die_before_publish(world, monkeypatch)
    assert world.ends() == ['{"n": 3}']
    world.count_to(8)
    world.run(1)
    assert world.table() == {0: [1, 2, 3]}
    world.run(2)
    assert world.table() == {0: [1, 2, 3], 1: [4, 5, 6, 7, 8]}


@pytest.mark.parametrize("killed_at", ["publish", "commit", None])
def test_where_an_attempt_ended_is_not_chosen_once_more_by_what_the_source_goes_by_now(
    world: Counted, monkeypatch: pytest.MonkeyPatch, killed_at: str | None
) -> None:
    """Such as the retention of a stream, which was changed since; by it the batch would have ended where it began."""
    world.count_to(3)
    if killed_at == "publish":
        die_before_publish(world, monkeypatch)
    elif killed_at == "commit":
        world.execution.publish(world.staged(0))
        world.expire_leases()
    else:
        world.run(0)
    monkeypatch.setattr(OpenCounter, "resolve", lambda self, start, told: start)
    comes_to = lambda self, start, end, told: bool(end == json.dumps({"n": told["end"]}))  # noqa: E731
    monkeypatch.setattr(OpenCounter, "comes_to", comes_to, raising=False)
    before = world.files()
    applied(world)
    assert {path: data for path, data in world.files().items() if path.startswith("resolved/")} == {
        path: data for path, data in before.items() if path.startswith("resolved/")
    }
    world.run(0, clear_number=0 if killed_at else 1)
    assert world.table() == {0: [1, 2, 3]}
    assert world.ends() == ['{"n": 3}']
    assert world.checkpoint.commit_log.latest_id() == 0


def test_of_two_attempts_that_came_to_different_ends_one_publishes(world: Counted) -> None:
    """The first passes the fence, and says where the batch ends, after the second has begun to read further."""
    world.count_to(2)
    first = world.staged(0)
    world.expire_leases()
    world.count_to(6)
    run, engine = run_identity(0, try_number=2), InlineEngine()
    second = world.execution.open_attempt(key=KEY, run=run, code=CODE, engine=engine)
    world.execution.run_attempt(attempt=second, job=world.execution.job(second, None), engine=engine, code=CODE)
    sources, unresolved = world.execution.planner.sources, Ranges({}, {}, late=frozenset({"numbers"}))
    mine = sources.resolve(["numbers"], unresolved, read={"numbers": {"end": 2}}, on_record={})
    world.checkpoint.resolutions.choose(KEY, first.batch.digest, Resolution(epoch=1, ends=mine))
    with pytest.raises(AttemptFencedError, match="attempt 1 was first to say where it ends"):
        world.execution.publish(second)
    world.execution.abandon(second, state="failed", error=ValueError("too late"), engine=engine)
    world.run(1)
    world.run(2)
    assert world.table() == {0: [1, 2], 1: [3, 4, 5, 6]}


def test_who_slept_while_another_attempt_said_where_it_ends_decides_nothing(
    world: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.count_to(2)
    first = world.staged(0)
    choose = Resolutions.choose

    def slept(*arguments: Any) -> None:
        monkeypatch.setattr(Resolutions, "choose", choose)
        world.expire_leases()
        world.count_to(6)
        world.run(1)
        choose(*arguments)

    monkeypatch.setattr(Resolutions, "choose", slept)
    with pytest.raises(AttemptFencedError, match="attempt 2 was first to say where it ends"):
        world.execution.publish(first)
    assert world.ends() == ['{"n": 6}']
    assert world.table() == {0: [1, 2, 3, 4, 5, 6]}


def test_a_clear_reads_the_same_range_again(world: Counted) -> None:
    world.count_to(3)
    world.run(0)
    world.count_to(7)
    world.run(0, clear_number=1)
    assert world.table() == {0: [1, 2, 3]}
    manifest = world.execution.sink.contains(expected(world.checkpoint, world.execution.load(KEY).identity))
    assert manifest is not None
    assert manifest.epoch == 2


def test_a_lost_resolution_stops_the_plan(world: Counted) -> None:
    """A backup without that folder: the next batch would begin where this one began."""
    for number in (0, 1):
        world.count_to(3 + number)
        world.run(number)
    for path in (world.root / "checkpoint" / "resolved" / LIVE).rglob("*"):
        if path.is_file() and path.parent.name == "1":
            path.unlink()
    world.count_to(9)
    with pytest.raises(BrokenLogError, match="where it ends in source numbers is not on record any more"):
        world.run(2)
    assert numbers(world) == [1, 2, 3, 4]


def test_a_rewound_batch_is_resolved_anew(world: Counted) -> None:
    for number in (0, 1):
        world.count_to(3 + number)
        world.run(number)
    world.expire_leases()
    assert main(["rewind", world.pipeline.checkpoint, "--to", "0", "--drop-output"]) == 0
    world.count_to(9)
    world.run(2)
    assert world.table() == {0: [1, 2, 3], 1: [4, 5, 6, 7, 8, 9]}


def test_a_limit_of_the_source_holds(tmp_path: Path) -> None:
    world = Counted(tmp_path, max_rows=2)
    world.count_to(3)
    world.run(0)
    world.run(1)
    assert world.table() == {0: [1, 2], 1: [3]}


def test_a_batch_whose_end_nobody_knows_is_not_set_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """To pass it over would read its rows in the next batch, and again when it is cleared."""

    def fails(sources: object) -> Any:
        raise ValueError("no such column")

    world = Counted(tmp_path, on_failure="set_aside", set_aside_after=1)
    world.count_to(3)
    for number in range(3):
        with pytest.raises(TransformError):
            world.run(number, InlineEngine(transform=fails))
    assert "is not set aside: nobody knows where it ends" in caplog.text
    world.run(3)
    assert world.table() == {0: [1, 2, 3]}


def test_nor_is_it_adopted(world: Counted) -> None:
    world.count_to(3)
    world.staged(0)
    world.expire_leases()
    with pytest.raises(MicroBatchError, match="planned without an end in source numbers"):
        planned(world, lambda drafting: plan_adopt(drafting, KEY))


def test_its_checkpoint_is_not_handed_to_a_streaming_query(world: Counted) -> None:
    """The entry in the log says where the batch began, and Spark knows no other place."""
    world.count_to(3)
    world.run(0)
    with pytest.raises(CheckpointError, match="cannot be handed to a streaming query"):
        hand_over(world.checkpoint)


def test_retention_removes_what_was_resolved(tmp_path: Path) -> None:
    world = Counted(tmp_path, min_batches_to_retain=2)
    for number in range(12):
        world.count_to(number + 1)
        world.run(number)
    kept = {int(path.name) for path in (tmp_path / "checkpoint" / "resolved" / LIVE).iterdir()}
    assert kept == set(world.checkpoint.offset_log.ids())


def test_the_ends_stay_under_a_new_name(world: Counted) -> None:
    world.count_to(3)
    world.run(0)
    world.expire_leases()
    assert main(["rename-source", world.pipeline.checkpoint, "numbers", "counted"]) == 0
    world.sources = {"counted": world.sources.pop("numbers")}
    world.count_to(5)
    world.run(1)
    world.run(0, clear_number=1)
    assert world.table() == {0: [1, 2, 3], 1: [4, 5]}
    assert world.checkpoint.replays.is_answered(KEY)


def test_switched_off_and_on_again(world: Counted) -> None:
    for number, late in enumerate((True, False, True, False)):
        world.sources = {"numbers": replace(world.sources["numbers"], late=late)}
        world.count_to(2 * number + 2)
        world.run(number)
    assert world.table() == {0: [1, 2], 1: [3, 4], 2: [5, 6], 3: [7, 8]}


@pytest.mark.parametrize("step", ["check", "log", "show"])
def test_commands_show_it(world: Counted, step: str, capsys: pytest.CaptureFixture[str]) -> None:
    world.count_to(3)
    world.run(0)
    world.expire_leases()
    arguments = [step, world.pipeline.checkpoint, *(["live/0"] if step == "show" else [])]
    assert main(arguments) == 0
    told = capsys.readouterr().out
    assert step == "check" or "3" in told
