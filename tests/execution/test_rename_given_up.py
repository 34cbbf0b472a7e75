"""A rename that was killed and is given up: what it has moved by then is neither read again nor lost, and there is a
way on from wherever it stopped."""

from __future__ import annotations

import functools
import shutil
import tempfile
from copy import copy
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

from airflow_provider_microbatch.checkpoint.entries import Attempt
from airflow_provider_microbatch.checkpoint.key import LIVE, BatchKey
from airflow_provider_microbatch.checkpoint.records import encode_record
from airflow_provider_microbatch.checkpoint.source_names import BEGUN, RENAMED
from airflow_provider_microbatch.checkpoint.verify import verify_all
from airflow_provider_microbatch.exceptions import (
    CheckpointError,
    CorruptEntryError,
    MaintenanceError,
    SourceRenamedError,
)
from airflow_provider_microbatch.sources.file import FileSource
from airflow_provider_microbatch.stores import Store
from airflow_provider_microbatch.stores.posix import PosixStore
from airflow_provider_microbatch.upkeep.commands.draft import Draft
from airflow_provider_microbatch.upkeep.commands.plan import Drafting, Plan
from airflow_provider_microbatch.upkeep.commands.rename_source import plan_add_source, plan_rename_source
from airflow_provider_microbatch.upkeep.commands.set_offset import plan_set_offset
from airflow_provider_microbatch.upkeep.commands.steps import Move, Write
from airflow_provider_microbatch.upkeep.source_check import check_sources
from tests.execution.maintaining import (
    Make,
    applied,
    applier,
    checkpoint_files,
    expire,
    filled,
    killed_at,
    moments,
    rewind,
)
from tests.execution.sleepers import Sleep
from tests.execution.world import CODE, World, run_identity
from tests.support.inline_engine import InlineEngine

RENAME: Make = lambda drafting: plan_rename_source(drafting, old="orders", new="sales")  # noqa: E731


def called(world: World, name: str) -> None:
    """The pipeline names its one folder so from now on."""
    world.sources = {name: FileSource(str(world.landing("orders")), schema="id long")}


def batches(tmp_path: Path, checkpoint_format: str = "v2") -> World:
    """Two committed batches, of a source that has a log and has noted something."""
    world = filled(World(tmp_path, checkpoint_format=checkpoint_format), 2)
    world.checkpoint.source_state("orders").put_if_absent("noted", b"by the source")
    world.expire_leases()
    return world


def killed_and_given_up(world: World, moment: int) -> bool:
    """Whether the command was killed at that moment."""
    killed = killed_at(moment, lambda: applied(world, RENAME))
    expire(world)
    applier(world).give_up(by="me@here")
    return killed


@functools.cache
def half_way() -> int:
    """The first number after which a file lies under the new name, and the rename is not said. Looked for once: each
    look is a command that was killed, given up and repaired."""
    with tempfile.TemporaryDirectory() as folder:
        world = batches(Path(folder))
        for moment in range(1, 200, 2):
            assert killed_and_given_up(world, moment)
            if is_half(world):
                return moment
            applied(world)
    raise AssertionError("it was never half done")


def is_half(world: World) -> bool:
    return (world.root / "checkpoint/sources/sales/0").exists()


def half(world: World) -> World:
    """Renamed up to there, and given up."""
    assert killed_and_given_up(world, half_way())
    assert is_half(world), f"killed at number {half_way()} it is not half done in this world"
    return world


@pytest.mark.slow
@pytest.mark.parametrize(("checkpoint_format", "first"), [("v1", 1), ("v2", 3)])
def test_given_up_anywhere_and_repaired_it_is_said_or_it_is_as_if_it_was_never_typed(
    tmp_path: Path, checkpoint_format: str, first: int
) -> None:
    """Each format at every other change; between them they leave none out."""
    (tmp_path / "world").mkdir()
    made = batches(tmp_path / "world", checkpoint_format)
    before = checkpoint_files(made.root / "checkpoint")
    for moment in moments(made.root, first=first, step=4):
        world = copy(made)
        killed = killed_and_given_up(world, moment)
        assert applied(world).problems == ()
        renamed = bool(world.checkpoint.names.renames())
        if not renamed:
            assert checkpoint_files(world.root / "checkpoint") == before
            called(world, "sales")
            with pytest.raises(CheckpointError, match="rename-source"):
                world.run(3)
            applied(world, RENAME)
        called(world, "sales")
        world.land(2)
        world.run(4)
        assert world.table() == {number: [number] for number in range(3)}
        assert [*verify_all(world.checkpoint), *check_sources(world.checkpoint)] == []
        if not killed:
            return


