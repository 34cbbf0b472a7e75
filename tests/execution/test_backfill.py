"""Runs of Airflow's backfill: what their interval holds is read once, in a lane of its own, or replayed."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest

from airflow_provider_microbatch.checkpoint.entries import CommitEntry, OffsetEntry
from airflow_provider_microbatch.checkpoint.handover import hand_over
from airflow_provider_microbatch.checkpoint.key import LIVE, BatchKey
from airflow_provider_microbatch.checkpoint.log import MetadataLog
from airflow_provider_microbatch.checkpoint.verify import verify_all
from airflow_provider_microbatch.exceptions import (
    AttemptFencedError,
    BatchSetAsideError,
    CheckpointError,
    EngineError,
    NothingInIntervalError,
    SourceError,
)
from airflow_provider_microbatch.execution.intervals import batch_of, lane_of
from airflow_provider_microbatch.runtime.job import Job
from airflow_provider_microbatch.sources.file import FileSource
from airflow_provider_microbatch.sources.intervals import Interval
from tests.execution.intervals import DAY_MS, IntervalWorld, backfill_run, hour
from tests.execution.maintaining import planned
from tests.execution.world import CODE, run_identity
from tests.support.inline_engine import InlineEngine


@pytest.fixture
def world(tmp_path: Path) -> IntervalWorld:
    return IntervalWorld(tmp_path)


def crash(job: Job) -> None:
    raise EngineError("the worker was killed")


def test_a_missing_interval_runs_in_a_lane_of_its_own(world: IntervalWorld) -> None:
    world.land_at(0.5, 1, 2)
    world.land_at(1.5, 3)
    (batch,) = world.backfill(hour(0), 1)
    assert str(batch.key) == "interval-20231115T000000Z-20231115T010000Z/0"
    assert batch.label == "batch interval-20231115T000000Z-20231115T010000Z/0 · 2 rows"
    assert batch.read["orders"]["files"] == 1
    assert world.rows() == {str(batch.key): [1, 2]}
    assert world.checkpoint.offset_log.ids() == []
    assert world.checkpoint.lanes() == [LIVE, batch.key.lane]


@pytest.mark.parametrize(
    "name", ["interval-1Z-2Z", "interval-20231345T000000Z-20231345T010000Z", "LANE.old", "LANE.tar"]
)
def test_what_is_only_called_like_a_lane_stops_no_interval_and_is_named(world: IntervalWorld, name: str) -> None:
    """A person has packed a lane's folder, or copied it: its batches are nobody's."""
    for number in range(3):
        world.land_at(number + 0.5, number)
    (first,) = world.backfill(hour(0), 1)
    lane = world.root / "checkpoint/lanes" / first.key.lane
    stray = lane.with_name(name.replace("LANE", lane.name))
    if stray.suffix == ".old":
        shutil.copytree(lane, stray)
    elif stray.suffix == ".tar":
        stray.write_bytes(b"x")
    else:
        stray.mkdir()
    assert [world.backfill(hour(number), number + 1)[0].rows_out for number in (1, 2)] == [1, 1]
    assert world.checkpoint.lanes() == [LIVE, *(lane_of(hour(number)) for number in range(3))]
    assert world.janitor().problems == []
    named = [finding.where for finding in verify_all(world.checkpoint)]
    assert named == [str(stray)]
    assert [problem.where for problem in planned(world).problems] == named


def test_what_a_backfill_took_the_live_lane_does_not_read(world: IntervalWorld) -> None:
    world.land_at(0.5, 1)
    world.land_at(1.5, 2)
    world.backfill(hour(1), 1)
    assert world.execution.should_fire().fire
    world.run(2)
    world.land_at(2.5, 3)
    world.backfill(hour(2), 3)
    assert not world.execution.should_fire().fire
    assert world.run(4) is None
    assert world.ids() == [1, 2, 3]
    assert world.table() == {0: [1]}


def test_a_live_range_across_a_backfill_has_only_its_own_files(world: IntervalWorld) -> None:
    world.land_at(0.5, 1)
    world.run(1)
    world.land_at(1.5, 2)
    world.backfill(hour(1), 2)
    world.land_at(2.5, 3)
    summary = world.run(3)
    assert summary is not None
    assert summary.read["orders"]["files"] == 1
    assert world.table() == {0: [1], 1: [3]}
    replayed = world.run(3, clear_number=1)
    assert replayed is not None
    assert world.ids() == [1, 2, 3]


def test_intervals_run_out_of_order_and_beside_each_other(world: IntervalWorld) -> None:
    for number in range(4):
        world.land_at(number + 0.5, number)
    planned = [world.work(hour(number)).plan(backfill_run(number))[0] for number in (3, 1, 2, 0)]
    assert len({one.key for one in planned}) == 4
    world.land_at(0.5, 7)
    for number in (0, 3, 2, 1):
        world.backfill(hour(number), number)
    world.run(9)
    assert world.ids() == [0, 1, 2, 3, 7]
    assert world.table() == {0: [7]}


def test_what_live_batches_read_is_skipped_and_they_are_named(world: IntervalWorld) -> None:
    world.land_at(0.5, 1)
    world.run(1)
    before = world.files()
    with pytest.raises(NothingInIntervalError, match=r"no unread data in .*2023-11-15T00:00:00Z.*batch live/0 read it"):
        world.backfill(hour(0), 2)
    assert world.files() == before


def test_the_uncovered_rest_is_read(world: IntervalWorld) -> None:
    world.land_at(0.2, 1)
    world.run(1)
    world.land_at(0.5, 2)
    world.backfill(hour(0), 2)
    assert world.rows() == {"live/0": [1], str(batch_of(hour(0))): [2]}


def test_on_request_the_batches_that_read_it_are_replayed_in_order(tmp_path: Path) -> None:
    world = IntervalWorld(tmp_path, on_overlap="replay")
    for number in range(3):
        world.land_at(0.1 + number / 10, number)
        world.run(number)
    world.land_at(0.9, 7)
    engine = InlineEngine()
    batches = world.backfill(hour(0), 10, engine)
    assert [str(batch.key) for batch in batches] == ["live/0", "live/1", "live/2", str(batch_of(hour(0)))]
    assert [job.batch_id for job in engine.jobs] == [0, 1, 2, 0]
    assert world.ids() == [0, 1, 2, 7]
    # A retry after the last commit has nothing left to do; a clear asks for all of it again.
    again = InlineEngine()
    world.backfill(hour(0), backfill_run(10, try_number=2), again)
    assert again.jobs == []
    world.backfill(hour(0), backfill_run(10, clear_number=1), again)
    assert len(again.jobs) == 4
    assert world.ids() == [0, 1, 2, 7]


def test_what_was_set_aside_and_has_been_replayed_since_is_replayed_too(tmp_path: Path) -> None:
    world = IntervalWorld(tmp_path, on_overlap="replay", on_failure="set_aside", set_aside_after=1)
    world.land_at(0.1, 1)
    with pytest.raises(BatchSetAsideError):
        world.run(0, InlineEngine(transform=lambda sources: 1 / 0))  # type: ignore[arg-type, return-value]
    with pytest.raises(NothingInIntervalError, match="will, and is not committed or was set aside"):
        world.backfill(hour(0), 10)
    world.run(0, clear_number=1)
    engine = InlineEngine()
    (batch,) = world.backfill(hour(0), 11, engine)
    assert str(batch.key) == "live/0"
    assert len(engine.jobs) == 1
    assert world.ids() == [1]


def test_a_retry_goes_on_with_the_replays_that_are_left(tmp_path: Path) -> None:
    world = IntervalWorld(tmp_path, on_overlap="replay")
    for number in range(3):
        world.land_at(0.1 + number / 10, number)
        world.run(number)
    engine = InlineEngine(before_stage=lambda job: crash(job) if job.batch_id == 1 else None)
    with pytest.raises(EngineError):
        world.backfill(hour(0), 10, engine)
    retry = InlineEngine()
    world.backfill(hour(0), backfill_run(10, try_number=2), retry)
    assert [job.batch_id for job in retry.jobs] == [1, 2]
    assert world.ids() == [0, 1, 2]


def test_a_try_of_before_a_clear_asks_for_nothing_that_was_asked_for_after_it(tmp_path: Path) -> None:
    """It has slept. What it asked for would be on record as wanted after the clear."""
    world = IntervalWorld(tmp_path, on_overlap="replay")
    world.land_at(0.1, 1)
    world.run(0)
    world.backfill(hour(0), backfill_run(10, clear_number=1))
    asked = world.checkpoint.replays.all(BatchKey(LIVE, 0))
    with pytest.raises(AttemptFencedError, match="was cleared again while this try was on its way"):
        world.backfill(hour(0), 10)
    assert world.checkpoint.replays.all(BatchKey(LIVE, 0)) == asked


def test_a_run_that_has_planned_its_lane_and_cannot_replay_yet_is_tried_again(tmp_path: Path) -> None:
    """Skipped, it would leave a batch that has taken its data from all other lanes to nobody."""
    world = IntervalWorld(tmp_path, on_overlap="replay")
    world.land_at(0.1, 1)
    world.run(1)

    def meanwhile(job: Job) -> None:
        if job.epoch == 2:
            world.land_at(0.2, 2)
            with pytest.raises(AttemptFencedError, match=r"live/0 is in progress.*has batches live/0, \S+ to make"):
                world.backfill(hour(0), 11)

    world.run(1, InlineEngine(before_stage=meanwhile), clear_number=1)
    world.backfill(hour(0), backfill_run(11, try_number=2))
    assert world.ids() == [1, 2]


def test_a_batch_that_another_run_is_alive_at_is_not_asked_for_and_the_run_is_tried_again(tmp_path: Path) -> None:
    """Skipped, in green, it would leave both with rows of the code of before: nobody else comes for them."""
    world = IntervalWorld(tmp_path, on_overlap="replay")
    world.land_at(0.1, 1)
    world.run(1)
    world.land_at(0.2, 2)
    world.run(2)

    def meanwhile(job: Job) -> None:
        if job.epoch == 2:
            before = world.checkpoint.replays.pending(BatchKey(LIVE, 0))
            with pytest.raises(AttemptFencedError, match=r"batch live/1 is in progress.*has batches live/0, live/1 to"):
                world.backfill(hour(0), 9)
            assert world.checkpoint.replays.pending(BatchKey(LIVE, 0)) == before

    world.run(2, InlineEngine(before_stage=meanwhile), clear_number=1)
    assert world.ids() == [1, 2]


def test_a_run_that_has_asked_for_a_replay_does_not_skip_it_for_another_batch_that_is_busy(tmp_path: Path) -> None:
    world = IntervalWorld(tmp_path, on_overlap="replay")
    world.land_at(0.1, 1)
    world.run(1)
    world.work(hour(0)).plan(backfill_run(9))  # it asks, and dies
    world.land_at(0.2, 2)
    world.run(2)
    engine = InlineEngine()

    def meanwhile(job: Job) -> None:
        if job.epoch == 2:
            with pytest.raises(AttemptFencedError, match=r"live/1 is in progress.*has batches live/0, live/1 to"):
                world.backfill(hour(0), backfill_run(9, try_number=2))

    world.run(2, InlineEngine(before_stage=meanwhile), clear_number=1)
    world.backfill(hour(0), backfill_run(9, try_number=3), engine)
    assert [job.batch_id for job in engine.jobs] == [0, 1]
    assert world.checkpoint.replays.pending(BatchKey(LIVE, 0)) == []
    assert world.ids() == [1, 2]


def test_batches_of_a_position_that_was_set_back_are_found(world: IntervalWorld) -> None:
    for number in (1, 2):
        world.land_at(number + 0.5, number)
        world.run(number)
    # As set-offset leaves it: a batch of no rows that ends where the next one is to begin.
    again = {"orders": None}
    entry = world.checkpoint.offset_log.get(1)
    assert entry is not None
    world.checkpoint.offset_log.add(2, dataclasses.replace(entry, starts=entry.ends, ends=again))
    world.checkpoint.commit_log.add(2, CommitEntry(set_aside=True))
    world.run(3)
    with pytest.raises(NothingInIntervalError, match="batches live/0, live/3 read it"):
        world.backfill(hour(1), 4)
    with pytest.raises(NothingInIntervalError, match="batch live/1 read it"):
        world.backfill(hour(2), 5)


def test_a_dead_backfill_does_not_keep_the_next_one_from_replaying(tmp_path: Path) -> None:
    world = IntervalWorld(tmp_path, on_overlap="replay")
    world.land_at(0.1, 1)
    world.run(1)
    world.work(hour(0)).plan(backfill_run(2))
    engine = InlineEngine()
    world.backfill(hour(0), 3, engine)
    assert len(engine.jobs) == 1
    assert world.checkpoint.replays.pending(BatchKey(LIVE, 0)) == []
    world.backfill(hour(0), backfill_run(2, try_number=2), engine)
    assert len(engine.jobs) == 1


def test_an_uncommitted_live_batch_keeps_its_files_and_is_named(world: IntervalWorld) -> None:
    world.land_at(0.5, 1)
    world.execution.plan(run_identity(1))
    with pytest.raises(NothingInIntervalError, match="batch live/0 will, and is not committed"):
        world.backfill(hour(0), 2)
    world.run(3)
    assert world.ids() == [1]


def test_a_run_replays_what_it_planned_itself(world: IntervalWorld) -> None:
    """Reprocessing: Airflow clears the run, so it is the same run with a higher clear number."""
    for number in range(3):
        world.land_at(number + 0.5, number)
        world.run(number)
    engine = InlineEngine()
    (batch,) = world.backfill(hour(5), backfill_run(1, clear_number=1), engine)
    assert str(batch.key) == "live/1"
    assert len(engine.jobs) == 1
    assert world.checkpoint.lanes() == [LIVE]
    assert world.table() == {0: [0], 1: [1], 2: [2]}


def test_runs_of_a_partition_are_known_by_its_date(world: IntervalWorld) -> None:
    """A partitioned timetable makes a new run each time, never cleared."""
    world.land_at(0.5, 1)
    first = backfill_run(1, partition="2023-11-15T00:00:00+00:00")
    world.execution.run(run=first, engine=InlineEngine(), code=CODE, transform=None)
    world.land_at(1.5, 2)
    world.run(2)
    for number in (3, 4):
        engine = InlineEngine()
        again = backfill_run(number, partition="2023-11-15T00:00:00+00:00")
        (batch,) = world.backfill(hour(0), again, engine)
        assert str(batch.key) == "live/0"
        assert len(engine.jobs) == 1
        retry = InlineEngine()
        world.backfill(hour(0), backfill_run(number, partition="2023-11-15T00:00:00+00:00", try_number=2), retry)
        assert retry.jobs == []
    assert world.ids() == [1, 2]


def test_an_interval_of_a_partition_is_replayed_by_the_next_run_of_it(world: IntervalWorld) -> None:
    world.land_at(0.5, 1)
    engine = InlineEngine()
    for number in range(3):
        world.backfill(hour(0), backfill_run(number, partition="2023-11-15T00:00:00+00:00"), engine)
    assert [job.epoch for job in engine.jobs] == [1, 2, 3]
    assert world.ids() == [1]


def test_a_crash_between_source_log_and_offset_log_is_taken_up(
    world: IntervalWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.land_at(0.5, 1)
    with monkeypatch.context() as patch:
        patch.setattr("airflow_provider_microbatch.execution.plan.OffsetEntry", _killed)
        with pytest.raises(EngineError):
            world.work(hour(0)).plan(backfill_run(1))
    world.land_at(0.6, 2)
    assert world.run(5) is not None
    world.backfill(hour(0), backfill_run(1, try_number=2))
    assert world.rows() == {"live/0": [2], str(batch_of(hour(0))): [1]}


def test_a_failed_interval_is_continued_with_the_files_it_was_planned_with(world: IntervalWorld) -> None:
    world.land_at(0.5, 1)
    with pytest.raises(EngineError):
        world.backfill(hour(0), 1, InlineEngine(before_stage=crash))
    world.land_at(0.6, 2)
    world.backfill(hour(0), 2)
    assert world.rows() == {str(batch_of(hour(0))): [1]}
    world.run(3)
    assert world.ids() == [1, 2]


def test_two_runs_that_plan_one_interval_at_once_have_one_batch(
    world: IntervalWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.land_at(0.5, 1)
    add = MetadataLog.add

    def beaten(log: MetadataLog[OffsetEntry], batch_id: int, entry: OffsetEntry) -> bool:
        monkeypatch.undo()
        world.work(hour(0)).plan(backfill_run(2))
        return add(log, batch_id, entry)

    monkeypatch.setattr(MetadataLog, "add", beaten)
    (planned,) = world.work(hour(0)).plan(backfill_run(1))
    assert planned.entry.run == backfill_run(2)
    world.backfill(hour(0), 1)
    assert world.ids() == [1]


def test_a_lane_begins_with_the_settings_of_the_live_lane(tmp_path: Path) -> None:
    world = IntervalWorld(tmp_path, conf={"spark.sql.session.timeZone": "Europe/Berlin"})
    world.land_at(0.5, 1)
    world.run(1)
    del world.options["conf"]
    world.land_at(1.5, 2)
    (planned,) = world.work(hour(1)).plan(backfill_run(2))
    assert planned.entry.conf["spark.sql.session.timeZone"] == "Europe/Berlin"


def test_the_janitor_ends_dead_attempts_of_lanes(world: IntervalWorld) -> None:
    world.land_at(0.5, 1)
    engine = InlineEngine()
    (planned,) = world.work(hour(0)).plan(backfill_run(1))
    execution = world.work(hour(0)).execution(planned.key)
    attempt = execution.open_attempt(key=planned.key, run=backfill_run(1), code=CODE, engine=engine)
    engine.start(attempt.handle, execution.job(attempt, None), CODE)
    assert world.stages() == [f"{planned.key} attempt 1"]
    world.expire_leases()
    report = world.janitor()
    assert world.stages() == []
    assert report.of("stage dropped") == [f"{planned.key} attempt 1"]
    world.backfill(hour(0), 2)
    assert world.ids() == [1]


def test_each_lane_cleans_up_its_own_files(tmp_path: Path) -> None:
    world = IntervalWorld(tmp_path)
    landing, archive = world.landing(), tmp_path / "archive"
    world.sources = {
        "orders": FileSource(str(landing), schema="id long", clean_source="archive", archive_dir=str(archive))
    }
    world.land_at(0.5, 1)
    world.run(1)
    world.land_at(1.5, 2)
    planned = world.work(hour(1)).plan(backfill_run(2))
    world.land_at(2.5, 3)
    world.run(3)
    # The live commit is past the lane's entry; its file stays until the lane has read it.
    assert [path.name for path in landing.glob("[!.]*")] == ["000002.json"]
    world.backfill(hour(1), 2)
    assert list(landing.glob("[!.]*")) == []
    assert len(list(archive.iterdir())) == 3
    world.backfill(hour(1), backfill_run(2, clear_number=1))
    assert world.ids() == [1, 2, 3]
    assert planned[0].key == batch_of(hour(1))


def test_what_was_deleted_is_not_replayed_and_nothing_is_asked_for(tmp_path: Path) -> None:
    world = IntervalWorld(tmp_path, on_overlap="replay")
    world.sources = {"orders": FileSource(str(world.landing()), schema="id long", clean_source="delete")}
    world.land_at(0.5, 1)
    world.run(1)
    with pytest.raises(SourceError, match=r"batch live/0 cannot be replayed, source 'orders'.*deleted"):
        world.backfill(hour(0), 2)
    assert world.checkpoint.replays.pending(BatchKey(LIVE, 0)) == []
    assert world.ids() == [1]


def test_a_bounded_source_and_backfills_share_its_files(tmp_path: Path) -> None:
    world = IntervalWorld(tmp_path)
    world.sources = {"orders": FileSource(str(world.landing()), schema="id long", bounded=True, max_files=1)}
    for number in range(4):
        world.land_at(number + 0.5, number)
    world.backfill(hour(1), 1)
    world.run(2)
    assert [world.run(number) is None for number in (4, 5, 6)] == [False, False, True]
    assert world.ids() == [0, 1, 2, 3]


def test_a_query_that_would_read_an_interval_again_does_not_get_the_checkpoint(world: IntervalWorld) -> None:
    world.land_at(0.5, 1)
    world.run(1)
    world.land_at(1.5, 2)
    world.backfill(hour(1), 2)
    with pytest.raises(CheckpointError, match=r"sources/orders/1 belongs to lane interval-20231115T010000Z-"):
        hand_over(world.checkpoint)
    world.land_at(2.5, 3)
    world.execution.plan(run_identity(3))
    with pytest.raises(CheckpointError, match="commit one more batch"):
        hand_over(world.checkpoint)
    world.run(3)
    assert hand_over(world.checkpoint) == []


def test_the_lane_is_named_after_the_interval() -> None:
    assert lane_of(hour(0, hours=24)) == "interval-20231115T000000Z-20231116T000000Z"
    uneven = Interval(start_ms=DAY_MS + 1, end_ms=DAY_MS + 1000)
    assert lane_of(uneven) == "interval-20231115T000000.001Z-20231115T000001Z"


def _killed(**_: object) -> OffsetEntry:
    raise EngineError("killed")


def test_what_a_backfill_takes_makes_nothing_too_old_for_the_live_lane(tmp_path: Path) -> None:
    """The live runs were paused, and somebody backfills yesterday first: their backlog is older than that."""
    world = IntervalWorld(tmp_path)
    world.sources = {"orders": FileSource(str(world.landing()), format="json", schema="id long", max_file_age=3600)}
    world.land_at(1, 1)
    world.run(0)
    for when, number in ((1.5, 2), (1.8, 3), (10.5, 4)):
        world.land_at(when, number)
    world.backfill(hour(10), 1)
    world.run(1)
    assert world.ids() == [1, 2, 3, 4]
