"""How long files of state are kept, and what is said where they are gone."""

from __future__ import annotations

import errno
import json
import os
import re
import shlex
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.entries import JOB
from airflow_provider_microbatch.checkpoint.key import LIVE, BatchKey
from airflow_provider_microbatch.cli.main import main
from airflow_provider_microbatch.exceptions import (
    CheckpointError,
    EngineError,
    MaintenanceError,
    SinkError,
    TransformError,
)
from airflow_provider_microbatch.execution import kept_states, stateful
from airflow_provider_microbatch.execution.told_state import published_result
from airflow_provider_microbatch.runtime.failure import BatchFailure
from airflow_provider_microbatch.runtime.job import Job
from airflow_provider_microbatch.runtime.streaming import SNAPSHOT_EVERY
from airflow_provider_microbatch.sinks import OpenSink
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.stores.location import open_store
from airflow_provider_microbatch.upkeep.commands.state_away import PutStateAway
from airflow_provider_microbatch.upkeep.commands.stored_steps import read_steps
from tests.execution.maintaining import applied, expire_all, planned, rewind
from tests.state.counting import CountingWorld


def batches_with_state(world: CountingWorld) -> list[int]:
    return sorted(int(file.name.partition("_")[0]) - 1 for file in (world.root / "checkpoint" / "state").rglob("*_*"))


def make(world: CountingWorld, number: int) -> None:
    """A batch."""
    world.batch(number, head=number + 1)


def lose(root: Path) -> None:
    """All files of state are gone."""
    for file in (root / "checkpoint" / "state").rglob("*_*"):
        file.unlink()


def tell(origin: str, error: str) -> Callable[[Job], None]:
    """What Spark does where an attempt has failed: it tells why, and ends."""

    def fail(job: Job) -> None:
        report = Path(job.stage.report.removeprefix("file://")) / "_error" / "part-0.txt"
        report.parent.mkdir(parents=True)
        report.write_text(json.dumps(BatchFailure(origin, error).report()))
        raise EngineError("spark-submit ended with 1")

    return fail


def test_state_is_kept_as_long_as_the_logs_keep_its_batch(tmp_path: Path) -> None:
    """What retention leaves, somebody may rewind to: without its state the pipeline would not go on from there."""
    world = CountingWorld(tmp_path, min_batches_to_retain=2)
    make(world, 0)
    unfinished = BatchKey(LIVE, 0), 7
    world.checkpoint.leases.begin(*unfinished, seconds=60)
    last = 2 * SNAPSHOT_EVERY
    for number in range(1, last):
        make(world, number)

    assert world.checkpoint.commit_log.ids() == list(range(last))
    assert batches_with_state(world) == list(range(last))
    world.checkpoint.leases.forget(*unfinished)
    make(world, last)
    assert world.checkpoint.commit_log.ids() == [last - 1, last]
    assert batches_with_state(world) == [last - 1, last]


def with_few_states(root: Path, monkeypatch: pytest.MonkeyPatch) -> CountingWorld:
    """A pipeline whose logs keep batches 0 to 23, and its folder the states of 19 to 23 alone."""
    monkeypatch.setattr(stateful, "STATES_KEPT", 3)
    world = CountingWorld(root)
    for number in range(24):
        make(world, number)
    assert world.checkpoint.commit_log.ids() == list(range(24))
    assert batches_with_state(world) == [19, 20, 21, 22, 23]
    return world


