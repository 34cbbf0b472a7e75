"""``repair`` mends what can be mended so that every row is in the table once afterwards, and says what cannot."""

from __future__ import annotations

import os
import re
import shutil
import struct
import zlib
from collections.abc import Callable
from copy import copy
from pathlib import Path

import pytest

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.checkpoint.verify import verify_all
from airflow_provider_microbatch.exceptions import (
    AttemptFencedError,
    CheckpointError,
    CorruptEntryError,
    MaintenanceError,
    TransformError,
)
from airflow_provider_microbatch.execution.position import read_position
from airflow_provider_microbatch.upkeep.commands.repair import plan_repair
from tests.execution.maintaining import applied, planned, rewind
from tests.execution.world import CODE, World, run_identity
from tests.support.inline_engine import InlineEngine

COMMIT = b'v1\n{"nextBatchWatermarkMs":0}'
Damage = Callable[[Path], None]


def remove(*paths: str) -> Damage:
    return lambda root: [(root / path).unlink() for path in paths] and None


def tear(path: str, size: int = 30) -> Damage:
    return lambda root: (root / path).write_bytes((root / path).read_bytes()[:size]) and None


def write(path: str, data: bytes) -> Damage:
    def damage(root: Path) -> None:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)

    return damage


def unpublish(*numbers: int) -> Damage:
    """The table lost these batches, or never had them."""
    lake = "lake/lane=live/batch_id="

    def damage(root: Path) -> None:
        for number in numbers:
            (root.parent / f"{lake}{number}").rename(root.parent / f"gone-{number}")

    return damage


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Five batches of one row each; batch 4 is planned only."""
    world = World(tmp_path_factory.mktemp("repaired") / "world")
    for number in range(4):
        world.land(number)
        world.run(number)
    world.land(4)
    world.execution.plan(run_identity(4))
    shutil.copytree(world.root, world.root.with_name("kept"), symlinks=True)
    return world


@pytest.fixture
def world(made: World) -> World:
    """As it was made, at its place."""
    shutil.rmtree(made.root)
    shutil.copytree(made.root.with_name("kept"), made.root, symlinks=True)
    return copy(made)


def damaged(world: World, *damages: Damage) -> Path:
    root = world.root / "checkpoint"
    for damage in damages:
        damage(root)
    return root


MENDED: dict[str, list[Damage]] = {
    "the newest plan is empty": [write("offsets/4", b"")],
    "the newest plan is half written": [tear("offsets/4")],
    "a plan that nothing leads to": [lambda root: (root / "offsets/4").rename(root / "offsets/7") and None],
    "an older plan is torn": [tear("offsets/2")],
    "an older plan is lost": [remove("offsets/2")],
    "the first plan is torn": [tear("offsets/0")],
    "a plan without its sources": [write("offsets/4", COMMIT)],
    "the last commit is lost": [remove("commits/3")],
    "two commits are lost": [remove("commits/3", "commits/2")],
    "a commit in the middle is lost": [remove("commits/1")],
    "a commit in the middle is torn": [tear("commits/1", 10)],
    "the last commit is torn": [tear("commits/3", 3)],
    "all commits are lost": [remove(*(f"commits/{number}" for number in range(4)))],
    "commits that nobody made": [write("commits/5", COMMIT), write("commits/6", COMMIT)],
    "plans that ran ahead": [remove("commits/2", "commits/3"), unpublish(2, 3)],
    "metadata is lost": [remove("metadata")],
    "metadata is empty": [write("metadata", b"")],
    "identity is torn": [tear("microbatch/identity", 20)],
    "identity is lost": [remove("microbatch/identity")],
    "several at once": [tear("offsets/4"), remove("commits/1", "metadata"), tear("microbatch/identity", 9)],
}


@pytest.mark.parametrize("damages", MENDED.values(), ids=MENDED)
def test_a_repaired_pipeline_goes_on_and_has_every_row_once(world: World, damages: list[Damage]) -> None:
    root = damaged(world, *damages)
    before = {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}
    plan = applied(world)
    assert plan.steps
    assert plan.problems == ()
    assert verify_all(world.checkpoint) == []
    assert applied(world).steps == (), "said again there is nothing to do"
    world.land(5)
    for number in range(4, 10):
        world.run(number)
    assert sorted(row for rows in world.table().values() for row in rows) == list(range(6))
    assert verify_all(world.checkpoint) == []
    assert world.checkpoint.identity().pipeline == "orders"  # type: ignore[union-attr]
    for step in plan.steps:
        if step.kind == "put away":
            assert (root / step.target).read_bytes() == before[step.path]  # type: ignore[union-attr]


def test_a_rebuilt_plan_reads_what_the_lost_one_read(world: World) -> None:
    lost = world.checkpoint.offset_log.get(2)
    damaged(world, remove("offsets/2"))
    applied(world)
    found = world.checkpoint.offset_log.get(2)
    assert lost is not None
    assert found is not None
    assert (found.starts, found.ends, found.conf) == (lost.starts, lost.ends, lost.conf)
    assert found.extra["microbatch"]["by_hand"]["by"] == "me@here"


def test_a_rebuilt_commit_tells_what_the_lost_one_told(world: World) -> None:
    lost = world.checkpoint.commit_log.get(3)
    damaged(world, remove("commits/3"))
    applied(world)
    found = world.checkpoint.commit_log.get(3)
    assert lost is not None
    assert found is not None
    assert (found.epoch, found.progress, found.run) == (lost.epoch, lost.progress, lost.run)


KEPT: dict[str, tuple[list[Damage], str]] = {
    "offsets gone": ([remove(*(f"offsets/{number}" for number in range(5)))], "the position is lost"),
    "committed plans gone": ([remove("offsets/4", "offsets/3")], r"`microbatch rewind \S+ --to 2 --drop-output`"),
    "the newest committed plan is torn": (
        [remove("offsets/4"), tear("offsets/3")],
        r"`microbatch rewind \S+ --to 2 --drop-output`",
    ),
    "two plans in a row are lost": ([remove("offsets/1", "offsets/2")], r"do not tell its range"),
    "a batch in the middle is in no table": (
        [remove("commits/1"), unpublish(1)],
        r"its rows are missing[\s\S]*`microbatch rewind \S+ --to 0 --drop-output`",
    ),
    "of a newer version": ([write("offsets/4", b"v9\n{}")], "of version 'v9'"),
    "a folder in the table that nobody published": (
        [remove("commits/3"), unpublish(3), lambda root: (root.parent / "lake/lane=live/batch_id=3").mkdir()],
        "has no manifest",
    ),
}


@pytest.mark.parametrize(("damages", "message"), KEPT.values(), ids=KEPT)
def test_what_cannot_be_mended_is_left_as_it_is_and_said(world: World, damages: list[Damage], message: str) -> None:
    damaged(world, *damages)
    before, table = world.files(), world.table()
    plan = applied(world)
    said = "\n".join(f"{problem.what} {problem.remedy}" for problem in plan.problems)
    assert re.search(message, said), said
    assert plan.steps == ()
    assert world.files() == before
    assert world.table() == table
    with pytest.raises(CheckpointError):
        read_position(world.checkpoint.lane("live")) if "of version" in message else _verified(world)


def _verified(world: World) -> None:
    findings = verify_all(world.checkpoint)
    if findings:
        raise MaintenanceError(findings[0].message)
    world.execution.check()
    world.execution.plan(run_identity(9))


def test_a_torn_plan_whose_batch_is_in_the_table_is_not_planned_again(world: World) -> None:
    planned_batch = world.execution.plan(run_identity(4))
    assert planned_batch is not None
    attempt = world.execution.open_attempt(key=planned_batch.key, run=run_identity(4), code=CODE, engine=InlineEngine())
    world.execution.run_attempt(
        attempt=attempt, job=world.execution.job(attempt, None), engine=InlineEngine(), code=CODE
    )
    world.execution.publish(attempt)
    damaged(world, tear("offsets/4"))
    world.expire_leases()
    plan = planned(world)
    assert plan.steps == ()
    assert "Batch 4 is in file://" in plan.problems[0].what


def test_epochs_are_never_used_again(world: World) -> None:
    """A torn attempt fences all the same: were its epoch free, two attempts would share a stage."""
    root = damaged(world, tear("attempts/live/3/1"), tear("attempts/live/2/1.end"))
    (root / "attempts/live/1/1").rename(root / "attempts/live/1/3")
    plan = applied(world)
    assert plan.problems == ()
    assert verify_all(world.checkpoint) == []
    assert world.checkpoint.attempts.latest_epoch(BatchKey("live", 3)) == 1
    assert world.checkpoint.attempts.latest_epoch(BatchKey("live", 1)) == 3
    world.janitor()
    assert world.checkpoint.attempts.ended(BatchKey("live", 2), 1) is not None
    assert applied(world).steps == ()


def test_an_attempt_that_wakes_up_cannot_publish_into_a_batch_that_is_planned_anew(world: World) -> None:
    """It read what the torn entry said, which nobody knows any more."""
    key, engine = BatchKey("live", 4), InlineEngine()
    attempt = world.execution.open_attempt(key=key, run=run_identity(4), code=CODE, engine=engine)
    world.execution.run_attempt(attempt=attempt, job=world.execution.job(attempt, None), engine=engine, code=CODE)
    world.expire_leases()
    damaged(world, tear("offsets/4"))
    assert applied(world).problems == ()
    world.execution.plan(run_identity(5))
    with pytest.raises(AttemptFencedError):
        world.execution.publish(attempt)
    world.run(5)
    assert world.table()[4] == [4]
    assert world.checkpoint.commit_log.get(4).epoch == 3  # type: ignore[union-attr]


def test_an_attempt_without_end_and_lease_is_found_by_the_janitor_again(world: World) -> None:
    attempt = world.execution.open_attempt(
        key=BatchKey("live", 4), run=run_identity(4), code=CODE, engine=InlineEngine()
    )
    world.checkpoint.leases.forget(attempt.key, attempt.epoch)
    assert world.janitor().actions == []
    applied(world)
    assert world.janitor().of("attempt ended") == ["live/4 attempt 1"]


@pytest.mark.parametrize("kept", [-1, 1])
def test_where_entries_in_a_row_are_torn_the_rewind_that_is_named_is_accepted(world: World, kept: int) -> None:
    """It was one to the entry before, which is torn too: it named repair, and repair named it."""
    before = sorted(id for ids in world.table().values() for id in ids)
    damaged(world, *(tear(f"offsets/{number}") for number in range(kept + 1, len(world.table()) + 1)))
    (told,) = {problem.remedy for problem in planned(world).problems if "rewind" in problem.remedy}
    assert f"--to {kept} --drop-output" in told
    applied(world, rewind(kept))
    for number in range(kept + 1, len(before)):
        world.run(10 + number)
    assert sorted(id for ids in world.table().values() for id in ids) == before


def test_a_torn_lease_keeps_nobody_out(world: World) -> None:
    damaged(world, write("leases/live/4-1-1", b""))
    applied(world)
    assert world.checkpoint.leases.unfinished() == []
    assert world.run(4) is not None


@pytest.mark.parametrize("data", [b"", b"v1\n{", b'v1\n{"location":"file:///lake"}'])
def test_a_torn_id_of_a_table_is_named_and_the_table_tells_it_again(world: World, data: bytes) -> None:
    (known,) = (world.root / "checkpoint/microbatch/tables").iterdir()
    before = known.read_bytes()
    known.write_bytes(data)
    with pytest.raises(CorruptEntryError, match=re.escape(str(known))):
        world.run(5)
    assert (("table", str(known))) in [(finding.kind, finding.where) for finding in verify_all(world.checkpoint)]
    applied(world)
    assert verify_all(world.checkpoint) == []
    world.run(5)
    assert known.read_bytes() == before


def test_a_torn_id_of_a_table_that_may_be_away_is_left_as_it_is(world: World) -> None:
    """In an empty folder no batch is found: what is committed would be planned again."""
    (known,) = (world.root / "checkpoint/microbatch/tables").iterdir()
    known.write_bytes(b"")
    world.lake.rename(world.root / "elsewhere")
    world.lake.mkdir()
    (problem,) = applied(world).problems
    assert problem.where == str(known)
    assert "may not be mounted" in problem.what
    assert known.read_bytes() == b""
    world.lake.rmdir()
    (world.root / "elsewhere").rename(world.lake)
    applied(world)
    assert verify_all(world.checkpoint) == []


def test_a_record_of_a_table_that_a_newer_version_wrote_stays(world: World) -> None:
    (known,) = (world.root / "checkpoint/microbatch/tables").iterdir()
    known.write_bytes(b"v9\n{}")
    assert [problem.where for problem in planned(world).problems] == [str(known)]
    assert known.name not in str(planned(world).steps)


def test_a_replay_that_was_answered_is_not_run_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.run(2, clear_number=1)
    damaged(world, remove("replays/live/2/1.end"))
    plan = applied(world)
    assert [step.what for step in plan.steps] == ["replays/live/2/1.end"]
    assert world.checkpoint.replays.pending(BatchKey("live", 2)) == []


def test_a_replay_that_is_waited_for_stays_so(world: World) -> None:
    world.checkpoint.replays.request(BatchKey("live", 2), run=run_identity(2, clear_number=1), requested_ms=1)
    assert planned(world).steps == ()


@pytest.mark.parametrize("is_end_there", [True, False])
def test_torn_requests_are_replaced_and_what_is_in_the_table_is_their_answer(world: World, is_end_there: bool) -> None:
    made = world.run(2, clear_number=1)
    assert made is not None
    damaged(world, tear("replays/live/2/1"))
    if not is_end_there:
        damaged(world, remove("replays/live/2/1.end"))
    assert applied(world).problems == ()
    assert verify_all(world.checkpoint) == []
    answer = world.checkpoint.replays.newest_answer(BatchKey("live", 2))
    assert answer is not None
    assert answer["attempt"] == made.epoch


def test_a_torn_request_that_nothing_has_answered_is_made_again_by_a_retry(world: World) -> None:
    with pytest.raises(TransformError):
        world.run(2, InlineEngine(transform=lambda sources: 1 / 0), clear_number=1)  # type: ignore[arg-type, return-value]
    damaged(world, tear("replays/live/2/1"))
    applied(world)
    assert world.checkpoint.replays.newest_answer(BatchKey("live", 2)) is None
    made = world.run(2, clear_number=1, try_number=2)
    assert made is not None
    assert made.epoch == world.checkpoint.attempts.latest_epoch(BatchKey("live", 2)) == 3


def test_retention_left_a_sound_checkpoint(world: World) -> None:
    world.checkpoint.offset_log.purge(2)
    assert planned(world).steps == ()
    world.checkpoint.commit_log.purge(3)
    assert planned(world).steps == ()
    damaged(world, remove("offsets/3"))
    assert applied(world).problems == ()
    assert world.run(4) is not None


def checksum(data: bytes) -> bytes:
    """As Hadoop writes it beside a file; that Spark's own are left alone is shown in ``tests/spark_exchange``."""
    chunks = [data[start : start + 512] for start in range(0, len(data), 512)]
    return b"crc\0" + struct.pack(f">i{len(chunks)}I", 512, *map(zlib.crc32, chunks))