@pytest.mark.slow
@pytest.mark.parametrize("name", ["orders", "sales"])
def test_before_it_is_repaired_nothing_is_planned_under_either_name_and_the_way_on_is_named(
    tmp_path: Path, name: str
) -> None:
    world = half(batches(tmp_path))
    called(world, name)
    world.land(3)
    before = world.files()
    for ask in (world.execution.should_fire, lambda: world.run(3)):
        with pytest.raises(SourceRenamedError, match=r"'orders' to 'sales'.*`microbatch repair "):
            ask()
    assert world.files() == before
    [finding] = [found for found in verify_all(world.checkpoint) if found.kind == "rename"]
    assert f"`microbatch repair {world.pipeline.checkpoint}`" in finding.repair


@pytest.mark.parametrize(
    "make",
    [
        RENAME,
        lambda drafting: plan_rename_source(drafting, old="sales", new="orders"),
        lambda drafting: plan_add_source(drafting, name="sales"),
        rewind(-1, allow_skip=True),
        lambda drafting: plan_set_offset(
            drafting, lane="live", source="orders", offset=None, allow_skip=True, allow_reread=True
        ),
    ],
    ids=["rename", "rename back", "add", "rewind", "set-offset"],
)
def test_before_it_is_repaired_no_command_counts_on_the_logs_of_its_sources(tmp_path: Path, make: Make) -> None:
    world = half(batches(tmp_path))
    before = world.files()
    with pytest.raises(MaintenanceError, match="`microbatch repair "):
        applied(world, make)
    assert world.files() == before


@pytest.mark.slow
def test_the_repair_of_it_can_be_killed_and_given_up_anywhere(tmp_path: Path) -> None:
    (tmp_path / "world").mkdir()
    made = batches(tmp_path / "world")
    before = checkpoint_files(made.root / "checkpoint")
    half(made)
    for moment in moments(made.root):
        world = copy(made)
        killed = killed_at(moment, lambda world=world: applied(world))
        expire(world)
        applier(world).give_up(by="me@here")
        applied(world)
        assert checkpoint_files(world.root / "checkpoint") == before
        world.land(2)
        world.run(3)
        assert world.table() == {number: [number] for number in range(3)}
        if not killed:
            return


def test_what_lies_under_the_old_name_by_now_is_said_and_stays(tmp_path: Path) -> None:
    world = half(batches(tmp_path))
    other = world.root / "checkpoint/sources/orders/0"
    other.unlink(missing_ok=True)
    other.write_bytes(b"v1\n{}")
    [problem] = [found for found in applied(world).problems if found.where.endswith(BEGUN)]
    assert "sources/sales/0 and sources/orders/0 differ" in problem.what
    assert other.read_bytes() == b"v1\n{}"
    assert (world.root / "checkpoint/sources/sales/0").exists()


@pytest.mark.parametrize("owner", [Write, Move])
def test_a_rename_that_wakes_up_once_it_is_given_up_and_repaired_moves_nothing(
    tmp_path: Path, sleep: Sleep, owner: type
) -> None:
    world = batches(tmp_path)

    def given_up_and_repaired() -> None:
        expire(world)
        applier(world).give_up(by="me@here")
        applied(world)
        world.land(2)
        world.run(2)

    sleep.before(owner, "apply", given_up_and_repaired, lambda step, store: not isinstance(store, Draft))
    with pytest.raises(MaintenanceError):
        applied(world, RENAME)
    assert not (world.root / "checkpoint/sources/sales/0").exists()
    is_sound(world)


def is_sound(world: World) -> None:
    """Each row is in the table once, and what comes next too."""
    world.land(3)
    world.run(3)
    assert world.table() == {number: [number] for number in range(4)}
    assert [*verify_all(world.checkpoint), *check_sources(world.checkpoint)] == []


@pytest.mark.parametrize("name", ["put_if_absent", "delete_if"])
@pytest.mark.parametrize("number", [0, 1])
def test_a_move_that_wakes_up_once_the_rename_was_done_and_undone_moves_nothing(
    tmp_path: Path, sleep: Sleep, name: str, number: int
) -> None:
    world = batches(tmp_path)

    def done_and_undone() -> None:
        expire(world)
        applier(world).finish()
        applied(world, lambda drafting: plan_rename_source(drafting, old="sales", new="orders"))
        world.land(2)
        world.run(2)
        world.expire_leases()

    of = "sales" if name == "put_if_absent" else "orders"
    sleep.before(PosixStore, name, done_and_undone, lambda _, path, data: path == f"sources/{of}/{number}")
    with pytest.raises(MaintenanceError, match="finished by another"):
        applied(world, RENAME)
    assert not list((world.root / "checkpoint/sources").glob("sales/*"))
    is_sound(world)


