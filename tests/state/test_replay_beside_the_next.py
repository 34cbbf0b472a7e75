"""A batch that keeps state goes on from the output that the table has of the batch before, whatever a replay does."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_microbatch.checkpoint.fences import FencedBy, fence
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.checkpoint.replays import Replays
from airflow_provider_microbatch.exceptions import (
    AttemptFencedError,
    BatchInProgressError,
    CheckpointError,
    EngineError,
    MicroBatchError,
    SinkError,
)
from airflow_provider_microbatch.execution import plan as planning
from airflow_provider_microbatch.execution import stateful
from airflow_provider_microbatch.execution.retention import find_held
from airflow_provider_microbatch.sinks import file as file_sink
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sinks.foreach import ForeachBatch
from airflow_provider_microbatch.upkeep.commands.withdraw_clear import plan_withdraw_clear
from tests.execution.maintaining import applied, rewind
from tests.execution.sleepers import Sleep, killed
from tests.execution.world import CODE, Killed, run_identity
from tests.state.counting import CountingEngine, CountingWorld
from tests.state.test_state_check import found, type_it
from tests.support.foreach_sinks import RowsInSqlite

FIRST = BatchKey("live", 0)


@pytest.fixture
def world(tmp_path: Path) -> CountingWorld:
    """Batch 0 is in, and the counter has come on."""
    made = CountingWorld(tmp_path)
    made.batch(0, head=1)
    made.come(2)
    return made


def replay(world: CountingWorld, *, try_number: int = 1, **more: Any) -> None:
    """Batch 0 again, by code that counts each number twice."""
    world.run(0, world.engine(times=2, **more), clear_number=1, try_number=try_number)


def next_batch(world: CountingWorld, *, try_number: int = 1) -> None:
    world.run(1, world.engine(), try_number=try_number)


def planned_by_a_sleeper(world: CountingWorld) -> Callable[[], None]:
    """The next batch, by a planner that has looked by now, and sleeps before it writes the entry."""
    planner = world.execution.planner
    planner.begin(run_identity(1))
    position = planner.position()
    ranges = planner.sources.next_ranges(position.committed, {})
    return lambda: (planner.write_entry(position, run_identity(1), ranges), next_batch(world))[-1]


def withdrawn(world: CountingWorld) -> None:
    applied(world, lambda drafting: plan_withdraw_clear(drafting, FIRST))


def an_hour_passes(world: CountingWorld) -> None:
    world.expire_leases()
    for path in (world.root / "checkpoint" / "replays").rglob("*"):
        os.utime(path, times=(time.time() - 3600,) * 2)


SLEEPS = [(FileSink, "replace"), (file_sink, "check_files"), (file_sink, "exchange")]


@pytest.mark.parametrize(("owner", "name"), SLEEPS, ids=[name for _, name in SLEEPS])
def test_a_replay_that_sleeps_while_the_next_batch_is_planned_read_published_and_committed_replaces_nothing(
    world: CountingWorld, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str
) -> None:
    """The planner has looked before the clear."""
    plan = planned_by_a_sleeper(world)
    Sleep(monkeypatch).before(owner, name, plan)
    with pytest.raises(MicroBatchError):
        replay(world)

    assert world.table() == {0: [1], 1: [2]}
    with pytest.raises(CheckpointError, match=r"from which batches 1 to 1 have gone on.*rewind .*--to -1"):
        replay(world, try_number=2)
    assert world.stages() == []


def test_a_clear_that_the_next_batch_has_overtaken_holds_no_retention_and_is_refused_by_each_retry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = CountingWorld(tmp_path, min_batches_to_retain=2)
    world.batch(0, head=1)
    world.come(2)
    plan = planned_by_a_sleeper(world)
    with monkeypatch.context() as patched:
        Sleep(patched).before(FileSink, "replace", plan)
        with pytest.raises(MicroBatchError):
            replay(world)
    for number in (2, 3):
        world.batch(number, head=number + 1)
    (found,) = find_held(world.checkpoint)
    assert re.match(r"`microbatch withdraw-clear \S+ live/0`: later batches have gone on", found.repair)
    for try_number in (2, 3):
        with pytest.raises(CheckpointError, match="from which batches 1 to 3 have gone on"):
            replay(world, try_number=try_number)
    assert not find_held(world.checkpoint)
    world.batch(4, head=5)
    assert world.checkpoint.offset_log.ids() == [3, 4]


def test_of_a_replay_whose_clear_is_withdrawn_no_attempt_wakes_up_behind_the_next_batch(
    world: CountingWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    def meanwhile() -> None:
        world.expire_leases()
        withdrawn(world)
        next_batch(world)

    Sleep(monkeypatch).before(FileSink, "replace", meanwhile)
    with pytest.raises(SinkError, match="no complete stage"):
        replay(world)

    assert world.table() == {0: [1], 1: [2]}


def test_the_next_batch_goes_on_from_a_replay_that_has_replaced_in_the_last_moment(
    world: CountingWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = planned_by_a_sleeper(world)
    Sleep(monkeypatch).before(Replays, "complete", plan)
    replay(world)

    assert world.table() == {0: [2], 1: [3]}
    assert not world.checkpoint.replays.pending(FIRST)


def test_while_a_replay_runs_the_next_batch_is_left_to_the_next_run(world: CountingWorld) -> None:
    said = []

    def meanwhile(job: object) -> None:
        with pytest.raises(BatchInProgressError, match=r"live/0 .*run 'run-0' .*Nothing was done here"):
            next_batch(world)
        said.append(world.execution.should_fire(run_identity(1)))

    replay(world, after_stage=meanwhile)
    next_batch(world)

    assert not said[0].fire
    assert "run 'run-0'" in said[0].reason
    assert world.table() == {0: [2], 1: [3]}


def failed_replay(world: CountingWorld) -> None:
    def fails(job: object) -> None:
        raise EngineError("no executors")

    with pytest.raises(EngineError):
        replay(world, before_stage=fails)


def test_a_clear_that_nobody_answers_stops_the_next_batch_with_the_ways_on(world: CountingWorld) -> None:
    failed_replay(world)
    with pytest.raises(BatchInProgressError):  # its retry may be on its way
        next_batch(world)
    an_hour_passes(world)
    for ask in (lambda: next_batch(world), lambda: world.execution.should_fire(run_identity(1))):
        with pytest.raises(CheckpointError, match=r"run 'run-0' of DAG 'orders' .*microbatch withdraw-clear .* live/0"):
            ask()
    assert world.table() == {0: [1]}

    withdrawn(world)
    next_batch(world)
    assert world.table() == {0: [1], 1: [2]}


def test_a_replay_whose_stage_waits_for_audits_is_named(world: CountingWorld) -> None:
    run, engine = run_identity(0, clear_number=1), world.engine(times=2)
    found = world.execution.look(FIRST, run, engine_of=lambda _: engine)
    attempt = world.execution.open_next(found, run=run, code=CODE, engine=engine)
    assert attempt is not None
    job = world.execution.job(attempt, None)
    world.execution.run_attempt(attempt=attempt, job=job, engine=engine, code=CODE)
    an_hour_passes(world)
    world.execution.keep(attempt, seconds=60)
    told = r"its stage waits for its audits.*Clear the submit task of run 'run-0'.*live/0 --despite-audits` leaves"
    with pytest.raises(CheckpointError, match=told):
        next_batch(world)
    manifest = world.execution.publish(attempt)
    world.execution.commit(key=FIRST, manifest=manifest, run=run)
    next_batch(world)

    assert world.table() == {0: [2], 1: [3]}


def test_the_retry_of_the_replay_lets_the_next_batch_go_on(world: CountingWorld) -> None:
    failed_replay(world)
    an_hour_passes(world)
    replay(world, try_number=2)
    next_batch(world)

    assert world.table() == {0: [2], 1: [3]}


def test_a_replay_that_died_before_its_answer_stops_nothing(
    world: CountingWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(Replays, "complete", killed)
        with pytest.raises(Killed):
            replay(world)
    an_hour_passes(world)
    next_batch(world)

    assert world.table() == {0: [2], 1: [3]}
    world.janitor()
    assert not world.checkpoint.replays.pending(FIRST)


@pytest.mark.parametrize(
    ("owner", "name", "error"),
    [
        (FileSink, "drop_stage", SinkError("the table is away")),
        (CountingEngine, "cancel", EngineError("YARN cannot be asked")),
    ],
    ids=["its stage cannot be dropped", "its engine cannot be asked"],
)
def test_a_replay_that_cannot_be_ended_stops_the_next_batch_which_says_why(
    world: CountingWorld, monkeypatch: pytest.MonkeyPatch, owner: type, name: str, error: MicroBatchError
) -> None:
    """Whoever sleeps with it could replace what the next batch has gone on from."""

    def away(*_: object) -> bool:
        raise error

    def meanwhile() -> None:
        world.expire_leases()
        withdrawn(world)
        with monkeypatch.context() as patched:
            patched.setattr(owner, name, away)
            with pytest.raises(CheckpointError, match=rf"attempt 2 of run 'run-0' .*the state .* again: {error}"):
                next_batch(world)

    Sleep(monkeypatch).before(FileSink, "replace", meanwhile)
    replay(world)
    next_batch(world, try_number=2)

    assert world.table() == {0: [2], 1: [3]}


def test_the_next_batch_waits_for_a_replay_whose_function_is_being_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows may be in the target by now, where nothing takes them back."""
    target = RowsInSqlite(str(tmp_path / "stages"), str(tmp_path / "rows.db"), format="json")
    world = CountingWorld(tmp_path, sink=target)
    world.batch(0, head=1)
    world.come(2)
    monkeypatch.setattr("airflow_provider_microbatch.sinks.foreach.opened.TABLE_SECONDS", 0)
    plan = planned_by_a_sleeper(world)

    def meanwhile() -> None:
        with pytest.raises(CheckpointError, match=r"attempt 2 of run 'run-0' .*could not be ended: "):
            plan()

    Sleep(monkeypatch).before(FileSink, "replace", meanwhile)
    replay(world)
    next_batch(world, try_number=2)

    ours = world.checkpoint.batch(BatchKey("live", 0)).checkpoint
    told = [
        ForeachBatch(key=BatchKey("live", n), checkpoint=ours, pipeline="", epoch=0, is_replay=False) for n in (0, 1)
    ]
    assert [target.held(batch) for batch in told] == [[{"id": 2}], [{"id": 3}]]


