"""``microbatch copy``: a checkpoint moves, and at every moment one place at most lets anybody go on."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import pytest

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.maintenance import MaintenanceLog
from airflow_provider_microbatch.checkpoint.verify import verify_all
from airflow_provider_microbatch.cli.main import main
from airflow_provider_microbatch.exceptions import (
    AttemptFencedError,
    CheckpointError,
    MaintenanceError,
    MicroBatchError,
    MovedError,
)
from airflow_provider_microbatch.execution.committed import committed
from airflow_provider_microbatch.stores import Store
from airflow_provider_microbatch.stores.location import open_store
from airflow_provider_microbatch.stores.posix import PosixStore
from airflow_provider_microbatch.upkeep.commands.apply import Applier
from airflow_provider_microbatch.upkeep.commands.copy import go_on, is_done, plan_copy
from airflow_provider_microbatch.upkeep.commands.moving import CopyTo, Leave, moving_files
from airflow_provider_microbatch.upkeep.commands.plan import Drafting, Plan
from airflow_provider_microbatch.upkeep.commands.stored_steps import read_steps
from tests.execution.maintaining import applied, filled, killed_at, rewind, rows, slow_place
from tests.execution.world import CODE, World, run_identity
from tests.support import sql
from tests.support.inline_engine import InlineEngine

Place = Callable[[Path], str]


def a_folder(root: Path) -> str:
    return str(root / "elsewhere" / "checkpoint")


PLACES = {"posix": a_folder, "sql-sqlite": sql.in_sqlite, "sql-postgres": sql.in_postgres}


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Three batches of one row each, all committed."""
    return filled(World(tmp_path), 3)


def copied(world: World, target: str) -> Plan | None:
    """As the command line does it."""
    store = open_store(world.pipeline.checkpoint)
    engine = InlineEngine()
    applier = Applier(
        store=store,
        engine_of=lambda name: engine if name == engine.name else None,
        clock_ms=lambda: world.clock,
        told=(target,),
        typed=f"copy {target}",
    )
    moved = Checkpoint(store).maintenance.places.moved()
    if moved is not None and applier.unfinished() is None:
        if not is_done(moved):
            go_on(store, moved, engine_of=lambda name: None)
        return None
    at_ms = world.clock = world.clock + 1
    if applier.finish() is not None:
        return None

    def make() -> Plan:
        return plan_copy(Drafting(store, command=f"copy {target}", at_ms=at_ms, by="me@here"), target=target)

    shown = make()
    applier.apply(make, by="me@here", shown=shown)
    return shown


def at(world: World, location: str) -> World:
    """The same pipeline with another checkpoint."""
    other = World(world.root, checkpoint=location)
    other.clock = world.clock + 1_000
    return other


def entries(store: Store) -> dict[str, bytes | None]:
    """All that moves."""
    return {path: store.get(path) for path in moving_files(store)}


def expire(location: str) -> None:
    """What was killed a while ago counts as dead, at any store."""
    store = open_store(location)
    for folder in ("leases", "maintenance/leases"):
        for lane in store.folders(folder):
            for name in store.list(f"{folder}/{lane}"):
                data = json.loads((store.get(f"{folder}/{lane}/{name}") or b"").splitlines()[-1])
                store.delete(f"{folder}/{lane}/{name}")
                assert data["seconds"] > 0


def lets_go_on(world: World) -> bool:
    """Whether a run may begin there: no command is at it, and the checkpoint is there, with its id."""
    checkpoint = Checkpoint(open_store(world.pipeline.checkpoint))
    try:
        checkpoint.maintenance.check_none()
        return checkpoint.identity() is not None
    except MicroBatchError:
        return False


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_the_pipeline_goes_on_at_the_new_place_and_nobody_at_the_old(world: World, place: Place) -> None:
    target = place(world.root)
    before = entries(open_store(world.pipeline.checkpoint))
    copied(world, target)
    after = entries(open_store(target))
    assert {path: data for path, data in after.items() if path in before} == before
    assert open_store(target).get("metadata") == open_store(world.pipeline.checkpoint).get("metadata")
    new = at(world, target)
    assert verify_all(new.checkpoint) == []
    new.land(3)
    for asked in (
        lambda: world.run(3),
        lambda: world.execution.should_fire(run_identity(3)),
        lambda: world.execution.plan(run_identity(3)),
        lambda: applied(world, rewind(1)),
    ):
        with pytest.raises(MovedError, match=f"has moved to {target}"):
            asked()
    new.run(3)
    assert new.run(4) is None
    assert rows(new) == [0, 1, 2, 3]
    assert copied(world, target) is None, "said again it is done"
    assert rows(new) == [0, 1, 2, 3]


