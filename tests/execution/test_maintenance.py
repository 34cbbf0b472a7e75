"""A command that changes the checkpoint keeps everybody else out, and one that is killed is finished by the next."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.checkpoint.maintenance import HOLD_SECONDS, MaintenanceLog
from airflow_provider_microbatch.checkpoint.verify import find_unfinished
from airflow_provider_microbatch.exceptions import CorruptEntryError, EngineError, MaintenanceError
from airflow_provider_microbatch.execution.engine import EngineState, Handle
from airflow_provider_microbatch.upkeep.commands.apply import Applier
from airflow_provider_microbatch.upkeep.commands.draft import Draft
from airflow_provider_microbatch.upkeep.commands.plan import Plan
from airflow_provider_microbatch.upkeep.commands.repair import plan_repair
from airflow_provider_microbatch.upkeep.commands.steps import (
    DropOutput,
    PutAway,
    PutAwayLate,
    Step,
    step_from_dict,
)
from tests.execution.maintaining import (
    applied,
    applier,
    checkpoint_files,
    expire,
    filled,
    killed_at,
    planned,
    rewind,
    rows,
)
from tests.execution.sleepers import Sleep, killed
from tests.execution.world import CODE, Killed, World, run_identity
from tests.support.inline_engine import InlineEngine


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Three batches of one row each, all committed; something for `repair` and for `rewind`."""
    return filled(World(tmp_path), 3)


