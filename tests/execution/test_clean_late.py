"""``clean_source`` beside commands, and processes that sleep at the wrong moment: what is planned again is there."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_microbatch.checkpoint.key import LIVE
from airflow_provider_microbatch.checkpoint.log import MetadataLog
from airflow_provider_microbatch.checkpoint.maintenance import MaintenanceLog
from airflow_provider_microbatch.checkpoint.verify import verify_all
from airflow_provider_microbatch.exceptions import (
    AttemptFencedError,
    BatchSetAsideError,
    BrokenLogError,
    MaintenanceError,
    MicroBatchError,
    SourceError,
)
from airflow_provider_microbatch.execution.intervals import batch_of
from airflow_provider_microbatch.execution.opened_sources import OpenedSources
from airflow_provider_microbatch.sources.file import FileSource
from airflow_provider_microbatch.sources.file.clean import Cleaner
from airflow_provider_microbatch.sources.file.cleaning import CleaningRecord
from airflow_provider_microbatch.stores.posix import PosixStore
from airflow_provider_microbatch.upkeep.commands.apply import Applier
from tests.execution.intervals import IntervalWorld, hour
from tests.execution.maintaining import applied, backed_up, expire, put_back, rewind
from tests.execution.sleepers import Sleep, cleaning, killed, rewound
from tests.execution.test_clean_source import skip_to
from tests.execution.test_source_names import rename
from tests.execution.world import Killed, World, run_identity
from tests.support.inline_engine import InlineEngine

LANE = batch_of(hour(1)).lane


def dying_at_the_entry(patch: pytest.MonkeyPatch) -> None:
    """The next process that wants to commit is killed right before its commit entry."""
    real, died = MetadataLog.add, list[bool]()

    def add(entries: MetadataLog[Any], number: int, entry: Any) -> bool:
        if entries.location.endswith("commits") and not entry.set_aside and not died:
            died.append(True)
            raise Killed
        return real(entries, number, entry)

    patch.setattr(MetadataLog, "add", add)


@pytest.fixture
def lanes(tmp_path: Path) -> IntervalWorld:
    """Its source deletes what is committed. One file lies in the first hour, for the lane of a backfill."""
    world = IntervalWorld(tmp_path)
    world.sources = {"orders": cleaning(world)}
    world.land_at(1.5, 1)
    return world


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Its source deletes what is committed. Batches 0 and 1 are, and a file has come for the next one."""
    world = World(tmp_path, on_failure="set_aside", set_aside_after=1)
    world.sources = {"orders": cleaning(world)}
    for number in range(2):
        world.land(number)
        world.run(number)
    world.land(2)
    return world


def test_what_a_lanes_commit_released_that_slept_through_a_rewind_and_died_is_not_cleaned_by_another_lane(
    lanes: IntervalWorld, sleep: Sleep, monkeypatch: pytest.MonkeyPatch
) -> None:
    sleep.before(OpenedSources, "release", rewound(lanes, -1, lane=LANE))
    with monkeypatch.context() as patch:
        dying_at_the_entry(patch)
        with pytest.raises(Killed):
            lanes.backfill(hour(1), 1)
    lanes.land_at(3.5, 2)
    assert lanes.run(5) is not None
    assert lanes.backfill(hour(1), 2)
    assert lanes.ids() == [1, 2]
    assert list(lanes.landing().glob("[!.]*")) == [], "both are cleaned once they are committed"


