"""Who wakes up while a command is at the checkpoint, and commands that sleep themselves: nothing is lost or doubled,
and no command stops half way for good."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_microbatch.checkpoint.log import MetadataLog
from airflow_provider_microbatch.checkpoint.maintenance import MaintenanceLog
from airflow_provider_microbatch.checkpoint.replays import Replays
from airflow_provider_microbatch.checkpoint.verify import verify_all
from airflow_provider_microbatch.exceptions import (
    MaintenanceError,
    MicroBatchError,
)
from airflow_provider_microbatch.execution import commit_entry
from airflow_provider_microbatch.stores.posix import PosixStore
from airflow_provider_microbatch.upkeep.commands.apply import Applier
from airflow_provider_microbatch.upkeep.commands.draft import Draft
from airflow_provider_microbatch.upkeep.commands.steps import (
    DropOutput,
    DropStage,
    End,
    Fence,
    PutAway,
    PutAwayLate,
    Write,
)
from airflow_provider_microbatch.upkeep.commands.withdraw_clear import plan_withdraw_clear
from tests.execution.maintaining import applied, applier, expire, filled, rewind, rows
from tests.execution.sleepers import (
    Sleep,
    applied_or_refused,
    killed,
    late_attempt,
    of_log,
    rewound,
    to_the_first,
)
from tests.execution.world import CODE, KEY, Killed, World, run_identity
from tests.support.inline_engine import InlineEngine


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.mark.parametrize("dies", [False, True])
def test_a_publish_and_commit_between_a_rewinds_decision_and_its_first_step_lose_nothing(
    world: World, sleep: Sleep, monkeypatch: pytest.MonkeyPatch, dies: bool
) -> None:
    attempt = late_attempt(world)

    def wakes_up() -> None:
        with monkeypatch.context() as patch:
            if dies:
                patch.setattr(commit_entry, "check_still_planned", killed)
            manifest = world.execution.publish(attempt)
            with pytest.raises(Killed if dies else MaintenanceError):
                world.execution.commit(key=attempt.key, manifest=manifest, run=attempt.run)

    sleep.before(Applier, "_do", wakes_up, lambda *_: True)
    applied(world, rewind(1))
    assert world.checkpoint.commit_log.ids() == world.checkpoint.offset_log.ids() == [0, 1]
    assert world.table() == {0: [0], 1: [1]}
    world.run(3)
    assert world.table() == {0: [0], 1: [1], 2: [2]}
    assert verify_all(world.checkpoint) == []


def test_an_attempt_that_is_opened_before_the_first_step_of_a_rewind_does_not_stop_it(
    world: World, sleep: Sleep
) -> None:
    attempt = late_attempt(world)

    def opened() -> None:
        with pytest.raises(MaintenanceError):
            world.execution.open_attempt(key=attempt.key, run=run_identity(2), code=CODE, engine=InlineEngine())

    sleep.before(Applier, "_do", opened, lambda *_: True)
    applied(world, rewind(1))
    epochs = world.checkpoint.attempts.epochs
    assert epochs.all(attempt.key) == epochs.ends(attempt.key) == [1, 2, 3]
    world.run(3)
    assert world.table() == {0: [0], 1: [1], 2: [2]}
    assert verify_all(world.checkpoint) == []


@pytest.mark.parametrize(
    ("owner", "name"),
    [(Applier, "_do"), (Fence, "apply"), (DropStage, "apply"), (DropOutput, "apply"), (PutAway, "apply")],
    ids=["before the first step", "before the fence", "before its stage goes", "before the output", "before the logs"],
)
def test_a_replay_that_wakes_up_during_a_rewind_leaves_nothing(
    world: World, sleep: Sleep, owner: type, name: str
) -> None:
    filled(world, 3)
    engine, run = InlineEngine(), run_identity(2, clear_number=1)
    planned = world.execution.plan(run)
    assert planned is not None
    look = world.execution.look(planned.key, run, engine_of=lambda _: engine)
    replay = world.execution.open_attempt(key=planned.key, run=run, code=CODE, engine=engine, look=look)
    world.execution.run_attempt(attempt=replay, job=world.execution.job(replay, None), engine=engine, code=CODE)
    world.expire_leases()

    def wakes_up() -> None:
        with suppress(MicroBatchError):
            world.execution.publish(replay)

    sleep.before(owner, name, wakes_up, lambda *given: not isinstance(given[1], Draft))
    applied(world, rewind(1))
    assert world.table() == {0: [0], 1: [1]}
    assert world.checkpoint.commit_log.ids() == world.checkpoint.offset_log.ids() == [0, 1]
    world.run(3)
    assert world.table() == {0: [0], 1: [1], 2: [2]}
    assert verify_all(world.checkpoint) == []


def test_the_answer_of_a_replay_that_slept_through_a_rewind_is_not_that_of_a_later_clear(
    world: World, sleep: Sleep
) -> None:
    filled(world, 3)

    def rewound_and_made_anew() -> None:
        rewound(world, 1)()
        world.run(3)

    sleep.before(Replays, "complete", rewound_and_made_anew)
    with suppress(MicroBatchError):
        world.run(2, clear_number=1)
    again = InlineEngine(transform=lambda _: [{"id": 102}])
    world.run(3, again, clear_number=1)
    assert world.table()[2] == [102]
    assert verify_all(world.checkpoint) == []


def test_an_answer_that_comes_while_its_clear_is_withdrawn_does_not_stop_that(world: World, sleep: Sleep) -> None:
    world.land(0)
    world.run(0)
    replays = world.checkpoint.replays
    for clear in (1, 2):
        replays.request(KEY, run=run_identity(0, clear_number=clear), requested_ms=clear)

    def answered() -> None:
        replays.complete(KEY, 2, attempt=2, completed_ms=3)

    sleep.before(
        End, "apply", answered, lambda step, store: step.path.endswith("2.end") and not isinstance(store, Draft)
    )
    applied(world, lambda drafting: plan_withdraw_clear(drafting, KEY))
    assert replays.pending(KEY) == []
    assert replays.is_answered(KEY)
    assert world.checkpoint.maintenance.unfinished() is None


def test_a_rewind_that_was_taken_for_dead_leaves_the_next_life_of_its_batches_alone(world: World, sleep: Sleep) -> None:
    late_attempt(world)

    def finished_by_another() -> None:
        expire(world)
        applied(world, rewind(1))
        for number in (3, 4):
            world.run(number)

    sleep.before(PutAwayLate, "apply", finished_by_another, lambda *given: not isinstance(given[1], Draft))
    applied_or_refused(world, rewind(1))
    assert world.checkpoint.commit_log.ids() == world.checkpoint.offset_log.ids() == [0, 1, 2]
    world.land(5)
    world.run(5)
    assert world.table() == {0: [0], 1: [1], 2: [2], 3: [5]}
    assert verify_all(world.checkpoint) == []


def test_a_command_that_was_taken_for_dead_does_no_further_step(
    world: World, sleep: Sleep, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(world, 3)
    steps: list[int] = []

    def finished_by_another() -> None:
        expire(world)
        applied(world, rewind(0))
        world.run(3)
        monkeypatch.setattr(MaintenanceLog, "hold", lambda _, number: steps.append(number))

    sleep.before(DropOutput, "apply", finished_by_another)
    with pytest.raises(MaintenanceError, match="finished by another"):
        applied(world, rewind(0))
    assert steps == []
    for number in range(4, 7):
        world.run(number)
    assert rows(world) == [0, 1, 2]
    assert verify_all(world.checkpoint) == []


def test_who_sleeps_before_it_finishes_a_command_that_is_given_up_then_does_not_begin_it(
    world: World, sleep: Sleep, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was killed before its first step, and has no sign of life that would tell."""
    world.land(0)
    world.run(0)
    world.checkpoint.replays.request(KEY, run=run_identity(0, clear_number=1), requested_ms=1)
    with monkeypatch.context() as patch:
        patch.setattr(Applier, "_do", killed)
        with pytest.raises(Killed):
            applied(world, lambda drafting: plan_withdraw_clear(drafting, KEY))
    expire(world)
    sleep.before(Applier, "_do", lambda: applier(world).give_up(by="me@here"))
    with pytest.raises(MaintenanceError, match="given up"):
        applier(world).finish()
    assert world.checkpoint.replays.pending(KEY) != [], "the clear is not withdrawn"
    again = InlineEngine(transform=lambda _: [{"id": 100}])
    world.run(0, again, clear_number=1)
    assert world.table() == {0: [100]}


