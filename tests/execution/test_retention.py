"""Retention: what is old and done goes; what is unfinished, wanted or of another lane stays."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_microbatch.checkpoint import log as log_module
from airflow_provider_microbatch.checkpoint.attempts import Attempts
from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.definitions import Definitions
from airflow_provider_microbatch.checkpoint.entries import CommitEntry, OffsetEntry
from airflow_provider_microbatch.checkpoint.horizons import Horizons
from airflow_provider_microbatch.checkpoint.key import LETTERS, BatchKey
from airflow_provider_microbatch.checkpoint.log import MetadataLog
from airflow_provider_microbatch.checkpoint.segments import Segments
from airflow_provider_microbatch.checkpoint.verify import verify_all
from airflow_provider_microbatch.cli.main import main
from airflow_provider_microbatch.exceptions import BrokenLogError, CheckpointError, MaintenanceError, TransformError
from airflow_provider_microbatch.execution import execution as execution_module
from airflow_provider_microbatch.execution import retention
from airflow_provider_microbatch.execution.execution import Execution
from airflow_provider_microbatch.execution.retention import apply_retention, retained
from airflow_provider_microbatch.stores.posix import PosixStore
from airflow_provider_microbatch.stores.posix.folder import Folder
from airflow_provider_microbatch.upkeep.commands.repair import plan_repair
from tests.execution.maintaining import applied, filled, rewind, rows
from tests.execution.sleepers import Sleep, applied_or_refused, killed
from tests.execution.world import CODE, KEY, Killed, World, run_identity
from tests.support.hooks import Diary
from tests.support.inline_engine import InlineEngine


def test_retention_keeps_what_is_unfinished(tmp_path: Path) -> None:
    diary = tmp_path / "diary"
    world = World(tmp_path, hooks=(Diary(str(diary)),), min_batches_to_retain=2)
    Path(f"{diary}.fails").write_text("diary finished")
    filled(world, 4)
    assert world.checkpoint.offset_log.ids() == [0, 1, 2, 3]
    Path(f"{diary}.fails").unlink()
    assert world.janitor().of("retention applied") == ["log entries of 2 batches before live/2"]
    assert world.checkpoint.offset_log.ids() == [2, 3]
    assert sorted(path.name for path in (tmp_path / "checkpoint" / "hooks" / "live").iterdir()) == ["2", "3"]


def test_old_log_entries_move_into_segments_and_batches_go_on_and_are_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_module, "SEGMENT_SIZE", 2)
    monkeypatch.setattr(retention, "FILES_KEPT", 2)
    world = World(tmp_path)
    filled(world, 5)
    moved = world.janitor().of("log compacted")
    assert moved == [f"2 entries of {tmp_path}/checkpoint/{log}" for log in ("offsets", "commits")]
    assert not (tmp_path / "checkpoint" / "offsets" / "0").exists()
    world.land(5)
    world.run(5)
    replayed = world.run(0, InlineEngine(transform=lambda _: [{"id": 99}]), clear_number=1)
    assert replayed is not None
    assert replayed.key.id == 0
    assert world.table() == {0: [99], **{number: [number] for number in range(1, 6)}}
    assert world.janitor().of("log compacted") == [
        f"2 entries of {tmp_path}/checkpoint/{log}" for log in ("offsets", "commits")
    ]


def test_a_clear_whose_run_was_deleted_is_named_and_can_be_withdrawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world = World(tmp_path, min_batches_to_retain=2)
    world.land(0)
    world.run(0)
    with pytest.raises(TransformError):
        world.run(0, InlineEngine(transform=lambda _: 1 / 0), clear_number=1)  # type: ignore[arg-type, return-value]
    location = world.pipeline.checkpoint
    assert main(["check", location]) == 0
    for number in range(1, 4):
        world.land(number)
        world.run(number)
    assert world.checkpoint.offset_log.ids() == [0, 1, 2, 3]
    capsys.readouterr()
    assert main(["check", location]) == 1
    said = capsys.readouterr().out
    assert "a clear of run 'run-0'" in said
    [command] = [part for part in said.split("`") if part.startswith("microbatch withdraw-clear")]
    assert main(command.split()[1:]) == 0
    assert "asked for the batch again" in capsys.readouterr().out
    assert main(["check", location]) == 0
    assert main(command.split()[1:]) == 0
    said = capsys.readouterr().out
    assert "nothing to do" in said
    assert "no clear of batch live/0 waits for an answer" in said
    world.land(4)
    world.run(4)
    assert world.checkpoint.offset_log.ids() == [3, 4]
    assert world.table() == {number: [number] for number in range(5)}


def test_a_clear_that_is_answered_while_check_looks_is_no_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, min_batches_to_retain=2)
    many(world, 1)
    with pytest.raises(TransformError):
        world.run(0, InlineEngine(transform=lambda _: 1 / 0), clear_number=1)  # type: ignore[arg-type, return-value]
    many(world, 4, first=1)
    assert len(retention.find_held(world.checkpoint)) == 1
    real = retention.held

    def held(checkpoint: Checkpoint, lane: str) -> list[BatchKey]:
        found = real(checkpoint, lane)
        world.run(0, clear_number=1)
        return found

    monkeypatch.setattr(retention, "held", held)
    assert retention.find_held(world.checkpoint) == []


def test_a_clear_of_what_is_not_committed_cannot_be_withdrawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world = World(tmp_path)
    many(world, 1)
    assert main(["withdraw-clear", world.pipeline.checkpoint, "7"]) == 2
    assert "batch live/7" in capsys.readouterr().err


def many(world: World, count: int, *, first: int = 0) -> None:
    """Runs ``first`` to ``count - 1``, each with a batch of one row."""
    for number in range(first, count):
        world.land(number + 10)
        world.run(number)


def test_a_lane_beside_the_live_one_is_retained_by_itself(tmp_path: Path) -> None:
    world = World(tmp_path, min_batches_to_retain=2)
    many(world, 2)
    diary = tmp_path / "diary"
    world.options["hooks"] = (Diary(str(diary)),)
    Path(f"{diary}.fails").write_text("diary finished")
    for number in range(4):
        world.land(number + 20)
        aside = Execution(pipeline=world.pipeline, checkpoint=world.checkpoint, lane=LETTERS)
        aside.run(run=run_identity(number), engine=InlineEngine(), code=CODE, transform=None)
    Path(f"{diary}.fails").unlink()
    assert world.janitor().of("retention applied") == [f"log entries of 2 batches before {LETTERS}/2"]
    assert world.checkpoint.lane(LETTERS).offset_log.ids() == [2, 3]
    assert world.checkpoint.offset_log.ids() == [0, 1]


def test_retention_of_a_log_that_spark_wrote_asks_for_the_newest_attempts_alone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    many(world, 1)
    asked: list[BatchKey] = []
    real = Attempts.all
    monkeypatch.setattr(Attempts, "all", lambda self, key: asked.append(key) or real(self, key))
    for number in range(1, 50):
        world.checkpoint.offset_log.add(number, OffsetEntry(ends={"orders": None}, batch_timestamp_ms=1))
        world.checkpoint.commit_log.add(number, CommitEntry())
    assert retained(world.checkpoint, "live") is None
    assert asked == [KEY]


def test_a_definition_that_no_attempt_names_any_more_goes(tmp_path: Path) -> None:
    world = World(tmp_path, min_batches_to_retain=2)
    definitions = world.checkpoint.definitions
    many(world, 1)
    (old,) = definitions.names()
    world.options["no_data_batches"] = False
    many(world, 2)
    assert len(definitions.names()) == 2
    assert world.janitor().actions == [], "batch 0 is kept, and names it"
    many(world, 4)
    assert world.janitor(dry_run=True).of("retention applied") == [f"pipeline definition {old}"]
    assert old in definitions.names()
    assert world.janitor().of("retention applied") == [f"pipeline definition {old}"]
    assert old not in definitions.names()
    assert len(definitions.names()) == 1


def test_a_definition_stays_while_its_sink_has_something_of_it(tmp_path: Path) -> None:
    world = World(tmp_path, min_batches_to_retain=2)
    many(world, 1)
    world.run(0, clear_number=1)
    old = world.lake
    world.lake = tmp_path / "lake2"
    many(world, 5, first=1)
    assert world.janitor().actions == [], "replaced output in the old sink waits for its grace period"
    assert len(world.checkpoint.definitions.names()) == 2
    assert world.janitor(grace_seconds=0).of("replaced output removed") == [
        str(old / "_replaced" / world.checkpoint_id / "lane=live" / "batch_id=0" / "attempt=1")
    ]
    assert len(world.checkpoint.definitions.names()) == 1


def test_a_definition_that_a_run_wants_at_this_moment_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path, min_batches_to_retain=2)
    many(world, 1)
    (old,) = world.checkpoint.definitions.names()
    world.options["no_data_batches"] = False
    many(world, 4)
    world.options["no_data_batches"] = True
    world.land(99)
    planned = world.execution.plan(run_identity(9))
    assert planned is not None
    real = Definitions.forget

    def forget(self: Definitions, name: str) -> bool:
        # The run has looked at the definition, which is there, and is about to take its epoch.
        world.checkpoint.leases.renew(planned.key, 1)
        return real(self, name)

    monkeypatch.setattr(Definitions, "forget", forget)
    assert world.janitor().of("retention applied") == []
    assert old in world.checkpoint.definitions.names()


def test_a_run_has_a_lease_before_it_looks_at_the_definition(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    leases: list[object] = []
    real = Definitions.put

    def put(self: Definitions, definition: Mapping[str, Any]) -> str:
        leases.append(world.checkpoint.leases.unfinished())
        return real(self, definition)

    monkeypatch.setattr(Definitions, "put", put)
    world.run(0)
    assert leases == [[(KEY, 1)]] * 2


def grown(tmp_path: Path) -> World:
    """Eight batches, all kept until now; of the ninth's commit on three are."""
    world = filled(World(tmp_path), 8)
    world.options["min_batches_to_retain"] = 3
    world.land(8)
    return world