@pytest.mark.parametrize("name", ["put_if_absent", "delete_if"])
@pytest.mark.parametrize("number", [0, 1])
def test_a_move_that_wakes_up_once_another_has_finished_it_leaves_all_where_it_is(
    tmp_path: Path, sleep: Sleep, name: str, number: int
) -> None:
    world = batches(tmp_path)

    def finished() -> None:
        expire(world)
        applier(world).finish()
        called(world, "sales")
        world.land(2)
        world.run(2)
        world.expire_leases()

    of = "sales" if name == "put_if_absent" else "orders"
    sleep.before(PosixStore, name, finished, lambda _, path, data: path == f"sources/{of}/{number}")
    with pytest.raises(MaintenanceError, match="finished by another"):
        applied(world, RENAME)
    assert not (world.root / f"checkpoint/sources/orders/{number}").exists()
    is_sound(world)


def test_a_source_that_was_said_to_be_new_by_a_command_that_was_given_up_is_not(tmp_path: Path, sleep: Sleep) -> None:
    world = batches(tmp_path)

    def given_up() -> None:
        expire(world)
        applier(world).give_up(by="me@here")

    sleep.before(Write, "apply", given_up, lambda step, store: not isinstance(store, Draft))
    with pytest.raises(MaintenanceError, match="given up"):
        applied(world, lambda drafting: plan_add_source(drafting, name="sales"))
    called(world, "sales")
    with pytest.raises(SourceRenamedError):
        world.run(3)


def test_a_word_that_a_rename_was_begun_and_that_came_late_moves_nothing_of_a_source_of_that_name(
    tmp_path: Path,
) -> None:
    """Whoever was to write it slept, and was killed before it could take it back: by then the name was a source's."""
    world = half(batches(tmp_path))
    [path] = (world.root / "checkpoint" / RENAMED).iterdir()
    word = path.read_bytes()
    applied(world)
    world.sources = {name: FileSource(str(world.landing(name)), schema="id long") for name in ("orders", "sales")}
    world.land(7, source="sales")
    world.run(3)
    path.write_bytes(word)
    expire(world)
    world.expire_leases()
    applied(world)
    world.land(8, source="sales")
    world.run(4)
    assert world.table() == {0: [0], 1: [1], 2: [7], 3: [8]}


def half_with_a_planned_batch(tmp_path: Path) -> tuple[World, Attempt]:
    """Batch 2 is planned, and one attempt has left its stage, when the rename is given up half way."""
    world = batches(tmp_path)
    world.land(2)
    attempt = world.staged(2)
    world.expire_leases()
    return half(world), attempt


@pytest.mark.parametrize("cleared", [False, True], ids=["planned", "cleared"])
def test_no_attempt_begins_before_it_is_repaired_though_the_plan_was_made_before(tmp_path: Path, cleared: bool) -> None:
    """The submit task of the step operators plans nothing; nor does a task that was cleared."""
    world, _ = half_with_a_planned_batch(tmp_path)
    key, run = (BatchKey(LIVE, 1), run_identity(1, clear_number=1)) if cleared else (BatchKey(LIVE, 2), run_identity(2))
    engine, before = InlineEngine(), states(world)

    def submitted() -> Attempt | None:
        execution = world.execution
        look = execution.look(key, run, engine_of=lambda name: None, code=CODE)
        return execution.open_next(look, run=run, code=CODE, engine=engine)

    with pytest.raises(SourceRenamedError, match="`microbatch repair "):
        submitted()
    assert states(world) == before
    assert engine.jobs == []
    applied(world)
    assert submitted() is not None


def states(world: World) -> dict[str, bytes]:
    """What sources have logged and noted, and what is in the table."""
    root = world.root
    found = [*root.glob("checkpoint/sources/**/*"), *root.glob("checkpoint/microbatch/sources/**/*")]
    found += root.glob("lake/lane=*/**/*")
    return {str(path): path.read_bytes() for path in found if path.is_file()}


@pytest.mark.parametrize("slept", [False, True], ids=["another task", "slept"])
def test_nothing_is_published_before_it_is_repaired(tmp_path: Path, slept: bool) -> None:
    world = batches(tmp_path)
    world.land(2)
    execution = world.execution
    attempt = world.staged(2)
    execution.load(attempt.key)
    world.expire_leases()
    before = states(half(world))
    with pytest.raises(SourceRenamedError, match="`microbatch repair "):
        (execution if slept else world.execution).publish(attempt)
    assert states(world) == before
    applied(world)
    world.execution.commit(key=attempt.key, manifest=world.execution.publish(attempt), run=run_identity(2))
    is_sound(world)


