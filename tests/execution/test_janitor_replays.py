"""The janitor and replays: what a cleared run published before it died is its answer, whoever is left to say so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_provider_microbatch.checkpoint.log import MetadataLog
from airflow_provider_microbatch.checkpoint.replays import Replays
from airflow_provider_microbatch.cli.main import main
from airflow_provider_microbatch.execution.execution import Execution
from airflow_provider_microbatch.execution.intervals import lane_of
from airflow_provider_microbatch.execution.settle import settle
from airflow_provider_microbatch.job_status import PAUSES
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sources.file import FileSource
from airflow_provider_microbatch.upkeep.janitor import Janitor
from tests.execution.intervals import hour
from tests.execution.maintaining import filled
from tests.execution.sleepers import rewound
from tests.execution.world import CODE, KEY, Killed, World, run_identity
from tests.support.hooks import lines
from tests.support.inline_engine import InlineEngine
from tests.support.leases import end_pauses
from tests.support.whose import expected_batch

LANE = lane_of(hour(0))


def dies(*args: object, **kwargs: object) -> None:
    raise Killed


def replay_that_dies_before_its_answer(world: World, number: int = 0) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Execution, "commit", dies)
        with pytest.raises(Killed):
            world.run(number, clear_number=1)
    world.expire_leases()


def test_a_published_replay_is_answered_though_its_run_is_gone(world: World, diary: Path) -> None:
    """A run that was deleted answers nothing: its attempt would stay unfinished, and retention before its batch."""
    world.options["min_batches_to_retain"] = 2
    world.run(0)
    replay_that_dies_before_its_answer(world)
    assert world.checkpoint.replays.pending(KEY)
    before = world.files()
    assert world.janitor(dry_run=True).of("clear answered") == ["live/0 attempt 2"]
    assert world.files() == before
    assert world.janitor().of("clear answered") == ["live/0 attempt 2"]
    assert lines(diary)[-1] == "diary finished live/0 2"
    assert world.checkpoint.replays.pending(KEY) == []
    assert world.checkpoint.leases.unfinished() == []
    assert world.janitor().actions == []
    for number in (1, 2, 3):
        world.land(number + 1)
        world.run(number)
    assert world.checkpoint.offset_log.ids() == [2, 3]


def definition_removed(world: World) -> None:
    """The one that the only unfinished attempt ran, and no other: as ``rewind`` says of one that a stranger wrote."""
    ((key, epoch),) = world.checkpoint.leases.unfinished()
    attempt = world.checkpoint.attempts.get(key, epoch)
    assert attempt is not None
    assert attempt.definition is not None
    assert world.checkpoint.definitions.forget(attempt.definition)


def test_so_is_one_whose_definition_was_removed(world: World) -> None:
    """It would fail in each run of the janitor, and hold retention. Its hooks are tried again, and given up."""
    world.run(0)
    world.options["min_batches_to_retain"] = 2
    replay_that_dies_before_its_answer(world)
    definition_removed(world)
    assert world.janitor().of("clear answered") == ["live/0 attempt 2"]
    assert world.checkpoint.replays.pending(KEY) == []
    for _ in PAUSES:
        end_pauses(world.root / "checkpoint")
        world.janitor()
    assert world.checkpoint.leases.unfinished() == []
    for number in (1, 2, 3):
        world.land(number + 1)
        world.run(number)
    assert world.checkpoint.offset_log.ids() == [2, 3]


def test_a_replay_that_the_janitor_answered_is_done_for_its_run(world: World) -> None:
    world.run(0)
    replay_that_dies_before_its_answer(world)
    world.janitor()
    summary = world.run(0, clear_number=1, try_number=2)
    assert summary is not None
    assert (summary.epoch, summary.rows_out, summary.read["orders"]["files"]) == (2, 1, 1)
    assert world.checkpoint.attempts.latest_epoch(KEY) == 3, "the janitor's fence; nothing ran again"


@pytest.mark.parametrize("who", ["the run", "the janitor", "the end of its task"])
def test_one_replay_of_two_clears_answers_both_though_its_answer_is_cut_off(world: World, who: str) -> None:
    """The second answer would be nobody's to give once the run is deleted, and would hold retention."""
    world.run(0)
    world.checkpoint.replays.request(KEY, run=run_identity(0, clear_number=1), requested_ms=world.clock)
    real, given = Replays.complete, []

    def dying(replays: Replays, *args: Any, **kwargs: Any) -> bool:
        if given:
            raise Killed
        given.append(args)
        return real(replays, *args, **kwargs)

    def cut_off() -> None:
        world.run(0, clear_number=2)

    if who == "the janitor":
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Execution, "commit", dies)
            with pytest.raises(Killed):
                cut_off()
        world.expire_leases()
        cut_off = world.janitor  # type: ignore[assignment]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Replays, "complete", dying)
        with pytest.raises(Killed):
            cut_off()
    assert [request.epoch for request in world.checkpoint.replays.pending(KEY)] == [2]
    if who == "the end of its task":
        ti_id = run_identity(0, clear_number=2).ti_id
        settle(world.execution, ti_id=str(ti_id), error=None, engine_of=lambda _: None)
    world.expire_leases()
    world.janitor()
    assert world.checkpoint.replays.pending(KEY) == []
    assert world.checkpoint.leases.unfinished() == []
    assert world.checkpoint.replays.completed(KEY, 2) == world.checkpoint.replays.completed(KEY, 1)


