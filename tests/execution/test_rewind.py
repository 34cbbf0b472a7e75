"""``rewind``: the log ends earlier, and every row is in the table once when the pipeline has caught up again."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

from airflow_provider_microbatch.checkpoint.entries import Attempt
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.checkpoint.records import encode_record
from airflow_provider_microbatch.checkpoint.verify import verify_all
from airflow_provider_microbatch.exceptions import (
    AttemptFencedError,
    BatchSetAsideError,
    BrokenLogError,
    CheckpointError,
    MaintenanceError,
    TransformError,
)
from airflow_provider_microbatch.execution.execution import Execution
from airflow_provider_microbatch.execution.intervals import lane_of
from airflow_provider_microbatch.sinks import ExpectedBatch
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sources.file import FileSource
from airflow_provider_microbatch.stores.posix import PosixStore
from airflow_provider_microbatch.upkeep.commands import apply
from tests.execution.intervals import hour
from tests.execution.maintaining import applied, applier, filled, planned, rewind, rows
from tests.execution.world import CODE, World, run_identity
from tests.support.inline_engine import InlineEngine
from tests.support.leases import expire_leases

LANE = lane_of(hour(0))


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Four batches of one row each, all committed."""
    return filled(World(tmp_path), 4)


@pytest.mark.parametrize("to", [-1, 0, 1, 2])
def test_what_came_later_is_taken_out_and_runs_again_as_it_was(world: World, to: int) -> None:
    before = {number: world.checkpoint.offset_log.get(number) for number in range(4)}
    applied(world, rewind(to))
    assert rows(world) == list(range(to + 1))
    assert world.checkpoint.offset_log.ids() == world.checkpoint.commit_log.ids() == list(range(to + 1))
    assert verify_all(world.checkpoint) == []
    newer = InlineEngine(transform=lambda sources: [{"id": row["id"] + 100} for row in sources["orders"]])
    for number in range(4, 10):
        world.run(number, newer)
    assert world.table() == {number: [number + (100 if number > to else 0)] for number in range(4)}
    for number in range(4):
        entry, was = world.checkpoint.offset_log.get(number), before[number]
        assert entry is not None
        assert was is not None
        assert (entry.starts, entry.ends) == (was.starts, was.ends)
    assert verify_all(world.checkpoint) == []