def test_it_comes_back_to_another_folder_with_all_that_ran_meanwhile(world: World) -> None:
    there, back = sql.in_sqlite(world.root), str(world.root / "back")
    copied(world, there)
    new = at(world, there)
    new.land(3)
    new.run(3)
    copied(new, back)
    last = at(new, back)
    with pytest.raises(MovedError, match=f"has moved to {back}"):
        new.run(4)
    last.land(4)
    last.run(4)
    assert rows(last) == [0, 1, 2, 3, 4]
    assert verify_all(last.checkpoint) == []
    shutil.rmtree(world.pipeline.checkpoint)
    copied(last, world.pipeline.checkpoint)
    world.land(5)
    world.run(5)
    assert rows(world) == [0, 1, 2, 3, 4, 5]


@pytest.mark.slow
@pytest.mark.parametrize("given_up", [False, True], ids=["typed again", "given up"])
def test_killed_anywhere_one_place_at_most_goes_on_and_the_next_command_finishes_it(
    tmp_path: Path, given_up: bool
) -> None:
    filled(World(tmp_path / "original"), 2)
    finished, moment, closed = False, -1, 0
    while not finished:
        moment += 4 if given_up else 2  # each world once: behind a change it is mostly as before the next one
        shutil.rmtree(tmp_path / "world", ignore_errors=True)
        shutil.copytree(tmp_path / "original", tmp_path / "world", symlinks=True)
        world = filled_elsewhere(tmp_path / "world", tmp_path / "original")
        target = a_folder(world.root)
        finished = not killed_at(moment, lambda: copied(world, target))  # noqa: B023
        for location in (world.pipeline.checkpoint, target):
            expire(location)
        new = at(world, target)
        old_goes_on, new_goes_on = lets_go_on(world), lets_go_on(new)
        assert not (old_goes_on and new_goes_on), f"both at {moment}"
        closed += not old_goes_on and not new_goes_on
        if given_up and not new_goes_on:
            applier = Applier(
                store=open_store(world.pipeline.checkpoint), engine_of=lambda name: None, clock_ms=lambda: 1
            )
            try:
                applier.give_up(by="me@here")
            except MovedError:
                copied(world, target)
            else:
                assert lets_go_on(world), f"given up at {moment} it goes on"
                with pytest.raises(MicroBatchError):
                    new.run(7) if open_store(target).list("") else copied(world, str(tmp_path / "world" / "checkpoint"))
                shutil.rmtree(tmp_path / "world" / "elsewhere", ignore_errors=True)
                world.land(2)
                world.run(8)
                assert rows(world) == [0, 1, 2], f"given up at {moment}"
                continue
        copied(world, target)
        new.land(2)
        new.run(8)
        assert new.run(9) is None
        assert rows(new) == [0, 1, 2], f"killed at {moment}"
        assert verify_all(at(world, target).checkpoint) == [], f"killed at {moment}"
        with pytest.raises(MovedError):
            world.run(9)
    assert moment > 56
    assert closed > 10