def test_nothing_is_committed_before_it_is_repaired(tmp_path: Path) -> None:
    world = batches(tmp_path)
    world.land(2)
    attempt = world.staged(2)
    published = world.execution.publish(attempt)
    world.expire_leases()
    before = states(half(world))
    with pytest.raises(SourceRenamedError, match="`microbatch repair "):
        world.execution.commit(key=attempt.key, manifest=published, run=run_identity(2))
    assert states(world) == before
    assert world.checkpoint.commit_log.ids() == [0, 1]
    applied(world)
    world.run(2)
    is_sound(world)


@pytest.mark.slow
def test_one_that_an_older_version_began_is_taken_back_too(tmp_path: Path) -> None:
    """That version said of no rename that it was begun."""

    def of_before(drafting: Drafting) -> Plan:
        plan = RENAME(drafting)
        return replace(plan, steps=tuple(step for step in plan.steps if not step.what.endswith(BEGUN)))

    (tmp_path / "world").mkdir()
    made = batches(tmp_path / "world")
    before = checkpoint_files(made.root / "checkpoint")
    for moment in moments(made.root):
        world = copy(made)
        without = mock.patch.object(Write, "apply", without_after)
        with without:
            killed = killed_at(moment, lambda world=world: applied(world, of_before))
        expire(world)
        applier(world).give_up(by="me@here")
        assert applied(world).problems == ()
        if not world.checkpoint.names.renames():
            assert checkpoint_files(world.root / "checkpoint") == before
        if not killed:
            return


def without_after(step: Write, store: Store) -> None:
    store.put_if_absent(step.path, step.text.encode())


def test_repair_mends_a_torn_entry_and_a_half_rename_at_once(tmp_path: Path) -> None:
    world = half(batches(tmp_path))
    torn = world.root / "checkpoint/offsets/1"
    whole = torn.read_bytes()
    torn.write_bytes(whole[:10])
    applied(world)
    assert world.checkpoint.names.half() is None
    assert (world.root / "checkpoint/sources/orders/1").exists()
    assert not list(world.root.glob("checkpoint/sources/sales/*"))


@pytest.mark.parametrize("recorded", [True, False])
def test_repair_mends_a_torn_word_that_a_rename_was_begun(tmp_path: Path, recorded: bool) -> None:
    world = half(batches(tmp_path))
    if not recorded:
        applied(world)
    torn = world.root / "checkpoint" / RENAMED / f"0{BEGUN}"
    torn.write_bytes(b'v1\n{"old')
    if not recorded:
        shutil.rmtree(world.root / "checkpoint/maintenance")
    assert applied(world).problems == ()
    world.land(2)
    world.run(2)
    is_sound(world)


def test_of_a_torn_one_that_nobody_has_recorded_repair_says_what_a_person_has_to_look_at(tmp_path: Path) -> None:
    """A new source has noted what it lists; nobody can tell its log from one that is half moved."""
    world = batches(tmp_path)
    word = world.root / "checkpoint" / RENAMED / f"0{BEGUN}"
    word.parent.mkdir(parents=True)
    word.write_bytes(b'v1\n{"old')
    world.checkpoint.source_log("refunds").put_if_absent("0", b"v1\n")
    [problem] = [one for one in applied(world).problems if one.where.endswith(BEGUN)]
    assert "No batch has read of 'refunds'" in problem.what
    assert f"move {word} out of the checkpoint" in problem.remedy
    word.rename(tmp_path / "out of it")
    world.land(2)
    world.run(2)
    is_sound(world)


@pytest.mark.parametrize(("old", "new"), [("spare", "orders/0"), ("orders", ".."), ("orders", ""), ("..", "orders/0")])
@pytest.mark.parametrize("recorded", [False, True])
def test_a_word_that_somebody_else_wrote_moves_no_file_and_repair_takes_it_away(
    tmp_path: Path, old: str, new: str, recorded: bool
) -> None:
    """Whoever can write the checkpoint: they become folders, and `orders/0` is an entry of the source's log."""
    world = batches(tmp_path)
    before = world.files()
    path = world.root / "checkpoint" / RENAMED / f"0{BEGUN}"
    path.parent.mkdir(parents=True)
    word = encode_record({"old": old, "new": new})
    path.write_bytes(word)
    if recorded:
        step = {"step": "write", "path": f"{RENAMED}/0{BEGUN}", "text": word.decode(), "why": "", "after": None}
        log = world.checkpoint.maintenance
        log.end(log.begin(command="x", by="y", started_ms=1, steps=[step]), outcome="given up", ended_ms=2)
    world.land(2)
    with pytest.raises(CorruptEntryError, match="no names of sources"):
        world.run(2)
    [finding] = [found for found in verify_all(world.checkpoint) if RENAMED in found.where]
    assert "no names of sources" in finding.message
    assert applied(world).problems == ()
    assert not path.exists()
    assert {name: data for name, data in world.files().items() if name in before} == before
    world.run(2)
    is_sound(world)
