"""What people see of the commands that change a checkpoint."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_microbatch.checkpoint.maintenance import MaintenanceLog
from airflow_provider_microbatch.cli.main import main
from airflow_provider_microbatch.stores import Store
from airflow_provider_microbatch.stores.location import open_store
from airflow_provider_microbatch.upkeep.commands.draft import Draft
from airflow_provider_microbatch.upkeep.commands.steps import PutAway
from tests.execution.intervals import IntervalWorld, hour
from tests.execution.maintaining import expire, filled, killed_at
from tests.execution.world import CODE, Killed, World, run_identity
from tests.support.inline_engine import InlineEngine


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Three batches, all committed."""
    world = World(tmp_path)
    for number in range(3):
        world.land(number)
        world.run(number)
    return world


def microbatch(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    status = main([str(argument) for argument in arguments])
    said = capsys.readouterr()
    return status, said.out, said.err


def test_a_dry_run_prints_the_plan_and_does_nothing(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    location = world.pipeline.checkpoint
    (Path(location) / "commits" / "1").unlink()
    before = world.files()
    status, out, _ = microbatch(capsys, "repair", location, "--dry-run")
    assert status == 0
    assert out.splitlines() == [
        "step   what       why",
        "-----  ---------  -------------------------------------",
        "write  commits/1  batch 1 is in the table, by attempt 1",
        f"{location}: 1 step, dry run: nothing was done",
    ]
    assert world.files() == before
    status, applied, _ = microbatch(capsys, "repair", location)
    assert (status, applied) == (0, out.replace("1 step, dry run: nothing was done", "1 step done"))
    assert microbatch(capsys, "repair", location)[:2] == (0, f"{location}: nothing to do\n")
    assert microbatch(capsys, "check", location)[0] == 0


def test_what_cannot_be_repaired_has_exit_status_1_and_names_the_command(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    location = world.pipeline.checkpoint
    (Path(location) / "offsets" / "2").write_bytes(b"")
    status, out, _ = microbatch(capsys, "repair", location)
    assert status == 1
    assert f"{location}: nothing to do; 1 left that this command cannot mend" in out
    [command] = [part for part in out.split("`") if part.startswith("microbatch rewind")]
    assert microbatch(capsys, *command.split()[1:])[0] == 0
    assert world.table() == {0: [0], 1: [1]}
    world.run(3)
    assert world.table() == {0: [0], 1: [1], 2: [2]}


def test_rewind_says_what_it_needs(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    location = world.pipeline.checkpoint
    status, out, err = microbatch(capsys, "rewind", location, "--to", 0)
    assert (status, out) == (2, "")
    assert "--drop-output" in err
    status, out, _ = microbatch(capsys, "rewind", location, "--to", 0, "--drop-output", "--dry-run")
    assert status == 0
    assert [line.split("  ")[0] for line in out.splitlines()[2:8]] == ["drop output"] * 2 + ["put away"] * 4
    assert "note: readers of the table miss these batches until they have run again" in out
    assert world.table().keys() == {0, 1, 2}
    assert microbatch(capsys, "rewind", location, "--to", 0, "--drop-output")[0] == 0
    assert world.table().keys() == {0}


def test_json(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = microbatch(capsys, "rewind", world.pipeline.checkpoint, "--to", 1, "--drop-output", "--json")
    told = json.loads(out)
    assert (told["command"], told["dry_run"], told["finished"]) == ("rewind --to 1 --drop-output", False, None)
    assert [step["step"] for step in told["steps"]] == ["drop output", "put away", "put away"]


def test_a_live_attempt_is_named(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.land(3)
    batch = world.execution.plan(run_identity(3))
    assert batch is not None
    world.execution.open_attempt(key=batch.key, run=run_identity(3), code=CODE, engine=InlineEngine())
    status, _, err = microbatch(capsys, "rewind", world.pipeline.checkpoint, "--to", 2)
    assert status == 2
    assert "is in use: live/3 attempt 1" in err
    assert microbatch(capsys, "rewind", world.pipeline.checkpoint, "--to", 2, "--dry-run")[0] == 0


def test_an_interrupted_command_is_shown_and_finished(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    location = world.pipeline.checkpoint
    assert killed_at(6, lambda: main(["rewind", location, "--to", "0", "--drop-output"]))
    capsys.readouterr()
    for path in Path(location).glob("maintenance/leases/*/*"):
        path.unlink()
    status, out, _ = microbatch(capsys, "repair", location, "--dry-run")
    assert status == 0
    assert "`microbatch rewind --to 0 --drop-output` (by " in out
    status, _, err = microbatch(capsys, "repair", location)
    assert status == 2
    assert "type it again" in err
    assert world.table() == {0: [0], 1: [1], 2: [2]}
    status, out, _ = microbatch(capsys, "rewind", location, "--to", "0", "--drop-output")
    assert status == 0
    assert "finished what `microbatch rewind --to 0 --drop-output`" in out
    assert world.checkpoint.offset_log.ids() == [0]


def killed_before_a_file_is_put_away(*arguments: object) -> None:
    """The command dies when its steps come to that, as a while ago."""
    real = PutAway.apply

    def apply(step: PutAway, store: Store, **given: Any) -> None:
        if not isinstance(store, Draft):
            raise Killed
        real(step, store, **given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PutAway, "apply", apply)
        with pytest.raises(Killed):
            main([str(argument) for argument in arguments])


def test_a_rewind_that_was_killed_is_done_when_it_is_typed_again_though_its_lane_is_gone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A database has no lane without entries, and by then the table has none of it either."""
    world = IntervalWorld(tmp_path, checkpoint=f"sqlite://{tmp_path}/checkpoint.db")
    world.land_at(0.5, 7)
    world.backfill(hour(0), 0)
    (_, lane) = world.checkpoint.lanes()
    words = ("rewind", world.pipeline.checkpoint, "--to", -1, "--drop-output", "--lane", lane)
    killed_before_a_file_is_put_away(*words)
    monkeypatch.setattr(MaintenanceLog, "held_seconds", lambda *_: 0)
    capsys.readouterr()
    status, out, err = microbatch(capsys, *words)
    assert (status, err) == (0, "")
    assert f"finished what `microbatch rewind --to -1 --drop-output --lane {lane}`" in out
    assert out.endswith(": done\n")
    assert (world.rows(), world.checkpoint.lanes()) == ({}, ["live"])


def test_what_was_finished_is_named_also_by_a_command_that_is_refused_then(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    location = world.pipeline.checkpoint
    world.land(3)
    world.execution.plan(run_identity(3))
    killed_before_a_file_is_put_away("rewind", location, "--to", 2)
    expire(world)
    capsys.readouterr()
    status, out, err = microbatch(capsys, "rewind", location, "--to", 7)
    assert status == 2
    assert "7" in err
    assert out.startswith("finished what `microbatch rewind --to 2` (by ")
    assert world.checkpoint.offset_log.ids() == [0, 1, 2]


@pytest.mark.parametrize(
    "arguments",
    [
        ["repair"],
        ["rewind", "--to", "0"],
        ["set-offset", "--source", "orders", "--offset", "null"],
        ["export", "/nowhere"],
        ["import", "/nowhere", "--pipeline", "orders"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_path_without_a_checkpoint_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    command, *more = arguments
    status, _, err = microbatch(capsys, command, tmp_path / "nothing", *more)
    assert status == 2
    assert "is not a checkpoint" in err
    assert not (tmp_path / "nothing").exists()


@pytest.mark.parametrize("to", ["-2", "last", "1.5"])
def test_a_batch_that_is_none_is_refused(world: World, to: str) -> None:
    with pytest.raises(SystemExit) as refused:
        main(["rewind", world.pipeline.checkpoint, f"--to={to}"])
    assert refused.value.code == 2


def test_set_offset_names_what_it_costs(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    location = world.pipeline.checkpoint
    wanted = ["set-offset", location, "--source", "orders", "--offset", '{"logOffset": 0}']
    status, out, err = microbatch(capsys, *wanted)
    assert (status, out) == (2, "")
    assert "(2 files, 20 bytes) is in the table and would be in it twice" in err
    status, out, _ = microbatch(capsys, *wanted, "--allow-reread")
    assert status == 0
    assert 'the next batch begins source \'orders\' at {"logOffset":0}, after {"logOffset":2}' in out
    status, out, _ = microbatch(capsys, "log", location)
    assert out.splitlines()[-1].split()[:8] == ["3", "set_aside", "-", "orders", "2", "→", "0", "-"]
    world.run(4)
    assert world.table()[4] == [1]


def test_an_offset_that_is_no_json_is_refused(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["set-offset", world.pipeline.checkpoint, "--source", "orders", "--offset", "logOffset 7"])
    assert "is no JSON" in capsys.readouterr().err


def test_export_and_import(world: World, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    location, copy = world.pipeline.checkpoint, tmp_path / "copy"
    status, out, _ = microbatch(capsys, "export", location, copy, "--dry-run")
    assert status == 0
    assert f"copy  {location} to {copy}" in out
    assert "note: pause the DAG for good before the query starts" in out
    assert not copy.exists()
    assert microbatch(capsys, "export", location, copy)[0] == 0
    assert microbatch(capsys, "check", copy)[0] == 0
    back = tmp_path / "back"
    assert microbatch(capsys, "import", copy, back, "--pipeline", "orders", "--dry-run")[0] == 0
    assert not back.exists()
    assert microbatch(capsys, "import", copy, back, "--pipeline", "orders")[0] == 0
    assert microbatch(capsys, "log", back)[1] == microbatch(capsys, "log", location)[1]
    status, _, err = microbatch(capsys, "import", copy, back, "--pipeline", "orders")
    assert status == 2
    assert "is not empty" in err


def test_what_was_killed_after_its_last_step_is_said_to_be_done_when_it_is_typed_again(
    world: World, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    location, copy = world.pipeline.checkpoint, tmp_path / "copy"
    for words in (["export", location, copy], ["import", copy, tmp_path / "back", "--pipeline", "orders"]):
        assert microbatch(capsys, *words)[0] == 0
        status, _, err = microbatch(capsys, *words)
        assert status == 2
        assert re.search(rf"is not empty: .*`microbatch {words[0]} {copy}.*` .* was done there to its end", err), err
    err = microbatch(capsys, "export", location, tmp_path / "back")[2]
    assert "is not empty" in err
    assert "was done" not in err


def test_what_was_killed_half_way_and_given_up_is_not_said_to_be_done(
    world: World, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    location, copy, moment = world.pipeline.checkpoint, tmp_path / "copy", 14
    while killed_at(moment, lambda: microbatch(capsys, "export", location, copy)):
        expire(world)
        if world.checkpoint.maintenance.unfinished() is None:
            break
        assert microbatch(capsys, "repair", location, "--give-up")[0] == 0
        status, _, err = microbatch(capsys, "export", location, copy)
        assert status == 2
        assert "is not empty" in err
        assert "was done" not in err
        shutil.rmtree(copy)
        moment += 4
    assert moment > 14


def test_an_older_copy_that_was_whole_is_not_taken_for_the_one_that_is_there(
    world: World, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    location, copy = world.pipeline.checkpoint, tmp_path / "copy"
    assert microbatch(capsys, "export", location, copy)[0] == 0
    shutil.rmtree(copy)
    assert killed_at(14, lambda: microbatch(capsys, "export", location, copy))
    expire(world)
    assert microbatch(capsys, "repair", location, "--give-up")[0] == 0
    assert "was done" not in microbatch(capsys, "export", location, copy)[2]


def test_a_copy_of_before_a_batch_is_not_said_to_be_one_of_now(
    world: World, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    location, copy = world.pipeline.checkpoint, tmp_path / "copy"
    assert microbatch(capsys, "export", location, copy)[0] == 0
    world.land(90)
    world.run(90)
    expire(world)
    assert "was done" not in microbatch(capsys, "export", location, copy)[2]


def maintenance_of(location: Path | str) -> Store:
    return open_store(str(location)).scoped("maintenance")


def contents(folder: Path) -> dict[str, bytes]:
    """All files but what a command writes about itself."""
    found = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    return {path: data for path, data in found.items() if not path.startswith("maintenance/")}


def test_what_an_export_that_was_killed_may_not_be_finished_in_is_refused(
    world: World, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    location, place = world.pipeline.checkpoint, tmp_path / "query"
    assert killed_at(14, lambda: microbatch(capsys, "export", location, place))
    expire(world)
    capsys.readouterr()
    assert world.checkpoint.maintenance.unfinished() is not None
    status, _, err = microbatch(capsys, "export", location, tmp_path / "another")
    assert status == 2
    assert f"`microbatch export {place}` is yours, run it again as it was typed" in err
    shutil.rmtree(place)
    other = filled(World(tmp_path / "other"), 1).pipeline.checkpoint
    shutil.copytree(other, place)
    status, _, err = microbatch(capsys, "export", location, place)
    assert status == 2
    assert "is there and is another one" in err
    assert (place / "metadata").read_bytes() == (Path(other) / "metadata").read_bytes()


def test_giving_up_what_a_repair_would_finish_says_so(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    location = world.pipeline.checkpoint
    assert killed_at(12, lambda: microbatch(capsys, "rename-source", location, "orders", "sales"))
    expire(world)
    capsys.readouterr()
    note = f"note: `microbatch repair {location}` would finish `microbatch rename-source orders sales`"
    status, out, _ = microbatch(capsys, "repair", location, "--give-up", "--dry-run")
    assert status == 0
    assert note in out
    assert "Without --dry-run they are given up first" in out
    status, out, _ = microbatch(capsys, "repair", location, "--give-up")
    assert status == 0
    assert out.startswith(note)
    assert "is given up" in out


def test_giving_up_what_no_repair_would_finish_says_nothing_of_it(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    """What lies in the command's way by now keeps its steps from being done."""
    location = world.pipeline.checkpoint
    assert killed_at(12, lambda: microbatch(capsys, "rename-source", location, "orders", "sales"))
    expire(world)
    capsys.readouterr()
    in_the_way = Path(location) / "microbatch" / "renamed" / "0"
    in_the_way.write_bytes(b"v1\n{}")
    status, out, _ = microbatch(capsys, "repair", location, "--give-up", "--dry-run")
    assert status == 0
    assert "would finish" not in out


def test_the_checkpoint_of_another_lane_is_refused(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = microbatch(capsys, "rewind", world.pipeline.checkpoint, "--to", 0, "--lane", "backfill")
    assert status == 2
    assert "has no lane 'backfill'; it has live" in err


def test_a_command_that_was_killed_before_its_first_step_is_given_up_and_named(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    location = world.pipeline.checkpoint

    def killed(*_: object, **__: object) -> bool:
        raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MaintenanceLog, "allow", killed)
        with pytest.raises(Killed):
            main(["rewind", location, "--to", "0", "--drop-output"])
    expire(world)
    capsys.readouterr()
    status, out, _ = microbatch(capsys, "repair", location)
    assert status == 0
    assert "`microbatch rewind --to 0 --drop-output`" in out
    assert "killed before its first step: nothing of it was done" in out
    assert world.table() == {0: [0], 1: [1], 2: [2]}


def test_a_command_that_cannot_be_finished_is_given_up_at_the_word_of_a_person(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    location = world.pipeline.checkpoint
    assert killed_at(16, lambda: microbatch(capsys, "rewind", location, "--to", 1, "--drop-output"))
    assert microbatch(capsys, "repair", location, "--give-up")[0] == 2
    expire(world)
    status, out, _ = microbatch(capsys, "repair", location, "--give-up", "--dry-run")
    assert status == 0
    assert "would finish" not in out, "it takes batches out of the table, which a repair does not"
    assert world.checkpoint.maintenance.unfinished() is not None
    status, out, _ = microbatch(capsys, "repair", location, "--give-up")
    assert status == 0
    assert "`microbatch rewind --to 1 --drop-output`" in out
    assert "is given up" in out
    assert world.checkpoint.maintenance.unfinished() is None
    status, out, _ = microbatch(capsys, "repair", location, "--give-up")
    assert (status, out) == (0, f"{location}: nothing to do\n")
    status, out, _ = microbatch(capsys, "check", location)
    assert status == 1, "its output was taken out, and its entries were not moved away"
    assert "live/2" in out
    assert microbatch(capsys, "rewind", location, "--to", 1, "--drop-output")[0] == 0
    world.run(3)
    assert world.table() == {0: [0], 1: [1], 2: [2]}