def test_sinks_are_told_whose_batch_is_taken_out(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """What they refuse names commands for that checkpoint."""
    told = set[str]()
    withdraw = FileSink.withdraw

    def seen(self: FileSink, batch: ExpectedBatch, epoch: int) -> bool:
        told.add(batch.identity.location)
        return withdraw(self, batch, epoch)

    monkeypatch.setattr(FileSink, "withdraw", seen)
    applied(world, rewind(-1))
    assert told == {world.checkpoint.location}


def test_to_the_newest_batch_there_is_nothing_to_do(world: World) -> None:
    assert planned(world, rewind(3)).steps == ()


def test_a_batch_that_is_only_planned_is_planned_again(world: World) -> None:
    world.land(4)
    world.execution.plan(run_identity(4))
    world.land(5)
    applied(world, rewind(3, drop_output=False))
    assert world.checkpoint.offset_log.latest_id() == 3
    world.run(5)
    world.run(6)
    assert rows(world) == [0, 1, 2, 3, 4, 5]


def test_rows_that_would_be_doubled_are_refused(world: World) -> None:
    before = world.files()
    with pytest.raises(MaintenanceError, match=r"in it twice: batch 2, 3[\s\S]*--drop-output"):
        applied(world, rewind(1, drop_output=False))
    assert world.files() == before


@pytest.mark.parametrize(
    ("to", "message"), [(7, r"batch 7 is not in \S+: it has 0 to 3"), (3, r"batch 3 is not committed[\s\S]*repair")]
)
def test_a_batch_to_rewind_to_must_be_there_and_committed(world: World, to: int, message: str) -> None:
    (world.root / "checkpoint" / "commits" / "3").unlink()
    with pytest.raises(MaintenanceError, match=message):
        planned(world, rewind(to))


def test_the_oldest_batch_that_retention_kept_is_refused_and_the_next_one_works(world: World) -> None:
    for log in (world.checkpoint.offset_log, world.checkpoint.commit_log):
        log.purge(1)
    with pytest.raises(MaintenanceError, match=r"batch 1 is the oldest[\s\S]*Rewind to 2 or later"):
        planned(world, rewind(1))
    applied(world, rewind(2))
    world.run(4)
    assert world.table() == {0: [0], 1: [1], 2: [2], 3: [3]}


@pytest.mark.parametrize("to", [0, 2], ids=["that retention removed", "the oldest kept"])
def test_where_only_the_newest_batch_could_be_rewound_to_the_ways_on_are_others(world: World, to: int) -> None:
    for log in (world.checkpoint.offset_log, world.checkpoint.commit_log):
        log.purge(2)
    with pytest.raises(MaintenanceError) as refused:
        planned(world, rewind(to))
    told = str(refused.value)
    assert "Nothing can be rewound here" in told
    assert "clear the task of batch 3" in told
    assert "Rewind to" not in told


def test_what_retention_has_removed_is_refused_with_the_batch_that_can_be_rewound_to(world: World) -> None:
    for log in (world.checkpoint.offset_log, world.checkpoint.commit_log):
        log.purge(1)
    with pytest.raises(MaintenanceError, match=r"Retention has removed it\. Rewind to 2 or later"):
        planned(world, rewind(0))
    applied(world, rewind(2))


def test_check_names_what_stops_the_runs_of_a_log_with_one_late_entry(world: World) -> None:
    world.checkpoint.offset_log.purge(3)
    world.checkpoint.commit_log.purge(3)
    with pytest.raises(BrokenLogError):
        world.run(4)
    (finding,) = verify_all(world.checkpoint)
    assert finding.kind == "gap"
    applied(world)
    assert verify_all(world.checkpoint) == []
    world.land(9)
    world.run(4)
    assert world.table()[4] == [9]


def test_failures_of_before_it_do_not_set_a_batch_aside(tmp_path: Path) -> None:
    world = World(tmp_path, on_failure="set_aside", set_aside_after=2)
    filled(world, 2)
    world.land(2)
    broken = InlineEngine(transform=lambda sources: 1 / 0)  # type: ignore[arg-type, return-value]
    with pytest.raises(TransformError):
        world.run(2, broken)
    applied(world, rewind(1))
    with pytest.raises(TransformError):
        world.run(3, broken)
    with pytest.raises(BatchSetAsideError):
        world.run(4, broken)
    applied(world, rewind(1))
    world.run(5)
    assert world.table() == {0: [0], 1: [1], 2: [2]}
    assert planned(world).steps == ()


def test_everything_is_refused_where_retention_took_the_beginning(world: World) -> None:
    world.checkpoint.offset_log.purge(2)
    with pytest.raises(MaintenanceError, match="keeps batches from 2 on"):
        planned(world, rewind(-1))


def test_what_retention_took_is_not_said_to_be_of_after_a_backup(tmp_path: Path) -> None:
    world = World(tmp_path, min_batches_to_retain=2)
    world.sources = {"orders": FileSource(str(world.landing()), format="json", schema="id long", clean_source="delete")}
    filled(world, 4)
    with pytest.raises(MaintenanceError, match="keeps batches from 2 on"):
        applied(world, rewind(-1))


def test_what_cannot_be_read_again_is_refused(tmp_path: Path) -> None:
    world = World(tmp_path)
    source = FileSource(str(world.landing()), format="json", schema="id long", clean_source="delete")
    world.sources = {"orders": source}
    filled(world, 4)
    # Not by word either: the table has the only copy.
    for allow_skip in (False, True):
        with pytest.raises(
            MaintenanceError, match=r"live/2 cannot be planned again[\s\S]*deleted by clean_source.*only copy"
        ):
            planned(world, rewind(1, allow_skip=allow_skip))


def test_a_pipeline_that_a_stranger_wrote_is_named_and_gives_way_when_it_is_removed(world: World) -> None:
    """Who can write a checkpoint can name a pipeline of his own as the newest: rewind must not refuse for ever then."""
    checkpoint, key = world.checkpoint, BatchKey("live", 3)
    theirs = checkpoint.definitions.put({"class": "stranger:Pipeline", "version": 1, "arguments": {"sources": {}}})
    (attempt,) = checkpoint.attempts.all(key)
    checkpoint.attempts.take_exactly(replace(attempt, epoch=2, definition=theirs))
    where = re.escape(checkpoint.definitions.where(theirs))
    with pytest.raises(MaintenanceError, match=rf"no longer has[\s\S]*that of {where}: if it is none of yours"):
        planned(world, rewind(1))
    checkpoint.definitions.forget(theirs)
    applied(world, rewind(1))
    for number in range(4, 8):
        world.run(number)
    assert rows(world) == [0, 1, 2, 3]


def test_a_file_that_is_gone_is_refused(world: World) -> None:
    (world.landing() / "000003.json").unlink()
    with pytest.raises(MaintenanceError, match=r"batch live/3 cannot be planned again[\s\S]*000003"):
        planned(world, rewind(1))


def test_archived_files_are_read_from_the_archive(tmp_path: Path) -> None:
    world = World(tmp_path)
    archive = {"clean_source": "archive", "archive_dir": str(tmp_path / "archive")}
    world.sources = {"orders": FileSource(str(world.landing()), format="json", schema="id long", **archive)}  # type: ignore[arg-type]
    filled(world, 4)
    assert not list(world.landing().glob("[!.]*"))
    applied(world, rewind(0))
    for number in range(4, 8):
        world.run(number)
    assert rows(world) == [0, 1, 2, 3]


def test_what_repair_cannot_mend_rewind_does(world: World) -> None:
    """The newest batch's range is lost: it goes out of the table, and its rows come back with the next batch."""
    (world.root / "checkpoint" / "offsets" / "3").write_bytes(b"")
    assert planned(world).problems
    applied(world, rewind(2))
    world.run(4)
    assert rows(world) == [0, 1, 2, 3]
    assert verify_all(world.checkpoint) == []


def staged(world: World, number: int) -> Attempt:
    """An attempt that has left a whole stage, and sleeps now."""
    world.land(number)
    batch, engine = world.execution.plan(run_identity(number)), InlineEngine()
    assert batch is not None
    attempt = world.execution.open_attempt(key=batch.key, run=run_identity(number), code=CODE, engine=engine)
    world.execution.run_attempt(attempt=attempt, job=world.execution.job(attempt, None), engine=engine, code=CODE)
    return attempt


def test_an_attempt_that_wakes_up_after_it_can_neither_publish_nor_commit(tmp_path: Path) -> None:
    world = filled(World(tmp_path), 3)
    attempt = staged(world, 3)
    with pytest.raises(MaintenanceError, match="live/3 attempt 1"):
        applied(world, rewind(2))
    world.expire_leases()
    applied(world, rewind(2))
    world.execution.plan(run_identity(4))
    with pytest.raises(AttemptFencedError):
        world.execution.publish(attempt)
    assert world.run(5).epoch == 3  # type: ignore[union-attr]
    assert rows(world) == [0, 1, 2, 3]
    world.expire_leases()
    world.janitor()
    assert world.stages() == []
    assert world.checkpoint.leases.unfinished() == []


def test_a_commit_that_comes_after_the_output_was_dropped_is_refused(tmp_path: Path) -> None:
    world = filled(World(tmp_path), 3)
    attempt = staged(world, 3)
    manifest = world.execution.publish(attempt)
    world.expire_leases()
    applied(world, rewind(2))
    world.execution.plan(run_identity(4))
    with pytest.raises(AttemptFencedError, match="taken back and planned anew"):
        world.execution.commit(key=attempt.key, manifest=manifest, run=run_identity(3))
    world.run(5)
    assert rows(world) == [0, 1, 2, 3]


def test_requests_for_a_replay_go_with_their_batch(world: World) -> None:
    key, replays = BatchKey("live", 3), world.checkpoint.replays
    for clear in (1, 2):
        replays.request(key, run=run_identity(3, clear_number=clear), requested_ms=clear)
    replays.complete(key, 1, attempt=1, completed_ms=2)
    applied(world, rewind(1))
    assert replays.pending(key) == []
    assert not replays.is_answered(key)
    assert replays.request(key, run=None, requested_ms=3).epoch == 3
    replays.withdraw(key, 3, reason="of this test")
    assert verify_all(world.checkpoint) == []


def test_the_table_keeps_nothing_after_the_janitors_grace(world: World) -> None:
    applied(world, rewind(1))
    kept = sorted(
        path.name
        for path in (world.lake / "_replaced" / world.checkpoint_id / "lane=live").glob("batch_id=*/attempt=*")
    )
    assert kept == ["attempt=1", "attempt=1"]
    world.janitor(grace_seconds=0)
    assert not list((world.lake / "_replaced" / world.checkpoint_id).glob("lane=live/batch_id=*/attempt=*"))


def test_twice_the_same_batch(world: World) -> None:
    for number in (10, 20):
        applied(world, rewind(2))
        world.run(number)
    assert rows(world) == [0, 1, 2, 3]
    assert verify_all(world.checkpoint) == []


def test_batches_in_a_segment_of_old_entries_are_left_alone(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_provider_microbatch.checkpoint.log.SEGMENT_SIZE", 2)
    for entries in (world.checkpoint.offset_log, world.checkpoint.commit_log):
        assert entries.compact(before_id=2) == 2
    before = world.files()
    with pytest.raises(MaintenanceError, match="batch 1 lies in a segment"):
        applied(world, rewind(0))
    assert world.files() == before
    assert rows(world) == [0, 1, 2, 3]
    applied(world, rewind(1))
    assert world.checkpoint.commit_log.ids() == [0, 1]


def test_another_lane_is_rewound_by_itself(world: World) -> None:
    for number in range(10, 13):
        world.land(number)
        execution = Execution(pipeline=world.pipeline, checkpoint=world.checkpoint, lane=LANE)
        execution.run(run=run_identity(number), engine=InlineEngine(), code=CODE, transform=None)
    live = {path: data for path, data in world.files().items() if path.startswith(("offsets", "commits"))}
    applied(world, rewind(0, lane=LANE))
    lane = world.checkpoint.lane(LANE)
    assert lane.offset_log.ids() == lane.commit_log.ids() == [0]
    assert sorted(path.name for path in (world.lake / f"lane={LANE}").iterdir()) == ["batch_id=0"]
    assert live.items() <= world.files().items()
    assert rows(world) == [0, 1, 2, 3]
    assert verify_all(world.checkpoint) == []


def test_an_attempt_that_somebody_ends_while_it_is_rewound_does_not_stop_the_rewind(tmp_path: Path) -> None:
    """A janitor that had looked before the command began, or a listener that comes late."""
    world = World(tmp_path)
    world.land(1)
    world.run(0)
    world.land(2)
    late = world.staged(1)
    world.expire_leases()
    real = PosixStore.put_if_absent

    def beaten(store: PosixStore, path: str, data: bytes) -> bool:
        if path == f"attempts/{late.key}/{late.epoch}.end":
            real(store, path, encode_record({"state": "failed", "error": "found dead", "ended_ms": 1}))
        return real(store, path, data)

    with mock.patch.object(PosixStore, "put_if_absent", beaten):
        applied(world, rewind(0))
    assert world.checkpoint.maintenance.unfinished() is None
    world.run(2)
    assert world.table() == {0: [1], 1: [2]}
    assert verify_all(world.checkpoint) == []


def test_a_command_that_was_refused_and_could_not_say_so_is_not_finished_by_the_next(tmp_path: Path) -> None:
    """A run was alive, and the disk took no answer. The run commits; what was planned for before that is not done."""
    world = World(tmp_path)
    for number in range(2):
        world.land(number + 1)
        world.run(number)
    world.land(3)
    late = world.staged(2)
    real = PosixStore.put_if_absent

    def read_only(store: PosixStore, path: str, data: bytes) -> bool:
        if path.startswith("1.") or path.startswith("maintenance/1."):
            raise CheckpointError("read-only")
        return real(store, path, data)

    with (
        mock.patch.object(apply, "alive", side_effect=[[], *[["a run is at it"]] * 2]),
        mock.patch.object(PosixStore, "put_if_absent", read_only),
        pytest.raises(CheckpointError, match="read-only"),
    ):
        applied(world, rewind(1))
    manifest = world.execution.publish(late)
    with pytest.raises(MaintenanceError, match="is being changed"):
        world.execution.commit(key=late.key, manifest=manifest, run=late.run)
    expire_leases(tmp_path / "checkpoint" / "maintenance")
    assert applier(world).finish() is None
    assert world.checkpoint.maintenance.unfinished() is None
    world.execution.commit(key=late.key, manifest=manifest, run=late.run)
    assert world.table() == {0: [1], 1: [2], 2: [3]}
    assert verify_all(world.checkpoint) == []