@pytest.mark.parametrize(
    ("wakes", "takes"), [("apply", "then"), ("_do", "then"), ("_do", "when the command has ended")]
)
def test_a_commit_that_a_command_has_counted_on_is_not_taken_back_from_under_it(
    world: World, sleep: Sleep, monkeypatch: pytest.MonkeyPatch, wakes: str, takes: str
) -> None:
    """The committer wakes up while the command puts its own batch behind it."""
    filled(world, 2)
    world.land(2)
    sleeps, goes_on, takes_back, ended = (threading.Event() for _ in range(4))
    look, take_back = commit_entry.check_still_planned, MetadataLog.take_back

    def commits() -> None:
        with suppress(MicroBatchError):
            world.run(2)

    committer = threading.Thread(target=commits)

    def slow_look(*given: Any) -> None:
        if threading.current_thread() is committer:
            sleeps.set()
            assert goes_on.wait(60)
        look(*given)

    def slow_take(*given: Any) -> None:
        takes_back.set()
        assert takes == "then" or ended.wait(60)
        take_back(*given)

    monkeypatch.setattr(commit_entry, "check_still_planned", slow_look)
    monkeypatch.setattr(MetadataLog, "take_back", slow_take)
    committer.start()
    assert sleeps.wait(60)
    world.expire_leases()

    def wakes_up() -> None:
        goes_on.set()
        if takes == "then":
            committer.join()
        else:
            assert takes_back.wait(60)

    sleep.before(
        Write if wakes == "apply" else Applier, wakes, wakes_up, lambda *given: not isinstance(given[1], Draft)
    )
    applied_or_refused(world, to_the_first)
    goes_on.set()
    ended.set()
    committer.join()
    for number in range(5, 9):
        world.run(number)
    assert {*rows(world)} == {0, 1, 2}
    assert verify_all(world.checkpoint) == []