def test_a_rewind_to_a_batch_whose_state_is_gone_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What came after it would be taken out of the table, and nothing would go on from there."""
    world = with_few_states(tmp_path, monkeypatch)
    with pytest.raises(
        MaintenanceError,
        match=r"such as 13_.* Of those whose state is there batch 19 the oldest after it: rewind to one of these; or "
        r"`microbatch rewind \S*checkpoint --to -1 --drop-output` has all read again",
    ):
        planned(world, rewind(12))
    assert len(world.table()) == 24
    applied(world, rewind(20))
    world.run(30, world.engine())
    assert world.table()[21] == [22], "as it had been"


def test_who_asks_for_rows_to_be_erased_is_told_that_only_the_newest_batch_can_be_cleared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    world = with_few_states(tmp_path, monkeypatch)
    assert main(["forget", world.pipeline.checkpoint, "--where", "id = 3"]) == 0
    out = capsys.readouterr().out
    assert "only its newest batch can be cleared" in out
    assert f"`microbatch rewind {world.pipeline.checkpoint} --to -1 --drop-output`" in out


def test_the_newest_batch_before_it_that_has_state_is_named_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = with_few_states(tmp_path, monkeypatch)
    next((tmp_path / "checkpoint" / "state").rglob("22_*")).unlink()
    with pytest.raises(MaintenanceError, match=r"whose state is there batch 20 is the newest before it: rewind to"):
        planned(world, rewind(22))


@pytest.mark.parametrize(
    ("number", "way"),
    [
        (22, r"contradict them. `microbatch rewind \S+ --to 21` shows what it would undo"),
        (12, r"No rewind goes back to batch 11: .* all batches are taken back: `microbatch rewind \S+ --to -1` shows"),
    ],
)
def test_a_clear_that_later_batches_are_in_the_way_of_names_a_rewind_that_is_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, way: str
) -> None:
    world = with_few_states(tmp_path, monkeypatch)
    with pytest.raises(CheckpointError, match=way) as refused:
        world.run(number, world.engine(), clear_number=1)
    (named,) = re.findall(r"--to (-?\d+)`", str(refused.value))
    assert planned(world, rewind(int(named))).steps


def test_where_the_state_has_a_gap_the_newest_batch_before_it_is_named(tmp_path: Path) -> None:
    """A change is read with all changes since the last snapshot."""
    world = CountingWorld(tmp_path)
    for number in range(4):
        make(world, number)
    (gone,) = (tmp_path / "checkpoint" / "state").rglob("2_*")
    gone.unlink()
    world.come(5)
    with pytest.raises(CheckpointError, match=rf"such as {gone.stem}: .* --to 0 --drop-output` goes back to batch 0"):
        world.run(4, world.engine(before_stage=tell("read", f"{gone} does not exist")))


def test_an_attempt_that_fails_for_another_reason_says_so(tmp_path: Path) -> None:
    world = CountingWorld(tmp_path)
    make(world, 0)
    world.come(2)

    def fail(job: Job) -> None:
        raise EngineError("the driver was killed")

    with pytest.raises(EngineError, match="the driver was killed"):
        world.run(1, world.engine(before_stage=fail))


@dataclass(frozen=True)
class Topic(FileSink):
    """Nobody takes a batch out of it."""

    @property
    def can_withdraw(self) -> bool:
        return False


def test_no_rewind_is_named_that_would_be_refused(tmp_path: Path) -> None:
    """What is behind the batch that it would go back to stays in its table."""
    world = CountingWorld(tmp_path, sink=Topic(str(tmp_path / "lake"), format="json"))
    for number in range(3):
        make(world, number)
    (gone,) = (tmp_path / "checkpoint" / "state").rglob("3_*")
    gone.unlink()
    world.come(4)
    with pytest.raises(CheckpointError, match=f"such as {gone.stem}: .*: begin a checkpoint and a table of their own"):
        world.run(3, world.engine(before_stage=tell("read", f"{gone} does not exist")))


def test_a_replay_whose_state_is_gone_leaves_its_batch_as_it_is(tmp_path: Path) -> None:
    world = CountingWorld(tmp_path)
    make(world, 0)
    world.batch(1, head=2)
    (gone,) = (tmp_path / "checkpoint" / "state").rglob("1_*")
    gone.unlink()
    with pytest.raises(CheckpointError, match=f"such as {gone.stem}: .* The batch stays as it is. Bring the files"):
        world.run(1, world.engine(before_stage=tell("read", f"{gone} does not exist")), clear_number=1)


@pytest.mark.parametrize("what", ["a folder", "the log", "a table"])
def test_a_look_for_the_state_that_fails_hides_no_failure_of_the_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """That says what is to be mended, and counts for setting the batch aside."""
    world = CountingWorld(tmp_path)
    world.batch(0, head=1)
    lose(tmp_path)
    world.come(2)

    def away(*_: object) -> None:
        raise SinkError("its server is away")

    def fail(job: Job) -> None:
        if what == "a folder":
            shutil.rmtree(tmp_path / "checkpoint" / "state")
            (tmp_path / "checkpoint" / "state").symlink_to(tmp_path)
        elif what == "the log":  # retention takes offsets before commits, and may die between them
            (tmp_path / "checkpoint" / "offsets" / "0").unlink()
        else:
            monkeypatch.setattr(FileSink, "contains", away)
        tell("transform", "no such column")(job)

    with pytest.raises(TransformError, match="no such column"):
        world.run(1, world.engine(before_stage=fail))
    end = world.checkpoint.attempts.ended(BatchKey(LIVE, 1), 1)
    assert end is not None
    assert end.cause == JOB


def test_where_both_are_told_the_failure_of_the_batch_is_beside(tmp_path: Path) -> None:
    world = CountingWorld(tmp_path)
    world.batch(0, head=1)
    lose(tmp_path)
    world.come(2)
    with pytest.raises(CheckpointError, match="of which files are not in") as lost:
        world.run(1, world.engine(before_stage=tell("transform", "no such column")))
    assert "no such column" in str(lost.value.__cause__)


def test_nobody_looks_for_state_behind_a_spark_that_was_killed(tmp_path: Path) -> None:
    """By a stop, say, which is to be on record before Airflow kills the task."""
    world = CountingWorld(tmp_path)
    world.batch(0, head=1)
    lose(tmp_path)
    world.come(2)

    def kill(job: Job) -> None:
        raise EngineError("it was stopped: the task was told to end")

    with pytest.raises(EngineError, match="told to end"):
        world.run(1, world.engine(before_stage=kill))


@pytest.mark.parametrize("batches", [12, 36])
def test_the_table_is_asked_of_batches_alone_whose_files_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batches: int
) -> None:
    """A log may be long, and each try of a batch that finds no state looks anew."""
    world = CountingWorld(tmp_path)
    for number in range(batches):
        make(world, number)
    lose(tmp_path)
    world.come(batches + 1)
    asked = list[BatchKey]()

    def counted(checkpoint: Checkpoint, key: BatchKey, sinks: Iterable[OpenSink]) -> Mapping[str, Any]:
        asked.append(key)
        return published_result(checkpoint, key, sinks)

    monkeypatch.setattr(kept_states, "published_result", counted)
    with pytest.raises(CheckpointError, match=r"takes all batches back, since the state of none is there"):
        world.run(batches, world.engine(before_stage=tell("read", "it does not exist")))
    assert {key.id for key in asked} == {batches - 1}


def test_a_rewind_to_before_the_first_batch_puts_state_away(tmp_path: Path) -> None:
    """What operators have left of themselves would be in the way of others. A command that was killed does it once."""
    world = CountingWorld(tmp_path)
    for number in range(3):
        make(world, number)
    plan = planned(world, rewind(-1))
    (step,) = (step for step in plan.steps if isinstance(step, PutStateAway))
    applied(world, rewind(-1))
    assert batches_with_state(world) == []
    assert sorted(file.name[0] for file in (tmp_path / "checkpoint" / "repaired").rglob("*/state/0/0/*")) == list("123")
    world.run(9, world.engine())
    assert batches_with_state(world) == [0]

    store = open_store(str(tmp_path / "checkpoint"))
    (aside,) = (tmp_path / "checkpoint" / "repaired").glob("*/state")
    done = replace(step, target=f"repaired/{aside.parent.name}/state")
    done.apply(store, is_over=lambda: False)
    assert batches_with_state(world) == [0]


@pytest.mark.parametrize("target", ["../elsewhere", "repaired/../../state", "lake/state", "repaired/x/state/0", 7])
def test_no_record_says_where_state_is_put(tmp_path: Path, target: Any) -> None:
    world = CountingWorld(tmp_path)
    make(world, 0)
    step = {"step": "put state away", "target": target, "why": "the first batch begins with none"}
    world.checkpoint.maintenance.begin(command="rewind", by="me@here", started_ms=0, steps=[step])
    (left,) = filter(None, [world.checkpoint.maintenance.unfinished()])
    with pytest.raises(MaintenanceError, match="is no place where a command puts state"):
        read_steps(left, open_store(str(tmp_path / "checkpoint")), told=())


def test_state_is_put_behind_no_link(tmp_path: Path) -> None:
    world = CountingWorld(tmp_path)
    make(world, 0)
    (tmp_path / "checkpoint" / "repaired").symlink_to(tmp_path)
    step = PutStateAway(target="repaired/20260101T000000.000/state", why="the first batch begins with none")
    with pytest.raises(MaintenanceError, match="is a link, and none of a command's"):
        step.apply(open_store(str(tmp_path / "checkpoint")), is_over=lambda: False)
    assert batches_with_state(world) == [0]


def test_state_that_this_user_may_not_move_is_told_of_before_anything_is_taken_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark's driver has made the folder, and may be another user's."""
    world = CountingWorld(tmp_path)
    make(world, 0)
    state, access = tmp_path / "checkpoint" / "state", os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != state and access(path, mode))
    told = rf"{state} is user {state.stat().st_uid}'s, and user {os.geteuid()}, .* Nothing was done.*chown -R"
    with pytest.raises(MaintenanceError, match=told):
        applied(world, rewind(-1))
    assert list(world.table()) == [0]
    monkeypatch.undo()
    applied(world, rewind(-1))
    assert batches_with_state(world) == []