def test_an_attempt_whose_state_is_not_the_one_that_is_published_by_now_publishes_nothing(world: CountingWorld) -> None:
    """As behind a table that was restored from a backup meanwhile."""

    def restored(job: object) -> None:
        folder = world.lake / "lane=live" / "batch_id=0" / "_manifest" / "part-0.txt"
        other = next(iter(world.kept))
        folder.write_text(folder.read_text().replace(other, "00000000-0000-0000-0000-000000000000"))

    with pytest.raises(AttemptFencedError, match=r"goes on from .*another state"):
        world.run(1, world.engine(after_stage=restored))
    assert world.table() == {0: [1]}
    assert not world.checkpoint.commit_log.has(1)


def test_a_batch_that_was_taken_back_leaves_the_one_before_to_its_replay(world: CountingWorld) -> None:
    next_batch(world)
    applied(world, rewind(0))
    replay(world)
    next_batch(world, try_number=2)

    assert world.table() == {0: [2], 1: [3]}


YEAR_3000 = 32_503_680_000_000


@pytest.fixture
def replayed(tmp_path: Path) -> CountingWorld:
    """Batch 0 had a time of the year 3000, and was cleared with code that leaves it out."""
    made = CountingWorld(tmp_path)
    made.come(1)
    made.run(0, made.engine(watermark_ms=YEAR_3000, another=True))
    replay(made, watermark_ms=60_000)
    return made


