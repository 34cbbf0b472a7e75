"""Processes that sleep while a command changes the checkpoint, and wake up afterwards: no row is lost or doubled, and
the pipeline goes on by itself."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_microbatch.checkpoint.entries import Attempt
from airflow_provider_microbatch.checkpoint.log import MetadataLog
from airflow_provider_microbatch.checkpoint.maintenance import MaintenanceLog
from airflow_provider_microbatch.checkpoint.replays import Replays
from airflow_provider_microbatch.checkpoint.verify import verify_all
from airflow_provider_microbatch.exceptions import (
    AttemptFencedError,
    BrokenLogError,
    ConcurrentPlanError,
    MaintenanceError,
    MicroBatchError,
    SinkError,
)
from airflow_provider_microbatch.execution import commit_entry
from airflow_provider_microbatch.execution import plan as plan_module
from airflow_provider_microbatch.execution.intervals import batch_of
from airflow_provider_microbatch.execution.maintenance.apply import Applier
from airflow_provider_microbatch.execution.maintenance.draft import Draft
from airflow_provider_microbatch.execution.maintenance.plan import Drafting, Plan
from airflow_provider_microbatch.execution.maintenance.rename_source import plan_rename_source
from airflow_provider_microbatch.execution.maintenance.set_offset import plan_set_offset
from airflow_provider_microbatch.execution.maintenance.steps import (
    DropOutput,
    DropStage,
    End,
    Fence,
    SetAside,
    SetAsideLate,
    Write,
)
from airflow_provider_microbatch.execution.maintenance.withdraw_clear import plan_withdraw_clear
from airflow_provider_microbatch.execution.opened_sources import OpenedSources
from airflow_provider_microbatch.sinks import file as file_sink
from airflow_provider_microbatch.sources.file import FileSource
from tests.execution.intervals import IntervalWorld, hour
from tests.execution.maintaining import applied, expire, rewind
from tests.execution.world import CODE, KEY, Killed, World, run_identity
from tests.support.inline_engine import InlineEngine


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture
def cleaned(world: World) -> World:
    """Its source deletes what is committed. Batches 0 and 1 are, and a file has come for the next one."""
    world.sources = {"orders": cleaning(world)}
    for number in range(2):
        world.land(number)
        world.run(number)
    world.land(2)
    return world


def cleaning(world: World) -> FileSource:
    return FileSource(str(world.landing()), format="json", schema="id long", clean_source="delete")


def rows(world: World) -> list[int]:
    return sorted(row for found in world.table().values() for row in found)


class Sleep:
    """The first call of a function that ``when`` is true for sleeps before it begins, while ``meanwhile`` happens."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch

    def before(
        self, owner: Any, name: str, meanwhile: Callable[[], object], when: Callable[..., bool] = lambda *_: True
    ) -> None:
        real = getattr(owner, name)
        slept: list[bool] = []

        def slow(*args: Any, **kwargs: Any) -> Any:
            if not slept and when(*args):
                slept.append(True)
                meanwhile()
            return real(*args, **kwargs)

        self._patch.setattr(owner, name, slow)


@pytest.fixture
def sleep(monkeypatch: pytest.MonkeyPatch) -> Sleep:
    return Sleep(monkeypatch)


def killed(*_: object, **__: object) -> None:
    raise Killed


def rewound(world: World, to: int, lane: str = "live") -> Callable[[], None]:
    def act() -> None:
        world.expire_leases()
        applied(world, rewind(to, lane=lane))

    return act


def of_log(name: str, number: int) -> Callable[..., bool]:
    return lambda entries, batch_id, *_: entries.location.endswith(name) and batch_id == number


@pytest.mark.parametrize(
    ("owner", "name", "when"),
    [
        (OpenedSources, "release", lambda *_: True),
        (MetadataLog, "add", of_log("commits", 2)),
        (OpenedSources, "commit", lambda _, ends: "2" in str(ends)),
    ],
)
def test_a_commit_that_slept_through_a_rewind_loses_nothing(
    cleaned: World, sleep: Sleep, owner: type, name: str, when: Callable[..., bool]
) -> None:
    sleep.before(owner, name, rewound(cleaned, 1), when)
    with pytest.raises((AttemptFencedError, BrokenLogError)):
        cleaned.run(2)
    assert cleaned.checkpoint.commit_log.ids() == cleaned.checkpoint.offset_log.ids() == [0, 1]
    assert [path.name for path in cleaned.landing().iterdir()] == ["000002.json"]
    cleaned.run(3)
    assert cleaned.table() == {0: [0], 1: [1], 2: [2]}
    assert verify_all(cleaned.checkpoint) == []


def test_a_publish_that_slept_through_a_rewind_finds_nothing_to_publish(world: World, sleep: Sleep) -> None:
    for number in range(2):
        world.land(number)
        world.run(number)
    world.land(2)
    sleep.before(file_sink, "rename_new", rewound(world, 1), lambda _, target: target.name == "batch_id=2")
    with pytest.raises(SinkError):
        world.run(2)
    assert world.table() == {0: [0], 1: [1]}
    world.run(3)
    assert world.table() == {0: [0], 1: [1], 2: [2]}