def test_a_run_that_begins_meanwhile_is_refused_and_leaves_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looked before the marker was there; its attempt looks again, and the stage never begins."""
    world.land(3)
    batch = world.execution.plan(run_identity(3))
    assert batch is not None
    begin = MaintenanceLog.begin

    def begin_then_run(self: MaintenanceLog, **kwargs: object) -> object:
        begun = begin(self, **kwargs)  # type: ignore[arg-type]
        with pytest.raises(MaintenanceError, match="is being changed by"):
            world.execution.open_attempt(key=batch.key, run=run_identity(3), code=CODE, engine=InlineEngine())
        return begun

    monkeypatch.setattr(MaintenanceLog, "begin", begin_then_run)
    applied(world, rewind(2))
    assert world.checkpoint.offset_log.latest_id() == 2
    assert world.checkpoint.leases.unfinished() == []
    world.run(4)
    assert rows(world) == [0, 1, 2, 3]


def test_a_checkpoint_that_changed_since_the_plan_was_shown_is_left_alone(world: World) -> None:
    shown = planned(world, rewind(1), at_ms=1)
    assert planned(world, rewind(1), at_ms=1) == shown
    world.land(3)
    world.run(3)
    with pytest.raises(MaintenanceError, match="changed since the plan was made"):
        applier(world).apply(lambda: planned(world, rewind(1), at_ms=1), by="me@here", shown=shown)
    assert world.table().keys() == {0, 1, 2, 3}
    assert world.run(4) is None, "and the pipeline is free again"


def test_a_live_attempt_keeps_the_command_out(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.land(3)
    batch = world.execution.plan(run_identity(3))
    assert batch is not None
    world.execution.open_attempt(key=batch.key, run=run_identity(3), code=CODE, engine=InlineEngine())
    before = world.files()
    with pytest.raises(MaintenanceError, match=r"is in use: live/3 attempt 1 \(its lease runs"):
        applied(world, rewind(1))
    assert world.files() == before
    world.expire_leases()
    monkeypatch.setattr(InlineEngine, "poll", lambda self, handle: EngineState.RUNNING)
    with pytest.raises(MaintenanceError, match=r"live/3 attempt 1 \(inline says that it runs;"):
        applied(world, rewind(1))

    def poll(self: InlineEngine, handle: Handle) -> EngineState:
        raise EngineError("the resource manager does not answer")

    monkeypatch.setattr(InlineEngine, "poll", poll)
    with pytest.raises(EngineError):
        applied(world, rewind(1))
    world.expire_leases()
    monkeypatch.setattr(InlineEngine, "poll", lambda self, handle: EngineState.UNKNOWN)
    world.checkpoint.leases.forget(BatchKey("live", 3), 1)
    applied(world, rewind(1))


def test_a_command_that_is_alive_keeps_another_one_out(world: World) -> None:
    assert killed_at(6, lambda: applied(world, rewind(0)))
    with pytest.raises(MaintenanceError, match=r"is at \S+[\s\S]*run this again in"):
        applied(world, plan_repair)
    expire(world)
    applied(world, plan_repair)
    assert world.checkpoint.offset_log.ids() == [0], "the one that was killed is finished first"


def test_sensor_janitor_and_check_see_it(world: World) -> None:
    world.land(3)
    assert killed_at(6, lambda: applied(world, rewind(0)))
    decision = world.execution.should_fire()
    assert not decision.fire
    assert decision.reason == "the checkpoint is being changed by `microbatch a command --drop-output`"
    with pytest.raises(MaintenanceError):
        world.janitor()
    assert [finding.kind for finding in find_unfinished(world.checkpoint)] == ["maintenance"]
    expire(world)
    with pytest.raises(MaintenanceError, match="If it was killed, `microbatch repair"):
        world.execution.should_fire()


def test_what_cannot_be_finished_says_how_to_go_on(world: World) -> None:
    assert killed_at(6, lambda: applied(world, rewind(0)))
    expire(world)
    (world.root / "checkpoint" / "commits" / "1").write_bytes(b"somebody was here")
    with pytest.raises(
        MaintenanceError, match=r"stopped half way[\s\S]*commits/1 was changed[\s\S]*repair \S+ --give-up"
    ):
        applied(world, plan_repair)
    expire(world)
    applier(world).give_up(by="me@here")
    assert world.checkpoint.maintenance.unfinished() is None
    assert '"outcome":"given up by me@here"' in (world.root / "checkpoint" / "maintenance" / "1.end").read_text()


def test_what_was_done_is_on_record(world: World) -> None:
    plan = applied(world, rewind(1))
    folder = world.root / "checkpoint" / "maintenance"
    assert '"by":"me@here"' in (folder / "1").read_text()
    assert '"outcome":"applied"' in (folder / "1.end").read_text()
    for step in plan.steps:
        assert step.what in (folder / "1").read_text() or step.kind == "drop output"


def test_what_is_set_aside_is_kept(world: World) -> None:
    before = checkpoint_files(world.root / "checkpoint")
    applied(world, rewind(1))
    [folder] = (world.root / "checkpoint" / "repaired").iterdir()
    kept = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert kept == {name: before[name] for name in ("offsets/2", "commits/2")}


def test_a_command_that_is_alive_is_not_given_up(world: World) -> None:
    assert killed_at(6, lambda: applied(world, rewind(0)))
    with pytest.raises(MaintenanceError, match="Wait until it has ended"):
        applier(world).give_up(by="me@here")
    assert world.checkpoint.maintenance.unfinished() is not None


def test_a_command_whose_record_is_torn_is_given_up_all_the_same(world: World) -> None:
    assert killed_at(6, lambda: applied(world, rewind(0)))
    expire(world)
    (world.root / "checkpoint" / "maintenance" / "1").write_bytes(b"")
    with pytest.raises(CorruptEntryError):
        applied(world, plan_repair)
    applier(world).give_up(by="me@here")
    assert world.checkpoint.maintenance.check_none() == 1


@pytest.mark.parametrize("torn", [b"", b'v1\n{"seconds":1e999}'])
def test_a_command_whose_lease_is_torn_is_over_when_the_longest_one_is(world: World, torn: bytes) -> None:
    assert killed_at(6, lambda: applied(world, rewind(0)))
    (lease,) = (world.root / "checkpoint/maintenance/leases/maintenance").iterdir()
    lease.write_bytes(torn)
    with pytest.raises(MaintenanceError, match="run this again in"):
        applied(world, plan_repair)
    past = lease.stat().st_mtime - HOLD_SECONDS
    os.utime(lease, (past, past))
    applied(world, plan_repair)
    assert world.checkpoint.offset_log.ids() == [0]


@pytest.mark.parametrize("left", ["1.decided", "1.end"])
def test_a_command_whose_record_somebody_has_removed_keeps_its_number(
    world: World, left: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = world.root / "checkpoint" / "maintenance"
    if left == "1.end":
        applied(world, rewind(1))
        (folder / "1.decided").unlink()
    else:
        with monkeypatch.context() as patch:
            patch.setattr(Applier, "_do", killed)
            with pytest.raises(Killed):
                applied(world, rewind(1))
    (folder / "1").unlink()
    assert (folder / left).exists()
    expire(world)
    world.run(3)
    shown = planned(world, rewind(0))

    def dies() -> Plan:
        raise Killed

    with pytest.raises(Killed):
        applier(world).apply(dies, by="me@here", shown=shown)
    left_behind = world.checkpoint.maintenance.unfinished()
    assert left_behind is not None
    assert left_behind.number == 2
    assert world.checkpoint.maintenance.changed_ms() is not None
    with pytest.raises(MaintenanceError, match="is being changed by"):
        world.run(4)
    expire(world)
    before = world.checkpoint.offset_log.ids()
    finishing = applier(world)
    assert finishing.finish() is None, "it was killed before it had compared its plan"
    assert finishing.given_up is not None
    assert world.checkpoint.offset_log.ids() == before


def test_what_was_decided_of_one_record_is_not_decided_of_another(world: World) -> None:
    log = world.checkpoint.maintenance
    begun = log.begin(command="first", by="me@here", started_ms=1, steps=[])
    assert log.allow(begun, steps=True)
    record = world.root / "checkpoint" / "maintenance" / "1"
    record.write_bytes(record.read_bytes().replace(b"first", b"other"))
    found = log.unfinished()
    assert found is not None
    assert found.command == "other"
    assert not log.allow(found, steps=True)
    assert not log.allow(begun, steps=True)


def test_a_command_that_was_finished_by_another_gives_no_advice_how_to_finish_it(world: World, sleep: Sleep) -> None:
    def finished_by_another() -> None:
        expire(world)
        applied(world, rewind(0))

    sleep.before(DropOutput, "apply", finished_by_another)
    with pytest.raises(MaintenanceError, match="finished by another") as said:
        applied(world, rewind(0))
    assert "half way" not in str(said.value)
    assert "give-up" not in str(said.value)


@pytest.mark.parametrize(("kind", "step"), [("set aside", PutAway), ("set aside if it came late", PutAwayLate)])
def test_a_step_that_an_earlier_version_has_planned_is_done_by_this_one(kind: str, step: type[Step]) -> None:
    fields = {"path": "offsets/1", "target": "repaired/x/offsets/1", "why": "torn"}
    fields |= {"sha256": "0" * 64} if step is PutAway else {}

    assert step_from_dict({"step": kind, **fields}) == step(**fields)


def test_a_step_that_fails_because_another_has_finished_the_command_says_so(world: World, sleep: Sleep) -> None:
    def finished_by_another() -> None:
        expire(world)
        applied(world, rewind(0))
        for number in (3, 4):
            world.run(number)
        shutil.rmtree(world.root / "checkpoint" / "repaired")

    sleep.before(PutAway, "apply", finished_by_another, lambda step, store: not isinstance(store, Draft))
    with pytest.raises(MaintenanceError, match="finished by another") as said:
        applied(world, rewind(0))
    assert "half way" not in str(said.value)