def test_a_replay_that_publishes_until_its_stage_is_dropped_is_answered(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that slept after it passed the fence, and dies as soon as its output is in the table."""
    world.run(0)
    run, engine = run_identity(0, clear_number=1), InlineEngine()
    look = world.execution.look(KEY, run, engine_of=lambda name: engine)
    attempt = world.execution.open_attempt(key=KEY, run=run, code=CODE, engine=engine, look=look)
    job = world.execution.job(attempt, None)
    world.execution.run_attempt(attempt=attempt, job=job, engine=engine, code=CODE)
    world.expire_leases()
    real = FileSink.stages

    def wakes_up(sink: FileSink, checkpoint: str) -> list[object]:
        if world.checkpoint.attempts.latest_epoch(KEY) == 3 and world.checkpoint.replays.pending(KEY):
            world.pipeline.sink.replace(expected_batch(world.checkpoint, KEY), 2)
        return list(real(sink, checkpoint))

    monkeypatch.setattr(FileSink, "stages", wakes_up)
    assert world.janitor().of("clear answered") == ["live/0 attempt 2"]
    ended = world.checkpoint.attempts.ended(KEY, 2)
    assert ended is not None
    assert ended.state == "succeeded"
    assert world.checkpoint.replays.pending(KEY) == []


@pytest.mark.parametrize("removed", [False, True], ids=["its definition is there", "its definition was removed"])
def test_the_janitors_answer_lets_go_of_what_a_batch_kept_that_was_set_aside(tmp_path: Path, removed: bool) -> None:
    world = World(tmp_path, on_failure="set_aside", set_aside_after=1)
    world.sources = {"orders": FileSource(str(world.landing()), format="json", schema="id long", clean_source="delete")}
    world.land(1)
    with pytest.raises(Exception, match="set aside"):
        world.run(0, InlineEngine(transform=lambda sources: 1 / 0))  # type: ignore[arg-type, return-value]
    world.options["min_batches_to_retain"] = 2
    replay_that_dies_before_its_answer(world)
    if removed:
        definition_removed(world)
    assert world.janitor().of("clear answered") == ["live/0 attempt 3"]
    for number in (1, 2):
        world.land(number + 1)
        world.run(number)
    assert world.table() == {0: [1], 1: [2], 2: [3]}
    assert list(world.landing().glob("[!.]*")) == []


def test_a_replay_of_a_batch_that_retention_takes_meanwhile_is_ended(tmp_path: Path) -> None:
    """No run commits what is in no log any more: its attempt would keep retention where it is for ever."""
    world = filled(World(tmp_path), 6)
    world.options["min_batches_to_retain"] = 2
    real, began = MetadataLog.purge, False

    def purge(log: MetadataLog[object], before: int, **kwargs: Any) -> int:
        nonlocal began
        if not began and log.location.endswith("offsets"):
            began = True
            replay_that_dies_before_its_answer(world, 1)
        return real(log, before, **kwargs)

    world.land(6)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MetadataLog, "purge", purge)
        patch.setattr(Replays, "purge", dies)
        with pytest.raises(Killed):
            world.run(6)
    world.expire_leases()
    for number in (7, 8):
        world.land(number)
        world.run(number)
        world.expire_leases()
        world.janitor()
    assert world.checkpoint.leases.unfinished() == []
    assert world.checkpoint.offset_log.ids() == [7, 8]


def test_one_thing_that_cannot_be_cleaned_up_keeps_the_janitor_from_no_other(world: World) -> None:
    """Whatever its record, or a sink's library, makes the janitor raise."""

    def nested(*args: object, **kwargs: object) -> None:
        raise RecursionError("nested too deep")

    world.staged()
    world.expire_leases()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Janitor, "_found_dead", nested)
        patch.setattr(FileSink, "drop_replaced", nested)
        problems = world.janitor().problems
    assert problems == [
        "live/0 attempt 1: RecursionError: nested too deep",
        f"file://{world.lake}: RecursionError: nested too deep",
    ]
    assert world.janitor().of("attempt ended") == ["live/0 attempt 1"]