def test_a_plan_that_slept_while_others_went_on_from_a_rewind_doubles_nothing(tmp_path: Path, sleep: Sleep) -> None:
    world = World(tmp_path, sources=("a", "b"))
    for number, (source, *ids) in enumerate([("a", 0), ("a", 1), ("b", 101), ("a", 2)]):
        world.land(*ids, source=source)
        world.run(number)
    world.land(3, source="a")

    def rewound_and_caught_up() -> None:
        applied(world, rewind(0))
        for number in range(10, 13):
            world.run(number)

    sleep.before(MetadataLog, "add", rewound_and_caught_up, of_log("offsets", 4))
    with pytest.raises(ConcurrentPlanError, match="while a command changed the log"):
        world.run(4)
    world.run(20)
    assert rows(world) == [0, 1, 2, 3, 101]
    assert verify_all(world.checkpoint) == []


def test_a_plan_that_slept_through_a_rewind_is_taken_back(world: World, sleep: Sleep) -> None:
    for number in range(4):
        world.land(number)
        world.run(number)
    world.land(4)
    sleep.before(MetadataLog, "add", rewound(world, 1), of_log("offsets", 4))
    with pytest.raises(ConcurrentPlanError):
        world.run(4)
    for number in range(5, 8):
        world.run(number)
    assert rows(world) == [0, 1, 2, 3, 4]
    assert verify_all(world.checkpoint) == []


def test_a_planned_batch_that_does_not_follow_the_one_before_is_no_batch_to_run(world: World) -> None:
    """What a plan of an older version that slept through a rewind has left."""
    for number in range(3):
        world.land(number)
        world.run(number)
    world.land(3)
    world.execution.plan(run_identity(3))
    log = world.checkpoint.offset_log
    late, older = log.get(3), log.get(1)
    assert late is not None
    assert older is not None
    (world.root / "checkpoint/offsets/3").write_bytes(log.encoded(replace(late, starts=older.ends)))
    with pytest.raises(BrokenLogError, match=r"batch 3 begins 'orders' at[\s\S]*microbatch repair"):
        world.run(4)
    applied(world)
    world.run(5)
    assert rows(world) == [0, 1, 2, 3]
    assert verify_all(world.checkpoint) == []


def to_the_first(drafting: Drafting) -> Plan:
    """``set-offset``: all but the first file is read again."""
    return plan_set_offset(
        drafting, lane="live", source="orders", offset='{"logOffset":0}', allow_skip=False, allow_reread=True
    )