def goes_on(world: World) -> None:
    """Nothing is lost or doubled, however often the pipeline runs from here."""
    for number in range(20, 28):
        world.run(number)
    assert rows(world) == list(range(9))
    assert len(world.checkpoint.offset_log.ids()) >= 2
    assert verify_all(world.checkpoint) == []


@pytest.mark.parametrize("by", ["a commit", "the janitor"])
@pytest.mark.parametrize(
    ("owner", "name"),
    [(MetadataLog, "purge"), (retention, "oldest_aside")],
    ids=["about to remove", "after its look"],
)
def test_a_retention_that_sleeps_while_somebody_rewinds_leaves_the_log_whole(
    tmp_path: Path, sleep: Sleep, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, by: str
) -> None:
    world = grown(tmp_path)
    if by == "the janitor":
        with monkeypatch.context() as patch:
            patch.setattr(execution_module, "apply_retention", lambda *_, **__: [])
            world.run(8)

    def rewound_meanwhile() -> None:
        world.expire_leases()
        applied_or_refused(world, rewind(3))

    sleep.before(owner, name, rewound_meanwhile)
    with suppress(BrokenLogError):  # its own batch may be what was rewound
        world.run(8) if by == "a commit" else world.janitor()
    goes_on(world)


def test_a_rewind_that_begins_while_retention_is_at_the_log_goes_no_further_back_than_that(
    tmp_path: Path, sleep: Sleep
) -> None:
    world = grown(tmp_path)
    said = []

    def rewinds() -> None:
        world.expire_leases()
        with pytest.raises(MaintenanceError, match="removes what is older than batch 6") as refused:
            applied(world, rewind(6))
        said.append(str(refused.value))
        applied(world, rewind(7))

    sleep.before(MetadataLog, "purge", rewinds)
    with suppress(BrokenLogError):
        world.run(8)
    assert "Rewind to 7 or later" in said[0]
    assert world.checkpoint.offset_log.ids() == [6, 7]
    goes_on(world)