HIDDEN = "00112233445566778899aabbccddeeff.tmp"


def test_a_plan_that_a_removal_was_cut_off_with_is_put_back(world: World) -> None:
    """Its name was free when the removal was to look whether it is the one: it is another's, which is committed."""
    log = world.root / "checkpoint/offsets"
    world.run(4)
    plan, another = (log / "4").read_bytes(), (log / "3").read_bytes()
    (log / "4").rename(log / f".4.f{HIDDEN[1:]}")
    (log / f".4.1{HIDDEN[1:]}").write_bytes(another)
    (log / f".4.2{HIDDEN[1:]}").write_bytes(plan[:40])
    with pytest.raises(CheckpointError):
        world.run(5)
    assert applied(world).problems == ()
    assert (log / "4").read_bytes() == plan
    assert verify_all(world.checkpoint) == []
    world.run(5)


@pytest.mark.parametrize("number", [1, 3])
def test_a_plan_in_the_middle_is_put_back_as_it_was(world: World, number: int) -> None:
    path = world.root / f"checkpoint/offsets/{number}"
    plan = path.read_bytes()
    path.rename(path.with_name(f".{number}.{HIDDEN}"))
    assert applied(world).problems == ()
    assert path.read_bytes() == plan
    assert verify_all(world.checkpoint) == []