@pytest.mark.parametrize("folder", ["leases", "attempts", "replays"])
def test_a_folder_that_is_no_lane_is_passed_over(world: World, folder: str) -> None:
    """Whoever made it: the janitor and every run would stop there."""
    made = world.root / "checkpoint" / folder / "a b" / "0"
    world.staged()
    made.mkdir(parents=True)
    for file in (made / "1", made.with_name("0-1-1")):
        file.write_text("x")
    world.expire_leases()
    assert world.janitor().of("attempt ended") == ["live/0 attempt 1"]
    world.run(1)
    assert world.table() == {0: [1]}
    assert main(["repair", str(world.root / "checkpoint")]) == 0


STRAYS = ("lost+found", "README.txt", "README", "interval-notes", LANE, f"{LANE}.tar")


@pytest.mark.parametrize("folder", ["lanes", "leases", "attempts", "replays"])
def test_a_stray_file_stops_nobody(tmp_path: Path, folder: str) -> None:
    """Nor does one that is called like a lane: a person has packed one."""
    world = filled(World(tmp_path, min_batches_to_retain=2), 3)
    strays = [tmp_path / "checkpoint" / folder / name for name in STRAYS]
    strays[0].parent.mkdir(exist_ok=True)
    for stray in strays:
        stray.write_text("x")
    world.land(3)
    world.run(3)
    assert world.checkpoint.offset_log.ids() == [2, 3]
    assert world.janitor().problems == []
    for stray in strays:
        stray.unlink()
    named = folder == "lanes"
    for stray in strays:
        stray.write_text("x")
        assert main(["check", world.pipeline.checkpoint]) == named, stray.name
        assert main(["repair", world.pipeline.checkpoint]) == named, stray.name
        stray.unlink()


@pytest.mark.parametrize("folder", ["lanes", "leases", "attempts", "replays"])
def test_a_stray_folder_stops_nobody(tmp_path: Path, folder: str) -> None:
    """The system that the checkpoint lies on makes one by itself."""
    world = filled(World(tmp_path, min_batches_to_retain=3), 3)
    (tmp_path / "checkpoint" / folder / "lost+found").mkdir(parents=True)
    world.land(3)
    world.run(3)
    assert world.checkpoint.offset_log.ids() == [1, 2, 3]
    assert world.janitor().problems == []
    rewound(world, 2)()
    world.run(4)
    assert world.table() == {number: [number] for number in range(4)}


@pytest.mark.parametrize("seconds", ["1e999", "1" + "0" * 400, "-1"])
def test_a_lease_of_no_sane_length_is_reported(world: World, seconds: str) -> None:
    """An endless one would count as alive for ever, and hold retention."""
    world.staged()
    (lease,) = (world.root / "checkpoint/leases/live").iterdir()
    lease.write_text(f'v1\n{{"seconds":{seconds},"parked":false}}')
    (problem,) = world.janitor().problems
    assert str(lease) in problem