def test_a_retention_that_was_killed_is_finished_by_the_next_and_leaves_no_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = grown(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(MetadataLog, "purge", killed)
        with pytest.raises(Killed):
            world.run(8)
    folder = tmp_path / "checkpoint" / "microbatch" / "retained" / "live"
    assert len(list(folder.iterdir())) == 1
    world.expire_leases()
    with pytest.raises(MaintenanceError, match="microbatch janitor"):
        applied(world, rewind(3))
    world.janitor()
    assert world.checkpoint.offset_log.ids() == [6, 7, 8]
    assert list(folder.iterdir()) == []


def age(world: World, seconds: float) -> None:
    for word in (world.root / "checkpoint/microbatch/retained/live").iterdir():
        past = word.stat().st_mtime - seconds
        os.utime(word, (past, past))


def killed_and_turned_down(tmp_path: Path) -> World:
    """Retention died after its word, and the pipeline keeps all since: nobody finishes that."""
    world = grown(tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MetadataLog, "purge", killed)
        with pytest.raises(Killed):
            world.run(8)
    world.options["min_batches_to_retain"] = None
    world.expire_leases()
    return world


def test_a_retention_that_was_killed_before_it_was_turned_down_is_given_up_at_a_persons_word(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world = killed_and_turned_down(tmp_path)
    world.land(9)
    world.run(9)
    world.janitor()
    with pytest.raises(MaintenanceError, match=r"repair \S+ --give-up`"):
        applied(world, rewind(5))
    location = world.pipeline.checkpoint
    assert main(["repair", location, "--give-up"]) == 1
    assert "may be alive" in capsys.readouterr().out
    age(world, 3601)
    assert main(["repair", location]) == 0
    assert world.checkpoint.horizons.highest("live") == 6, "nobody has said that it is dead"
    assert main(["repair", location, "--give-up"]) == 0
    applied(world, rewind(5))
    assert world.checkpoint.offset_log.ids() == [0, 1, 2, 3, 4, 5]
    for number in range(20, 28):
        world.run(number)
    assert rows(world) == list(range(10))
    assert verify_all(world.checkpoint) == []


def test_what_is_said_of_a_retention_that_may_be_alive_is_the_same_however_long_the_command_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan is made again before it is applied: another one would be refused, and so for an hour."""
    world = killed_and_turned_down(tmp_path)
    torn = world.root / "checkpoint" / "commits" / "6"
    torn.write_bytes(b"v1\n{")
    real, calls = PosixStore.now_ms, itertools.count()
    monkeypatch.setattr(PosixStore, "now_ms", lambda store: real(store) + 1_000 * next(calls))
    applied(world, partial(plan_repair, give_up=True))
    assert verify_all(world.checkpoint) == []


def test_a_retention_that_is_given_up_and_only_slept_removes_nothing_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would empty a log that somebody has rewound since: the position would be lost."""
    world = grown(tmp_path)
    monkeypatch.setattr(execution_module, "apply_retention", lambda *_, **__: [])
    world.run(8)
    real, gone = PosixStore.delete, []

    def delete(store: PosixStore, path: str) -> bool:
        found = real(store, path)
        if path in ("0", "1") and store.location.endswith("offsets"):
            gone.append(path)
        if gone == ["0", "1"]:
            gone.append("slept")
            age(world, 3601)
            applied(world, partial(plan_repair, give_up=True))
            applied(world, rewind(3))
        return found

    with monkeypatch.context() as patch:
        patch.setattr(PosixStore, "delete", delete)
        assert apply_retention(world.checkpoint, kept=3) == []
    assert world.checkpoint.offset_log.ids() == [2, 3]
    goes_on(world)


def test_retention_says_what_it_removes_only_where_there_is_something(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, min_batches_to_retain=3)
    monkeypatch.setattr(Horizons, "announce", killed)
    filled(world, 3)
    with pytest.raises(Killed):
        filled(world, 4)


def test_a_compaction_that_sleeps_while_somebody_rewinds_packs_nothing_that_was_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sleep: Sleep
) -> None:
    monkeypatch.setattr(log_module, "SEGMENT_SIZE", 2)
    monkeypatch.setattr(retention, "FILES_KEPT", 2)
    world = filled(World(tmp_path), 9)

    def rewound_meanwhile() -> None:
        applied_or_refused(world, rewind(4))

    sleep.before(Segments, "put", rewound_meanwhile, lambda _, entries: min(entries) == 4)
    world.janitor()
    goes_on(world)
    folder = tmp_path / "checkpoint" / "microbatch" / "retained" / "live"
    assert list(folder.iterdir()) == []


def test_a_compaction_that_was_killed_is_finished_by_the_next_and_leaves_no_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_module, "SEGMENT_SIZE", 2)
    monkeypatch.setattr(retention, "FILES_KEPT", 2)
    world = filled(World(tmp_path), 5)
    with monkeypatch.context() as patch:
        patch.setattr(Horizons, "forget", killed)
        with pytest.raises(Killed):
            world.janitor()
    assert world.checkpoint.horizons.highest("live") == 3
    with pytest.raises(MaintenanceError, match=r"have `microbatch janitor \S+` finish that, and look again\.$"):
        applied(world, rewind(1))
    world.janitor()
    assert world.checkpoint.horizons.highest("live") == 0