def test_what_a_lane_has_committed_and_not_cleaned_is_cleaned_by_the_next_commit_of_any_lane(
    lanes: IntervalWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(OpenedSources, "commit", lambda *_: None)
        lanes.backfill(hour(1), 1)
        lanes.land_at(3.5, 2)
        lanes.run(5)
    lanes.land_at(2.5, 3)
    lanes.backfill(hour(2), 6)
    assert list(lanes.landing().glob("[!.]*")) == []


def test_what_a_lane_committed_before_it_was_switched_on_stays_if_a_live_range_goes_over_it(tmp_path: Path) -> None:
    world = IntervalWorld(tmp_path)
    world.land_at(3.5, 0)
    world.run(0)
    early = world.land_at(1.5, 1)
    world.backfill(hour(1), 1)
    world.sources = {"orders": cleaning(world)}
    late = world.land_at(3.6, 2)
    world.run(2)
    assert (early.exists(), late.exists()) == (True, False)
    assert world.ids() == [0, 1, 2]


def test_nor_what_is_released_once_its_batch_was_planned_again_and_set_aside(
    world: World, sleep: Sleep, monkeypatch: pytest.MonkeyPatch
) -> None:
    def set_aside_meanwhile() -> None:
        rewound(world, 1)()
        with pytest.raises(BatchSetAsideError):
            world.run(3, InlineEngine(transform=lambda sources: 1 / 0))  # type: ignore[arg-type, return-value]

    sleep.before(OpenedSources, "release", set_aside_meanwhile)
    with monkeypatch.context() as patch:
        dying_at_the_entry(patch)
        with pytest.raises(Killed):
            world.run(2)
    world.land(4)
    world.run(4)
    assert [path.name for path in world.landing().glob("[!.]*")] == ["000002.json"]
    world.expire_leases()
    assert world.run(3, clear_number=1) is not None
    assert world.table() == {0: [0], 1: [1], 2: [2], 3: [4]}
    assert list(world.landing().glob("[!.]*")) == []


def test_nor_what_is_released_once_its_batch_was_made_again_with_cleaning_switched_off(
    world: World, sleep: Sleep
) -> None:
    """What is committed while it is switched off stays, also once it is switched on again."""
    cleaned = world.sources

    def made_again() -> None:
        rewound(world, 1)()
        world.sources = {"orders": replace(cleaning(world), clean_source=None)}
        world.run(3)

    sleep.before(OpenedSources, "release", made_again)
    with pytest.raises((AttemptFencedError, BrokenLogError)):
        world.run(2)
    world.sources = cleaned
    world.land(4)
    world.run(4)
    assert world.table() == {0: [0], 1: [1], 2: [2], 3: [4]}
    assert [path.name for path in world.landing().glob("[!.]*")] == ["000002.json"]


def test_a_cleaner_that_wakes_up_while_a_rewind_begins_leaves_what_is_rewound(world: World, sleep: Sleep) -> None:
    """It slept before it said what it takes, so that the rewind, which looks first, sees nothing of it."""
    end = {"orders": '{"logOffset":2}'}
    sources = OpenedSources(world.sources, checkpoint=world.checkpoint, lane=LIVE, clock_ms=lambda: world.clock)

    def rewound_meanwhile() -> None:
        sleep.before(Applier, "_do", lambda: sources.commit(end))
        rewound(world, 1)()

    sleep.before(OpenedSources, "commit", rewound_meanwhile, lambda _, ends: ends == end)
    with pytest.raises(BrokenLogError):
        world.run(2)
    assert world.table() == {0: [0], 1: [1]}
    world.run(3)
    assert world.table() == {0: [0], 1: [1], 2: [2]}
    assert verify_all(world.checkpoint) == []


@pytest.mark.parametrize("at", ["before it", "in it"])
def test_one_that_sleeps_while_a_backup_is_restored_deletes_what_the_next_run_has_read_alone(
    world: World, sleep: Sleep, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    """It has read two files of an entry, under whose number one of them was planned since."""
    backed_up(world)
    world.land(3)

    def restored_meanwhile() -> None:
        put_back(world)
        world.sources = {"orders": replace(cleaning(world), max_files=1)}
        with monkeypatch.context() as patch:
            patch.setattr(Cleaner, "_entry", killed)
            with pytest.raises(Killed):
                world.run(3)

    if at == "in it":
        sleep.before(Cleaner, "_changed", restored_meanwhile, lambda _, files: any(one.log_id == 2 for one in files))
    else:
        sleep.before(OpenedSources, "commit", restored_meanwhile, lambda _, ends: ends == {"orders": '{"logOffset":2}'})
    world.run(2)
    assert "000003.json" in {path.name for path in world.landing().glob("[!.]*")}
    world.run(4)
    world.run(5)
    assert world.table() == {number: [number] for number in range(4)}
    assert list(world.landing().glob("[!.]*")) == []


def test_nor_does_one_that_sleeps_between_its_two_looks(
    world: World, sleep: Sleep, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rewind_begins_and_dies() -> None:
        world.expire_leases()
        with monkeypatch.context() as patch:
            patch.setattr(Applier, "_do", killed)
            with pytest.raises(Killed):
                applied(world, rewind(1))

    changes = iter(range(100))
    # What is released, and the archive, are on record before it.
    sleep.before(CleaningRecord, "change", rewind_begins_and_dies, lambda *_: next(changes) == 2)
    world.run(2)
    assert [path.name for path in world.landing().glob("[!.]*")] == ["000002.json"]
    expire(world)
    applied(world)
    assert world.table() == {0: [0], 1: [1]}
    world.run(3)
    assert world.table() == {0: [0], 1: [1], 2: [2]}


@pytest.mark.parametrize("dies", [False, True])
@pytest.mark.parametrize("when", ["first", "second"])
def test_a_commit_that_comes_between_the_steps_of_a_rewind_does_not_stop_it(
    world: World, monkeypatch: pytest.MonkeyPatch, dies: bool, when: str
) -> None:
    """Two batches are due when the rewind is planned; the one after them is released while it is done."""
    with monkeypatch.context() as patch:
        patch.setattr(OpenedSources, "commit", lambda *_: None)
        for number in (2, 3):
            world.land(number)
            world.run(number)
        world.land(4)
        attempt = world.staged(4)
    world.expire_leases()
    hold, holds = MaintenanceLog.hold, iter(range(100))

    def goes_on() -> None:
        manifest = world.execution.publish(attempt)
        world.execution.commit(key=attempt.key, manifest=manifest, run=attempt.run)

    def wakes_up(log: MaintenanceLog, number: int, **named: bool) -> bool:
        held = hold(log, number, **named)
        # Once when it begins, then before and after each step.
        if next(holds) == {"first": 1, "second": 3}[when]:
            with monkeypatch.context() as patch:
                if dies:
                    dying_at_the_entry(patch)
                with pytest.raises((Killed, MicroBatchError)):
                    goes_on()
        return held

    with monkeypatch.context() as patch:
        patch.setattr(MaintenanceLog, "hold", wakes_up)
        applied(world, rewind(1))
    assert world.checkpoint.offset_log.ids() == world.checkpoint.commit_log.ids() == [0, 1]
    state = world.checkpoint.source_state("orders")
    assert 2 not in CleaningRecord(state).read().due
    assert 3 not in CleaningRecord(state).read().due
    for number in range(5, 9):
        world.run(number)
    assert world.table() == {number: [number] for number in range(5)}
    assert list(world.landing().glob("[!.]*")) == []


def test_what_set_offset_passes_over_is_not_due_whatever_is_released_meanwhile(
    world: World, sleep: Sleep, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was due, was rewound by a version that did not say so, and is passed over now; another entry is released."""
    world.execution.plan(run_identity(2))
    record = CleaningRecord(world.checkpoint.source_state("orders"))
    applied(world, rewind(1))
    record.change(lambda found: replace(found, due=found.due.with_([2])))
    hold, holds = MaintenanceLog.hold, iter(range(100))

    def releases(log: MaintenanceLog, number: int, **named: bool) -> bool:
        held = hold(log, number, **named)
        if next(holds) == 3:
            record.change(lambda found: replace(found, due=found.due.with_([7])))
        return held

    with monkeypatch.context() as patch:
        patch.setattr(MaintenanceLog, "hold", releases)
        applied(world, skip_to(2))
    assert list(record.read().due) == [7]
    assert world.checkpoint.commit_log.ids() == [0, 1, 2]


@pytest.mark.parametrize("goes_on", [False, True])
def test_what_a_cleaner_is_about_to_delete_is_not_planned_again_though_it_is_switched_off_by_then(
    world: World, sleep: Sleep, goes_on: bool
) -> None:
    def switched_off() -> None:
        world.sources = {"orders": FileSource(str(world.landing()), format="json", schema="id long")}
        if goes_on:
            world.land(3)
        world.run(3)
        with pytest.raises(MaintenanceError, match="deleted by clean_source"):
            rewound(world, 1)()
        with pytest.raises(SourceError, match="deleted by clean_source"):
            world.run(2, clear_number=1)

    sleep.before(os, "unlink", switched_off, lambda name: name == "000002.json")
    world.run(2)
    assert world.table() == {number: [number] for number in range(4 if goes_on else 3)}
    assert not (world.landing() / "000002.json").exists()


def test_what_a_cleaner_that_died_was_about_to_delete_is_deleted_once_it_is_switched_on_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    on = world.sources
    with monkeypatch.context() as patch:
        patch.setattr(Cleaner, "_entry", killed)
        with pytest.raises(Killed):
            world.run(2)
    world.sources = {"orders": FileSource(str(world.landing()), format="json", schema="id long")}
    kept = world.land(3)
    world.run(3)
    with pytest.raises(MaintenanceError, match="a run with clean_source finishes it"):
        rewound(world, 1)()
    world.sources = on
    world.run(4)
    assert list(world.landing().glob("[!.]*")) == [kept]


def test_what_it_could_not_delete_is_planned_again_once_it_is_switched_off(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    unlink = os.unlink

    def refuse(name: str, **kwargs: Any) -> None:
        if name == "000002.json":
            raise PermissionError(13, "Permission denied")
        unlink(name, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", refuse)
        world.run(2)
    world.sources = {"orders": FileSource(str(world.landing()), format="json", schema="id long")}
    world.land(3)
    world.run(3)
    applied(world, rewind(1))
    for number in (4, 5):
        world.run(number)
    assert world.table() == {number: [number] for number in range(4)}


def test_a_commit_whose_note_a_rename_takes_along_ends_well(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has noted what may be cleaned, and sleeps before it looks whether others have gone on meanwhile."""
    real, put = PosixStore.put_if_absent, list[str]()

    def renamed_after(store: PosixStore, path: str, data: bytes) -> bool:
        is_new = real(store, path, data)
        if path.startswith("cleaning/") and not put:
            put.append(path)
            expire(world)
            applied(world, rename())
        return is_new

    with monkeypatch.context() as patch:
        patch.setattr(PosixStore, "put_if_absent", renamed_after)
        assert world.run(2)
    world.sources = {"sales": world.sources["orders"]}
    for number in (3, 4):
        world.land(number)
        world.run(number)
    assert world.table() == {number: [number] for number in range(5)}
    assert not list(world.landing().glob("[!.]*"))
    assert verify_all(world.checkpoint) == []


def test_what_retention_has_removed_was_committed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.options["min_batches_to_retain"] = 2
    with monkeypatch.context() as patch:
        patch.setattr(OpenedSources, "commit", lambda *_: None)
        for number in range(2, 7):
            world.run(number)
            world.land(number + 1)
    assert world.checkpoint.commit_log.ids() == [5, 6]
    world.run(7)
    assert list(world.landing().glob("[!.]*")) == []