def test_what_ran_at_the_new_place_stays_when_a_command_killed_at_its_very_end_is_typed_again(world: World) -> None:
    """Killed between the opening of the new place and the command's own end, it is not over at the old place."""
    target = a_folder(world.root)
    with mock.patch.object(MaintenanceLog, "end", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        copied(world, target)
    new = at(world, target)
    new.land(3)
    new.run(3)
    before = entries(open_store(target))
    expire(world.pipeline.checkpoint)
    copied(world, target)
    assert entries(open_store(target)) == before
    new.land(4)
    new.run(4)
    assert rows(new) == [0, 1, 2, 3, 4]
    assert verify_all(new.checkpoint) == []


def test_of_two_that_go_on_with_a_move_at_once_the_slower_takes_nothing_from_the_new_place(world: World) -> None:
    target, same = a_folder(world.root), CopyTo._is_same
    store = open_store(world.pipeline.checkpoint)
    with (
        mock.patch.object(Leave, "apply", side_effect=KeyboardInterrupt),
        pytest.raises(KeyboardInterrupt),
    ):
        copied(world, target)
    expire(world.pipeline.checkpoint)
    log = Checkpoint(store).maintenance
    left = log.unfinished()
    assert left is not None
    leave = next(step for step in read_steps(left, store, told=(target,)) if isinstance(step, Leave))
    log.give_up(by="me@here", ended_ms=1)
    with pytest.raises(MaintenanceError, match="Type it again"):
        leave.apply(store, is_over=lambda: True)
    moved = log.places.moved()
    assert moved is not None
    new = at(world, target)

    def slept(self: CopyTo, here: Store, there: Store, is_over: Callable[[], bool]) -> bool:
        with mock.patch.object(CopyTo, "_is_same", same):
            go_on(store, moved, engine_of=lambda name: None)  # the faster one
        new.land(3)
        new.run(3)
        return same(self, here, there, is_over)

    with mock.patch.object(CopyTo, "_is_same", slept):
        go_on(store, moved, engine_of=lambda name: None)
    new.land(4)
    new.run(4)
    assert rows(new) == [0, 1, 2, 3, 4]
    assert verify_all(new.checkpoint) == []


@pytest.mark.parametrize("path", ["offsets/1", "commits/2", "sources/orders/2"])
def test_what_a_copy_has_put_before_it_slept_stays_when_another_has_finished_it(
    world: World, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new place is in use by then, and goes on from that very file."""
    target, real, slept = a_folder(world.root), PosixStore.put_if_absent, list[str]()

    def put(self: PosixStore, name: str, data: bytes) -> bool:
        done = real(self, name, data)
        if name == path and self.location == target and not slept:
            slept.append(name)
            expire(world.pipeline.checkpoint)
            copied(world, target)
        return done

    monkeypatch.setattr(PosixStore, "put_if_absent", put)
    with pytest.raises(MaintenanceError):
        copied(world, target)
    assert slept
    assert open_store(target).get(path) is not None
    new = at(world, target)
    new.land(3)
    new.run(3)
    assert rows(new) == [0, 1, 2, 3]
    assert verify_all(new.checkpoint) == []


def test_it_gives_signs_of_life_for_as_long_as_it_takes(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task waits for it, and nobody does the same beside it."""
    target = a_folder(world.root)
    seen = slow_place(world, target, monkeypatch)
    copied(world, target)
    assert len(seen) > 50, "files that are there already are looked at too"
    assert None not in seen


def test_a_file_that_another_process_of_it_has_put_meanwhile_is_no_other(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, real = a_folder(world.root), PosixStore.put_if_absent

    def put(self: PosixStore, name: str, data: bytes) -> bool:
        if name == "offsets/1" and self.location == target:
            real(self, name, data)
        return real(self, name, data)

    monkeypatch.setattr(PosixStore, "put_if_absent", put)
    copied(world, target)
    assert lets_go_on(at(world, target))


def filled_elsewhere(root: Path, original: Path) -> World:
    """A copy of a world, whose files name the folder that they were made in."""
    for path in root.rglob("*"):
        if path.is_file() and str(original) in (text := path.read_text(errors="replace")):
            path.write_text(text.replace(str(original), str(root)))
    world = World(root)
    world.clock = 1_000_000
    return world


def test_a_copy_that_was_given_up_as_it_left_goes_on_when_it_is_typed_again(world: World) -> None:
    """Whoever gave it up had looked just before: what ran at the old place since then moves too."""
    target = a_folder(world.root)
    leave = Leave.apply

    def late(self: Leave, store: Store, *, is_over: Callable[[], bool]) -> None:
        log = Checkpoint(store).maintenance
        begun = log.unfinished()
        assert begun is not None
        expire(world.pipeline.checkpoint)
        log.give_up(by="me@here", ended_ms=1)
        world.land(3)
        world.run(3)
        leave(self, store, is_over=is_over)

    with mock.patch.object(Leave, "apply", late), pytest.raises(MaintenanceError, match="Type it again"):
        copied(world, target)
    new = at(world, target)
    for one in (world, new):
        with pytest.raises(MovedError):
            one.run(4)
    expire(world.pipeline.checkpoint)
    copied(world, target)
    new.land(4)
    new.run(4)
    assert rows(new) == [0, 1, 2, 3, 4]


def test_what_a_late_run_plans_and_takes_back_does_not_move(world: World) -> None:
    """It had looked before the command began; its entry may be copied before it takes it back."""
    target, same = a_folder(world.root), CopyTo._is_same
    late = PosixStore(Path(world.pipeline.checkpoint))
    rounds = iter(range(10))

    def planned(self: CopyTo, store: Store, there: Store, is_over: Callable[[], bool]) -> bool:
        number = next(rounds)
        if number == 0:
            late.put_if_absent("offsets/3", b"v2 of a late run")
        if number == 1:
            late.delete("offsets/3")
        return same(self, store, there, is_over)

    with mock.patch.object(CopyTo, "_is_same", planned):
        copied(world, target)
    assert next(rounds) >= 3
    assert open_store(target).get("offsets/3") is None
    assert verify_all(at(world, target).checkpoint) == []


def test_an_attempt_that_sleeps_through_it_neither_publishes_nor_commits(world: World) -> None:
    world.land(3)
    execution = world.execution
    batch = execution.plan(run_identity(3))
    assert batch is not None
    engine = InlineEngine()
    attempt = execution.open_attempt(key=batch.key, run=run_identity(3), code=CODE, engine=engine)
    execution.run_attempt(attempt=attempt, job=execution.job(attempt, None), engine=engine, code=CODE)
    target = a_folder(world.root)
    with pytest.raises(MaintenanceError, match="is in use"):
        copied(world, target)
    assert open_store(target).list("") == []
    expire(world.pipeline.checkpoint)
    store = open_store(world.pipeline.checkpoint)
    Checkpoint(store).leases.renew(attempt.key, attempt.epoch, seconds=0)
    copied(world, target)
    with pytest.raises(AttemptFencedError):
        execution.publish(attempt)
    new = at(world, target)
    assert rows(new) == [0, 1, 2]
    expire_at(new)
    new.run(4)
    assert rows(new) == [0, 1, 2, 3]
    assert verify_all(new.checkpoint) == []


def expire_at(world: World) -> None:
    leases = Checkpoint(open_store(world.pipeline.checkpoint)).leases
    for key, epoch in leases.unfinished():
        leases.renew(key, epoch, seconds=0)


def test_no_file_of_a_source_is_given_up_by_the_old_place(world: World) -> None:
    assert list(committed(world.checkpoint, "orders", "live"))
    copied(world, a_folder(world.root))
    assert not list(committed(world.checkpoint, "orders", "live"))


def test_a_plain_copy_of_the_new_place_doubles_nothing(world: World) -> None:
    """Nobody can keep somebody from it. The table knows each batch by its plan too: the second one is refused."""
    target = a_folder(world.root)
    copied(world, target)
    shutil.copytree(target, world.root / "by hand")
    shutil.copytree(world.pipeline.checkpoint, world.root / "old by hand")
    new, stranger = at(world, target), at(world, str(world.root / "by hand"))
    new.land(3)
    new.run(3)
    with pytest.raises(MicroBatchError, match="batch"):
        stranger.run(4)
    assert rows(new) == [0, 1, 2, 3]
    with pytest.raises(MovedError):
        at(world, str(world.root / "old by hand")).run(5)


@pytest.fixture
def refusals(world: World) -> Iterator[Callable[[str, str], None]]:
    before = entries(open_store(world.pipeline.checkpoint))

    def refused(target: str, what: str) -> None:
        with pytest.raises(CheckpointError, match=what):
            copied(world, target)

    yield refused
    assert entries(open_store(world.pipeline.checkpoint)) == before, "nothing was changed"
    assert world.run(9) is None


def test_places_that_are_none_are_refused(world: World, refusals: Callable[[str, str], None]) -> None:
    here = world.pipeline.checkpoint
    refusals(here, "not apart")
    refusals(f"{here}/inside", "not apart")
    refusals(str(Path(here).parent), "not apart")
    refusals(str(world.root / "lake"), "not empty")
    refusals("s4://bucket/x", "no checkpoint store")
    refusals("relative/path", "not absolute")


def test_a_place_with_nothing_in_it_does_not_move(tmp_path: Path) -> None:
    with pytest.raises(MaintenanceError, match="no id"):
        copied(World(tmp_path), a_folder(tmp_path))


def test_a_record_that_names_another_place_is_not_finished(world: World) -> None:
    """Whoever can write the checkpoint could have it copied to where he can read it."""
    store = open_store(world.pipeline.checkpoint)
    elsewhere = str(world.root / "his")
    step = {"source": store.location, "target": elsewhere, "checkpoint": "x", "by": "he", "at_ms": 1, "why": ""}
    log = MaintenanceLog(store.scoped("maintenance"))
    begun = log.begin(command=f"copy {elsewhere}", by="he", started_ms=1, steps=[{"step": "copy to", **step}])
    log.allow(begun, steps=True)
    expire(world.pipeline.checkpoint)
    with pytest.raises(MaintenanceError, match="only the command that names both"):
        copied(world, a_folder(world.root))
    assert not Path(elsewhere).exists()


def test_commands_at_the_old_place_name_the_new_one(
    world: World, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    here, target = world.pipeline.checkpoint, a_folder(world.root)
    assert main(["copy", here, target, "--dry-run"]) == 0
    assert open_store(target).list("") == []
    assert main(["copy", here, target]) == 0
    told = capsys.readouterr().out
    assert "open" in told
    assert f"checkpoint={target!r}" in told
    for command in (
        ["log"],
        ["check"],
        ["show", "0"],
        ["repair"],
        ["rewind", "--to", "1"],
        ["export", str(tmp_path / "x")],
    ):
        name, *more = command
        assert main([name, here, *more]) == 2, command
        assert f"has moved to {target}" in capsys.readouterr().err, command
    assert main(["copy", here, str(world.root / "third")]) == 2
    assert f"has moved to {target}" in capsys.readouterr().err
    assert main(["copy", here, target]) == 0
    assert capsys.readouterr().out.startswith("done: ")
    assert main(["check", target]) == 0
    assert main(["show", target, "2"]) == 0