def test_state_that_is_mounted_is_moved_by_hand_before_the_first_batch_is_rewound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = CountingWorld(tmp_path)
    make(world, 0)
    state, stat = tmp_path / "checkpoint" / "state", Path.stat

    def mounted(path: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        found = stat(path, follow_symlinks=follow_symlinks)
        return os.stat_result((*found[:2], found.st_dev + 1, *found[3:])) if path == state else found

    monkeypatch.setattr(Path, "stat", mounted)
    with pytest.raises(MaintenanceError, match=r"mounted from elsewhere.* Nothing was done") as refused:
        applied(world, rewind(-1))
    moved = re.findall(r"mv (\S+)/\* ", str(refused.value))
    assert moved == [str(state)]
    (tmp_path / "elsewhere").mkdir()
    for entry in Path(moved[0]).iterdir():
        entry.rename(tmp_path / "elsewhere" / entry.name)
    expire_all(world.root)
    applied(world, rewind(-1))
    make(world, 1)
    assert batches_with_state(world) == [0]


def test_a_rewind_that_could_not_put_state_away_is_finished_once_it_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = CountingWorld(tmp_path)
    make(world, 0)
    state, renamed = tmp_path / "checkpoint" / "state", Path.rename

    def refuse(path: Path, target: Path) -> Path:
        if path == state:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return renamed(path, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", refuse)
        told = (
            rf"user {os.geteuid()} could not move {state} to .*Permission denied.* chown -R .* or move it by hand: mv"
        )
        with pytest.raises(MaintenanceError, match=told) as refused:
            applied(world, rewind(-1))
    assert batches_with_state(world) == [0]
    _, source, target = shlex.split(re.findall(r"by hand: (mv .*?)\. No run begins", str(refused.value))[0])
    Path(source).rename(target)
    expire_all(world.root)
    applied(world)
    assert batches_with_state(world) == []
    world.run(9, world.engine())
    assert batches_with_state(world) == [0]