@pytest.mark.parametrize("hidden", [(0,), (0, 1), (0, 1, 2, 3)], ids=str)
def test_the_oldest_plans_are_put_back_if_they_are_committed(world: World, hidden: tuple[int, ...]) -> None:
    log = world.root / "checkpoint/offsets"
    plans = {number: (log / str(number)).read_bytes() for number in hidden}
    for number in hidden:
        (log / str(number)).rename(log / f".{number}.{HIDDEN}")
    assert applied(world).problems == ()
    assert {number: (log / str(number)).read_bytes() for number in hidden} == plans
    assert verify_all(world.checkpoint) == []


def test_a_plan_that_was_taken_back_or_never_made_is_not_put_back(world: World) -> None:
    """Nothing of it is committed, so the next run plans the batch by what there is then."""
    log = world.root / "checkpoint/offsets"
    world.staged(4)
    world.expire_leases()
    (log / "4").rename(log / f".4.{HIDDEN}")
    applied(world)
    assert not (log / "4").exists()
    world.run(5)
    assert verify_all(world.checkpoint) == []


def test_hidden_files_that_are_no_use_are_moved_away(world: World) -> None:
    root = world.root / "checkpoint"
    entry = (root / "commits" / "1").read_bytes()
    kept = {"offsets/.9.tmp": b"", "commits/.1.crc": checksum(entry), ".hidden": b""}
    young = "commits/.8.00112233445566778899aabbccddeeff.tmp"
    swept = {
        "offsets/.0.crc": checksum(b"another"),
        "offsets/.44.crc": checksum(entry),
        "offsets/.4.crc": b"",
        "commits/.7.00112233445566778899aabbccddeeff.tmp": b"v1",
        "sources/orders/.3.00112233-4455-6677-8899-aabbccddeeff.tmp": b"v1",
    }
    for path, data in {**kept, young: b"", **swept}.items():
        (root / path).write_bytes(data)
        if path != young:
            os.utime(root / path, (1, 1))
    plan = applied(world)
    assert {step.what for step in plan.steps} == set(swept)
    assert not any((root / path).exists() for path in swept)
    assert all((root / path).exists() for path in (*kept, young))
    assert applied(world).steps == ()


def test_a_sound_checkpoint_and_a_checkpoint_of_spark_are_left_alone(world: World) -> None:
    before = world.files()
    assert applied(world).steps == ()
    assert world.files() == before


def test_the_plan_is_made_without_touching_anything(world: World) -> None:
    damaged(world, *MENDED["several at once"])
    before = world.files()
    assert planned(world, plan_repair).steps
    assert world.files() == before


def test_a_number_that_nobody_has_counted_to_is_told_and_not_filled_up_to(world: World) -> None:
    """A file may have any number for its name: repair would write for hours."""
    stray = world.root / "checkpoint/attempts/live/1/99999999"
    stray.write_text("x")
    plan = planned(world, plan_repair)
    assert str(stray) in plan.problems[0].where
    assert len(plan.steps) < 10