def test_of_two_commands_that_begin_at_once_one_begins(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    log, real, begun = world.checkpoint.maintenance, MaintenanceLog.check_none, []

    def another_begins(maintenance: MaintenanceLog) -> int:
        newest = real(maintenance)
        if not begun:
            begun.append("first")
            log.begin(command="first", by="him@there", started_ms=1, steps=[])
        return newest

    monkeypatch.setattr(MaintenanceLog, "check_none", another_begins)
    with pytest.raises(MaintenanceError, match="microbatch first"):
        log.begin(command="second", by="me@here", started_ms=2, steps=[])
    monkeypatch.undo()
    found = log.unfinished()
    assert found is not None
    assert (found.number, found.command) == (1, "first")


def test_an_end_that_arrives_from_who_was_taken_for_dead_is_not_taken_back_from_under_who_finished_the_command(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(world, 3)
    real, arrives, is_new = PosixStore.put_if_absent, list[Callable[[], bool]](), list[bool]()

    def put(store: PosixStore, path: str, data: bytes) -> bool:
        if path != "1.end":
            return real(store, path, data)
        if arrives:
            is_new.append(arrives[0]())
            return real(store, path, data)
        arrives.append(lambda: real(store, path, data))
        expire(world)
        applied(world, rewind(0))
        for number in (3, 4):
            world.run(number)
        return is_new[0]

    monkeypatch.setattr(PosixStore, "put_if_absent", put)
    applied_or_refused(world, rewind(0))
    monkeypatch.undo()
    assert is_new == [True]
    world.land(9)
    world.run(9)
    assert world.table() == {0: [0], 1: [1], 2: [2], 3: [9]}
    assert verify_all(world.checkpoint) == []


@pytest.mark.parametrize("path", ["offsets/2", "commits/2", "offsets/1"])
def test_a_command_that_sleeps_before_it_removes_a_file_leaves_the_next_life_of_its_batch_alone(
    world: World, sleep: Sleep, path: str
) -> None:
    filled(world, 3)

    def finished_by_another() -> None:
        expire(world)
        applied(world, rewind(0))
        for number in (3, 4):
            world.run(number)

    sleep.before(
        PosixStore, "delete_if", finished_by_another, lambda store, name, _: f"{store.location}/{name}".endswith(path)
    )
    applied_or_refused(world, rewind(0))
    assert world.checkpoint.commit_log.ids() == world.checkpoint.offset_log.ids() == [0, 1, 2]
    world.land(9)
    world.run(9)
    assert world.table() == {0: [0], 1: [1], 2: [2], 3: [9]}
    assert verify_all(world.checkpoint) == []


@pytest.mark.parametrize("older", [False, True], ids=["of this version", "of one that had said that nothing came"])
def test_a_commit_that_comes_after_the_last_step_of_a_rewind_that_was_killed_does_not_stop_who_finishes_it(
    world: World, sleep: Sleep, monkeypatch: pytest.MonkeyPatch, older: bool
) -> None:
    attempt = late_attempt(world)
    manifest = world.execution.publish(attempt)

    def killed_before_its_end() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(MaintenanceLog, "end", killed)
            with pytest.raises(Killed):
                applied(world, rewind(1))

    sleep.before(MetadataLog, "add", killed_before_its_end, of_log("commits", 2))
    monkeypatch.setattr(commit_entry, "check_still_planned", killed)
    with pytest.raises(Killed):
        world.execution.commit(key=attempt.key, manifest=manifest, run=attempt.run)
    left = world.checkpoint.maintenance.unfinished()
    assert left is not None
    if older:
        [late] = [step["target"] for step in left.steps if step["step"] == PutAwayLate.kind]
        path = world.root / "checkpoint" / late
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"nothing came\n")
    monkeypatch.undo()
    expire(world)
    applied(world, rewind(1))
    assert world.checkpoint.maintenance.unfinished() is None
    assert world.checkpoint.commit_log.ids() == world.checkpoint.offset_log.ids() == [0, 1]
    [kept] = (
        path for path in (world.root / "checkpoint" / "repaired").rglob("2.late*") if b"epoch" in path.read_bytes()
    )
    assert kept.name == ("2.late.2" if older else "2.late")
    world.run(3)
    assert world.table() == {0: [0], 1: [1], 2: [2]}
    assert verify_all(world.checkpoint) == []
