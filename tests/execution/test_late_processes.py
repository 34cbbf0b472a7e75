"""Processes that sleep while a command changes the checkpoint, and wake up afterwards: no row is lost or doubled, and
the pipeline goes on by itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_microbatch.checkpoint.attempts import Attempts
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.checkpoint.log import MetadataLog
from airflow_provider_microbatch.checkpoint.maintenance import MaintenanceLog
from airflow_provider_microbatch.checkpoint.replays import Replays
from airflow_provider_microbatch.checkpoint.verify import verify_all
from airflow_provider_microbatch.exceptions import (
    AttemptFencedError,
    BrokenLogError,
    ConcurrentPlanError,
    MaintenanceError,
    SinkError,
)
from airflow_provider_microbatch.execution import commit_entry
from airflow_provider_microbatch.execution import plan as plan_module
from airflow_provider_microbatch.execution import replay as replay_module
from airflow_provider_microbatch.execution.intervals import batch_of
from airflow_provider_microbatch.execution.opened_sources import OpenedSources
from airflow_provider_microbatch.sinks import file as file_sink
from airflow_provider_microbatch.upkeep.commands.apply import Applier
from airflow_provider_microbatch.upkeep.commands.rename_source import plan_rename_source
from airflow_provider_microbatch.upkeep.commands.withdraw_clear import plan_withdraw_clear
from tests.execution.intervals import IntervalWorld, hour
from tests.execution.maintaining import applied, expire, filled, rewind, rows
from tests.execution.sleepers import (
    Sleep,
    cleaning,
    killed,
    of_log,
    rewound,
    to_the_first,
)
from tests.execution.test_clears import cleared, first, run
from tests.execution.world import KEY, Killed, World, run_identity
from tests.support.inline_engine import InlineEngine


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture
def cleaned(world: World) -> World:
    """Its source deletes what is committed. Batches 0 and 1 are, and a file has come for the next one."""
    world.sources = {"orders": cleaning(world)}
    filled(world, 2)
    world.land(2)
    return world


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
    assert [path.name for path in cleaned.landing().glob("[!.]*")] == ["000002.json"]
    cleaned.run(3)
    assert cleaned.table() == {0: [0], 1: [1], 2: [2]}
    assert verify_all(cleaned.checkpoint) == []


@pytest.mark.parametrize("is_planned_anew", [False, True])
@pytest.mark.parametrize("to", [1, -1])
@pytest.mark.parametrize("dead", ["committed", "set aside"])
def test_a_commit_that_came_after_a_rewind_and_whose_process_died_then_counts_for_nothing(
    world: World, sleep: Sleep, monkeypatch: pytest.MonkeyPatch, dead: str, to: int, is_planned_anew: bool
) -> None:
    """On a plan of before it stands in the way; on the batch's next plan it would pass for that one's, and lose it."""
    filled(world, 2)
    world.land(2)
    engine = InlineEngine()
    if dead == "set aside":
        world.options |= {"on_failure": "set_aside", "set_aside_after": 1}
        engine = InlineEngine(transform=lambda sources: 1 / 0)  # type: ignore[arg-type, return-value]

    def meanwhile() -> None:
        rewound(world, to)()
        if is_planned_anew:
            world.execution.plan(run_identity(7))

    sleep.before(MetadataLog, "add", meanwhile, of_log("commits", 2))
    with monkeypatch.context() as patch:
        patch.setattr(commit_entry, "check_still_planned", killed)
        with pytest.raises(Killed):
            world.run(2, engine)
    assert 2 in world.checkpoint.commit_log.ids()
    world.expire_leases()
    assert world.execution.should_fire(run_identity(8)).fire
    for number in range(8, 11):
        world.run(number)
    assert rows(world) == [0, 1, 2]
    assert verify_all(world.checkpoint) == []


def test_a_publish_that_slept_through_a_rewind_finds_nothing_to_publish(world: World, sleep: Sleep) -> None:
    filled(world, 2)
    world.land(2)
    sleep.before(file_sink, "rename_new", rewound(world, 1), lambda _, target: target.name == "batch_id=2")
    with pytest.raises(SinkError):
        world.run(2)
    assert world.table() == {0: [0], 1: [1]}
    world.run(3)
    assert world.table() == {0: [0], 1: [1], 2: [2]}


@pytest.mark.parametrize("dies", [False, True])
def test_a_request_for_a_replay_that_slept_through_a_rewind_is_withdrawn(
    world: World, sleep: Sleep, monkeypatch: pytest.MonkeyPatch, dies: bool
) -> None:
    filled(world, 3)
    sleep.before(Replays, "request", rewound(world, 1))
    with monkeypatch.context() as patch:
        if dies:
            patch.setattr(replay_module, "is_still_planned", killed)
        with pytest.raises(Killed if dies else AttemptFencedError):
            world.run(2, clear_number=1)
    world.expire_leases()
    world.run(2, clear_number=1, try_number=2)
    assert world.table() == {0: [0], 1: [1], 2: [2]}
    assert world.checkpoint.replays.pending(BatchKey("live", 2)) == []
    assert verify_all(world.checkpoint) == []


@pytest.mark.parametrize("dies", [False, True])
def test_a_request_of_a_try_that_slept_through_a_later_clear_of_its_task_is_waited_for_by_nobody(
    world: World, sleep: Sleep, monkeypatch: pytest.MonkeyPatch, dies: bool
) -> None:
    world.land(0)
    run(world, first(0))
    newer = InlineEngine(transform=lambda sources: [{"id": 100}])

    def cleared_again() -> None:
        run(world, cleared(0, first_try=3, try_number=3), newer)
        if dies:
            monkeypatch.setattr(replay_module, "is_still_planned", killed)

    sleep.before(Replays, "request", cleared_again)
    with pytest.raises(Killed if dies else AttemptFencedError):
        run(world, cleared(0))
    assert world.checkpoint.replays.pending(BatchKey("live", 0)) == []
    assert world.table() == {0: [100]}
    assert verify_all(world.checkpoint) == []


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
    filled(world, 4)
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
    filled(world, 3)
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


def test_a_plan_that_comes_after_a_command_has_begun_is_taken_back(
    world: World, sleep: Sleep, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(world, 3)
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
    filled(world, 3)
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


def test_a_run_of_an_interval_whose_plan_is_taken_back_by_its_retry_is_tried_again(
    tmp_path: Path, sleep: Sleep, monkeypatch: pytest.MonkeyPatch
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
    with monkeypatch.context() as patch:
        patch.setattr(MetadataLog, "take_back", killed)
        with pytest.raises(Killed):
            world.backfill(hour(1), 2)
    world.sources = {"sales": world.sources["orders"]}
    with pytest.raises(AttemptFencedError, match="Try again"):
        world.backfill(hour(1), 2)
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


def test_a_commit_that_others_have_built_on_stays_whoever_is_at_the_checkpoint_when_its_process_wakes_up(
    world: World, sleep: Sleep
) -> None:
    filled(world, 2)
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


@pytest.fixture
def overtaken(world: World, sleep: Sleep) -> World:
    """Batches 0 and 1 are committed. The plan of run 2 sleeps before its entry is put, while a command that does
    nothing to the log begins and ends."""
    filled(world, 2)
    world.land(2)
    world.checkpoint.replays.request(KEY, run=run_identity(0, clear_number=1), requested_ms=1)

    def withdrawn() -> None:
        world.expire_leases()
        applied(world, lambda drafting: plan_withdraw_clear(drafting, KEY))

    sleep.before(MetadataLog, "add", withdrawn, of_log("offsets", 2))
    return world


def another_run(world: World, goes: str) -> None:
    if goes == "opened":
        world.staged(3)
        world.expire_leases()
        return
    world.run(3)
    if goes == "two batches":
        world.land(4)
        world.run(4)


def nothing_is_lost_of(world: World) -> None:
    world.land(5)
    for number in range(5, 8):
        world.run(number)
    assert {*rows(world)} >= {0, 1, 2, 5}
    assert len(rows(world)) == len({*rows(world)})
    assert verify_all(world.checkpoint) == []


@pytest.mark.parametrize("goes", ["opened", "committed", "two batches"])
@pytest.mark.parametrize(
    ("owner", "name"),
    [(plan_module, "take_back_if_late"), (Attempts, "take_exactly")],
    ids=["before its look", "before its fence"],
)
def test_a_late_plan_that_another_run_has_gone_on_from_stays(
    overtaken: World, sleep: Sleep, goes: str, owner: object, name: str
) -> None:
    sleep.before(owner, name, lambda: another_run(overtaken, goes))
    with pytest.raises(ConcurrentPlanError, match="another run has gone on from it"):
        overtaken.run(2)
    assert 2 in overtaken.checkpoint.offset_log.ids()
    nothing_is_lost_of(overtaken)


def test_a_plan_that_is_being_taken_back_is_run_by_nobody(overtaken: World, sleep: Sleep) -> None:
    said = []

    def another() -> None:
        with pytest.raises(ConcurrentPlanError) as refused:
            overtaken.run(3)
        said.append(str(refused.value))

    sleep.before(MetadataLog, "take_back", another, of_log("offsets", 2))
    with pytest.raises(ConcurrentPlanError):
        overtaken.run(2)
    assert "was taken back" in said[0]
    assert overtaken.checkpoint.offset_log.ids() == [0, 1]
    nothing_is_lost_of(overtaken)


def test_a_plan_whose_planner_died_while_it_took_it_back_is_taken_back_by_the_next_run(
    overtaken: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(MetadataLog, "take_back", killed)
        with pytest.raises(Killed):
            overtaken.run(2)
    with pytest.raises(ConcurrentPlanError):
        overtaken.run(3)
    assert overtaken.checkpoint.offset_log.ids() == [0, 1]
    nothing_is_lost_of(overtaken)