def pinned(world: CountingWorld, number: int) -> int:
    entry = world.checkpoint.offset_log.get(number)
    assert entry is not None
    return entry.watermark_ms


def test_the_batch_behind_a_replay_pins_the_watermark_that_the_replay_has_come_to(replayed: CountingWorld) -> None:
    """By that of the attempt that was replaced all rows to come would be late, in green."""
    replayed.come(2)
    next_batch(replayed)
    assert pinned(replayed, 1) == 60_000
    assert found(replayed) == []


def test_so_does_the_batch_behind_a_rewind_to_it(replayed: CountingWorld) -> None:
    replayed.come(2)
    next_batch(replayed)
    applied(replayed, rewind(0))
    next_batch(replayed, try_number=2)
    assert pinned(replayed, 1) == 60_000
    assert replayed.table() == {0: [2], 1: [3]}


def test_a_replay_that_asks_for_no_batch_without_data_is_followed_by_none(replayed: CountingWorld) -> None:
    assert not replayed.execution.should_fire(run_identity(1)).fire
    next_batch(replayed)
    assert replayed.checkpoint.offset_log.ids() == [0]


def test_a_sensor_needs_no_table_once_the_replay_is_answered(
    replayed: CountingWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may run where the sink's library or catalog is not."""
    replayed.come(2)
    monkeypatch.setattr(FileSink, "contains", lambda *_: pytest.fail("the table is asked"))
    assert replayed.execution.should_fire(run_identity(1)).fire


def test_a_sensor_needs_no_table_behind_a_replay_that_failed_and_whose_clear_is_withdrawn(
    world: CountingWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No answer comes any more, so each look would fail, and no batch would be made."""
    failed_replay(world)
    withdrawn(world)
    with monkeypatch.context() as patched:

        def away(*_: object) -> None:
            raise SinkError("the library of the table is not here")

        patched.setattr(FileSink, "contains", away)
        assert world.execution.should_fire(run_identity(1)).fire
    next_batch(world)
    assert world.table() == {0: [1], 1: [2]}


def test_a_sensor_asks_no_table_behind_an_attempt_that_only_ended_others(
    replayed: CountingWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = replayed.checkpoint
    fencing = fence(FIRST, checkpoint.attempts.latest_epoch(FIRST) + 1, by=FencedBy.GONE_ON, started_ms=1, run=None)
    assert checkpoint.attempts.take_exactly(fencing)
    replayed.come(2)
    monkeypatch.setattr(FileSink, "contains", lambda *_: pytest.fail("the table is asked"))
    assert replayed.execution.should_fire(run_identity(1)).fire


@pytest.mark.parametrize("is_withdrawn", [False, True])
@pytest.mark.parametrize("asks", [True, False])
def test_a_sensor_goes_by_a_replay_that_died_before_its_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asks: bool, is_withdrawn: bool
) -> None:
    """As the plan does: else it would fire again and again, or not for the batch that the replay asks for."""
    world = CountingWorld(tmp_path)
    world.come(1)
    world.run(0, world.engine(another=not asks))
    with monkeypatch.context() as patched:
        patched.setattr(Replays, "complete", killed)
        with pytest.raises(Killed):
            replay(world, another=asks)
    an_hour_passes(world)
    if is_withdrawn:  # its run was deleted
        withdrawn(world)
    assert world.execution.should_fire(run_identity(1)).fire is asks
    next_batch(world)
    assert world.checkpoint.offset_log.ids() == ([0, 1] if asks else [0])


def test_the_batch_without_data_that_a_replay_asks_for_is_made(tmp_path: Path) -> None:
    world = CountingWorld(tmp_path)
    world.batch(0, head=1)
    replay(world, another=True)
    assert world.execution.should_fire(run_identity(1)).fire
    next_batch(world)
    assert world.checkpoint.commit_log.ids() == [0, 1]


def test_a_plan_that_a_replay_has_come_before_in_the_last_moment_runs_by_no_other_watermark(
    world: CountingWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planner has looked before the clear."""
    plan, refused = planned_by_a_sleeper(world), []

    def meanwhile() -> None:
        with pytest.raises(
            CheckpointError, match=r"live/1 .*watermark 0, .*has come to 60000 .*Nothing was run"
        ) as why:
            plan()
        refused.append(str(why.value))

    Sleep(monkeypatch).before(Replays, "complete", meanwhile)
    replay(world, watermark_ms=60_000)
    assert world.table() == {0: [2]}
    assert [finding.kind for finding in found(world)] == ["state"]

    type_it(world, refused[0])
    next_batch(world, try_number=2)
    assert pinned(world, 1) == 60_000
    assert world.table() == {0: [2], 1: [3]}


def test_a_batch_that_an_older_version_has_made_by_the_watermark_of_before_is_found_with_the_way_on(
    replayed: CountingWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    replayed.come(2)
    with monkeypatch.context() as older:
        older.setattr(planning, "standing_commit", lambda *given, **_: given[-1])
        older.setattr(stateful, "_check_watermark", lambda *given: None)
        next_batch(replayed)
    replayed.batch(2, head=3)
    assert pinned(replayed, 1) == YEAR_3000

    (finding,) = found(replayed)
    assert "takes it back with all that follow" in finding.repair
    type_it(replayed, finding.repair)
    for number in (1, 2):
        replayed.run(number, replayed.engine(watermark_ms=60_000), try_number=2)
    assert [pinned(replayed, number) for number in (1, 2)] == [60_000, 60_000]
    assert found(replayed) == []
    assert replayed.table() == {0: [2], 1: [3], 2: [4]}