def test_a_plan_that_comes_after_a_command_has_begun_is_taken_back(
    world: World, sleep: Sleep, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        world.land(number)
        world.run(number)
    world.land(3)
    real = MaintenanceLog.check_none
    looked: list[bool] = []

    def check_none(maintenance: MaintenanceLog) -> None:
        if looked:
            real(maintenance)
        looked.append(True)

    def plan_late() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(MaintenanceLog, "check_none", check_none)
            with pytest.raises(MaintenanceError, match="is being changed by"):
                world.execution.plan(run_identity(3))

    sleep.before(Applier, "_do", plan_late)
    applied(world, to_the_first)
    assert world.checkpoint.commit_log.ids() == [0, 1, 2, 3]
    world.run(4)
    assert world.table()[4] == [1]


def test_a_command_whose_first_file_a_plan_has_taken_ends_without_effect(
    world: World, sleep: Sleep, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        world.land(number)
        world.run(number)
    world.land(3)

    def plan_late_and_die() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(MaintenanceLog, "check_none", lambda _: None)
            patch.setattr(plan_module, "take_back_if_late", killed)
            with pytest.raises(Killed):
                world.execution.plan(run_identity(3))

    sleep.before(Applier, "_do", plan_late_and_die)
    with pytest.raises(MaintenanceError, match="Nothing was done"):
        applied(world, to_the_first)
    world.run(4)
    assert world.table() == {0: [0], 1: [1], 2: [2], 3: [3]}
    applied(world, to_the_first)
    assert world.checkpoint.commit_log.ids() == [0, 1, 2, 3, 4]


def test_a_plan_of_an_interval_that_slept_while_its_source_was_renamed_is_taken_back(
    tmp_path: Path, sleep: Sleep
) -> None:
    world = IntervalWorld(tmp_path)
    world.land_at(0.5, 1)
    world.backfill(hour(0), 1)
    world.land_at(1.5, 2)
    sleep.before(
        OpenedSources,
        "plan_interval",
        lambda: applied(world, lambda drafting: plan_rename_source(drafting, old="orders", new="sales")),
    )
    with pytest.raises(AttemptFencedError, match="while a command changed the log"):
        world.backfill(hour(1), 2)
    world.sources = {"sales": world.sources["orders"]}
    world.backfill(hour(1), 2)
    assert world.ids() == [1, 2]
    assert verify_all(world.checkpoint) == []


def test_what_was_due_and_is_rewound_is_not_cleaned_by_the_commit_of_another_lane(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = IntervalWorld(tmp_path)
    world.sources = {"orders": cleaning(world)}
    world.land_at(1.5, 1)

    with monkeypatch.context() as patch:
        patch.setattr(OpenedSources, "commit", killed)
        with pytest.raises(Killed):
            world.backfill(hour(1), 1)
    rewound(world, -1, lane=batch_of(hour(1)).lane)()
    late = world.land_at(3.5, 2)
    assert world.run(5) is not None
    assert world.table() == {0: [2]}
    assert late is None or not late.exists()
    assert world.backfill(hour(1), 1)


def test_what_a_lanes_commit_released_that_slept_through_a_rewind_is_not_cleaned_by_another_lane(
    tmp_path: Path, sleep: Sleep
) -> None:
    world = IntervalWorld(tmp_path)
    world.sources = {"orders": cleaning(world)}
    world.land_at(1.5, 1)
    sleep.before(OpenedSources, "release", rewound(world, -1, lane=batch_of(hour(1)).lane), lambda *_: True)
    with pytest.raises(AttemptFencedError):
        world.backfill(hour(1), 1)
    world.land_at(3.5, 2)
    assert world.run(5) is not None
    assert world.table() == {0: [2]}
    assert world.backfill(hour(1), 1)


def late_attempt(world: World) -> Attempt:
    """Batches 0 and 1 are committed; an attempt of batch 2 sleeps before its publish, and counts as dead."""
    for number in range(2):
        world.land(number)
        world.run(number)
    world.land(2)
    attempt = world.staged(2)
    world.expire_leases()
    return attempt


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


def test_a_commit_that_others_have_built_on_stays_whoever_is_at_the_checkpoint_when_its_process_wakes_up(
    world: World, sleep: Sleep
) -> None:
    for number in range(2):
        world.land(number)
        world.run(number)
    world.land(2)

    def others_go_on_and_a_command_dies() -> None:
        world.expire_leases()
        world.land(3)
        world.run(3)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Applier, "_do", killed)
            with pytest.raises(Killed):
                applied(world, to_the_first)

    sleep.before(commit_entry, "check_still_planned", others_go_on_and_a_command_dies)
    world.run(2)
    expire(world)
    applied(world)
    assert world.checkpoint.commit_log.ids() == world.checkpoint.offset_log.ids() == [0, 1, 2, 3, 4]
    world.run(4)
    assert world.table() == {0: [0], 1: [1], 2: [2], 3: [3], 5: [1]}
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
    [(Applier, "_do"), (Fence, "apply"), (DropStage, "apply"), (DropOutput, "apply"), (SetAside, "apply")],
    ids=["before the first step", "before the fence", "before its stage goes", "before the output", "before the logs"],
)
def test_a_replay_that_wakes_up_during_a_rewind_leaves_nothing(
    world: World, sleep: Sleep, owner: type, name: str
) -> None:
    for number in range(3):
        world.land(number)
        world.run(number)
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
    for number in range(3):
        world.land(number)
        world.run(number)

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

    sleep.before(SetAsideLate, "apply", finished_by_another, lambda *given: not isinstance(given[1], Draft))
    applied_or_refused(world, rewind(1))
    assert world.checkpoint.commit_log.ids() == world.checkpoint.offset_log.ids() == [0, 1, 2]
    world.land(5)
    world.run(5)
    assert world.table() == {0: [0], 1: [1], 2: [2], 3: [5]}
    assert verify_all(world.checkpoint) == []


def test_a_command_that_was_taken_for_dead_does_no_further_step(world: World, sleep: Sleep) -> None:
    for number in range(3):
        world.land(number)
        world.run(number)

    def finished_by_another() -> None:
        expire(world)
        applied(world, rewind(0))
        world.run(3)

    sleep.before(DropOutput, "apply", finished_by_another)
    with pytest.raises(MaintenanceError, match="finished by another"):
        applied(world, rewind(0))
    for number in range(4, 7):
        world.run(number)
    assert rows(world) == [0, 1, 2]
    assert verify_all(world.checkpoint) == []


def applied_or_refused(world: World, make: Callable[[Drafting], Plan]) -> None:
    with suppress(MaintenanceError):
        applied(world, make)


@pytest.mark.parametrize(
    ("wakes", "takes"), [("apply", "then"), ("_do", "then"), ("_do", "when the command has ended")]
)
def test_a_commit_that_a_command_has_counted_on_is_not_taken_back_from_under_it(
    world: World, sleep: Sleep, monkeypatch: pytest.MonkeyPatch, wakes: str, takes: str
) -> None:
    """The committer wakes up while the command puts its own batch behind it."""
    for number in range(2):
        world.land(number)
        world.run(number)
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