def test_retention_that_cannot_remove_anything_stands_in_nobodys_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = grown(tmp_path)

    def fails(*_: object, **__: object) -> int:
        raise CheckpointError("the disk is read-only")

    with monkeypatch.context() as patch:
        patch.setattr(MetadataLog, "purge", fails)
        with pytest.raises(CheckpointError):
            world.run(8)
    assert world.checkpoint.horizons.highest("live") == 0


def test_on_a_full_disk_nothing_is_removed_unannounced_and_the_error_says_what_may_be_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = grown(tmp_path)
    applied(world, rewind(6))  # leaves repaired/

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Folder, "write", full)
        with pytest.raises(CheckpointError, match="No space left on device") as told:
            apply_retention(world.checkpoint, kept=3)
    assert world.checkpoint.offset_log.ids() == list(range(7))
    root = tmp_path / "checkpoint"
    may_go = [*root.glob("repaired"), *root.glob("microbatch/sources/*/index")]
    assert may_go
    assert all(str(path.relative_to(root)).replace("orders", "*") in str(told.value) for path in may_go)
    for path in may_go:
        shutil.rmtree(path)
    goes_on(world)


def test_commits_without_offsets_do_not_have_retention_empty_the_offset_log(tmp_path: Path) -> None:
    world = filled(World(tmp_path), 8)
    world.options["min_batches_to_retain"] = 3
    for number in range(4, 8):
        (tmp_path / "checkpoint" / "offsets" / str(number)).unlink()
    apply_retention(world.checkpoint, kept=3)
    assert world.checkpoint.offset_log.ids() == [1, 2, 3]
