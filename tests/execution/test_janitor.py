"""The janitor: what a killed task left is gone after one run; a live attempt and published data are not touched."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_microbatch.checkpoint.attempts import Attempts
from airflow_provider_microbatch.checkpoint.entries import Attempt
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.checkpoint.leases import Leases
from airflow_provider_microbatch.cli.main import main
from airflow_provider_microbatch.exceptions import AttemptFencedError, DefinitionError, EngineError, SinkError
from airflow_provider_microbatch.execution import status
from airflow_provider_microbatch.execution.engine import EngineState, Handle
from airflow_provider_microbatch.job_status import PAUSES, JobStatusHook
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.upkeep import janitor as janitor_module
from tests.execution.world import CODE, KEY, Killed, World, run_identity
from tests.support.hooks import lines
from tests.support.inline_engine import InlineEngine
from tests.support.leases import end_pauses
from tests.support.whose import expected_batch


def test_a_live_attempt_is_not_touched(world: World, diary: Path) -> None:
    world.staged()
    before = world.files()
    report = world.janitor()
    assert report.of("alive") == ["live/0 attempt 1"]
    assert [action.kind for action in report.actions] == ["alive"]
    assert world.files() == before
    assert world.stages() == ["live/0 attempt 1"]
    assert lines(diary) == ["diary created live/0 1"]


def test_an_epoch_that_is_taken_while_the_janitor_forgets_it_is_found_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.execution.plan(run_identity(0))
    world.checkpoint.leases.begin(KEY, 1, seconds=60)
    world.expire_leases()
    forget = Leases.forget

    def taken_first(leases: Leases, key: BatchKey, epoch: int) -> bool:
        attempt = Attempt(key=key, epoch=epoch, handle={"engine": "inline"}, run=None, code={}, started_ms=1)
        assert world.checkpoint.attempts.take_exactly(attempt)
        return forget(leases, key, epoch)

    with monkeypatch.context() as patch:
        patch.setattr(Leases, "forget", taken_first)
        world.janitor()
    assert world.checkpoint.leases.unfinished() == [(KEY, 1)]


def test_rows_that_a_dead_attempt_has_copied_are_gone_with_it_and_those_of_others_stay(world: World) -> None:
    world.staged()
    copies = {name: world.root / "checkpoint" / "streaming" / name / "rows" for name in ("0-1", "0-2", "other.0-1")}
    for folder in copies.values():
        (folder / "orders").mkdir(parents=True)
    world.expire_leases()
    world.janitor()
    assert [name for name, folder in copies.items() if folder.exists()] == ["0-2", "other.0-1"]


def test_what_the_engine_says_runs_is_not_touched(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.staged()
    world.expire_leases()
    monkeypatch.setattr(InlineEngine, "poll", lambda self, handle: EngineState.RUNNING)
    before = world.files()
    assert world.janitor().of("alive") == ["live/0 attempt 1"]
    assert world.files() == before


def test_an_engine_that_cannot_be_asked_keeps_the_attempt(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def poll(self: InlineEngine, handle: Handle) -> EngineState:
        raise EngineError("the resource manager does not answer")

    world.staged()
    world.expire_leases()
    monkeypatch.setattr(InlineEngine, "poll", poll)
    before = world.files()
    assert world.janitor().failed
    assert world.files() == before


def test_a_stage_that_waits_for_its_audits_is_not_touched(world: World) -> None:
    world.execution.keep(world.staged(), seconds=7200)
    world.expire_leases()
    assert world.janitor().of("alive") == ["live/0 attempt 1"]
    world.expire_leases()
    assert world.janitor().of("stage dropped") == ["live/0 attempt 1"]


def test_a_dead_attempts_stage_is_gone_after_one_run_and_its_spark_is_stopped(world: World, diary: Path) -> None:
    dead, engine = world.staged(), InlineEngine()
    world.expire_leases()
    report = world.janitor(engine)
    assert report.of("stage dropped") == ["live/0 attempt 1"]
    assert not report.failed
    assert engine.cancelled == [dead.handle["tag"]]
    assert world.stages() == []
    assert lines(diary) == ["diary created live/0 1", "diary failed live/0 1"]
    assert "found dead by the janitor" in diary.read_text()
    assert world.run(1).epoch == 3  # type: ignore[union-attr]
    assert world.table() == {0: [1]}


def test_a_mark_that_cannot_be_set_keeps_nothing_from_a_dead_attempt(world: World, diary: Path, tmp_path: Path) -> None:
    """It spares Spark work, no more: the epoch fences."""
    world.staged()
    world.expire_leases()
    (world.lake / "_fenced").symlink_to(tmp_path)
    engine = InlineEngine()
    report = world.janitor(engine)
    assert [problem.partition(":")[0] for problem in report.problems] == ["the fence mark of live/0 attempt 1"]
    assert report.of("stage dropped") == report.of("attempt ended") == ["live/0 attempt 1"]
    assert len(engine.cancelled) == 1
    assert lines(diary)[-1] == "diary failed live/0 1"
    assert world.stages() == []
    assert world.checkpoint.leases.unfinished() == []
    world.run(1)
    assert world.table() == {0: [1]}


def test_a_second_run_has_nothing_to_do(world: World, diary: Path) -> None:
    world.staged()
    world.expire_leases()
    world.janitor()
    before, told = world.files(), lines(diary)
    assert world.janitor().actions == []
    assert (world.files(), lines(diary)) == (before, told)


def test_a_dry_run_says_the_same_and_does_nothing(world: World, diary: Path) -> None:
    world.staged()
    world.expire_leases()
    before = world.files()
    assert world.janitor(dry_run=True).of("stage dropped") == ["live/0 attempt 1"]
    assert world.files() == before
    assert world.stages() == ["live/0 attempt 1"]
    assert lines(diary) == ["diary created live/0 1"]


def test_an_attempt_that_only_seemed_dead_loses_at_publish(world: World) -> None:
    late = world.staged()
    world.expire_leases()
    world.janitor()
    with pytest.raises(AttemptFencedError, match="fenced by attempt 2"):
        world.execution.publish(late)
    assert world.table() == {}


def test_a_run_that_begins_at_that_moment_is_not_fenced(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.staged()
    world.expire_leases()
    real = Attempts.take_exactly

    def take_exactly(self: Attempts, attempt: Attempt) -> bool:
        monkeypatch.setattr(Attempts, "take_exactly", real)
        world.execution.open_attempt(
            key=KEY, run=run_identity(0, try_number=2), code=CODE, engine=InlineEngine()
        )  # fmt: skip
        return real(self, attempt)

    monkeypatch.setattr(Attempts, "take_exactly", take_exactly)
    assert world.janitor().of("alive") == ["live/0 attempt 1"]
    assert world.checkpoint.attempts.latest_epoch(KEY) == 2


def test_an_attempt_that_publishes_just_before_it_is_fenced_is_not_failed(
    world: World, diary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = world.staged()
    world.expire_leases()
    real = Attempts.take_exactly

    def take_exactly(self: Attempts, attempt: Attempt) -> bool:
        world.execution.publish(late)
        return real(self, attempt)

    monkeypatch.setattr(Attempts, "take_exactly", take_exactly)
    assert world.janitor().of("waits for its commit") == ["live/0 attempt 1"]
    world.run(1)
    assert lines(diary)[1:] == ["diary finished live/0 1"]
    assert world.table() == {0: [1]}


def test_published_and_not_committed_is_left_for_the_next_run(world: World, diary: Path) -> None:
    world.execution.publish(world.staged())
    world.expire_leases()
    assert world.janitor().of("waits for its commit") == ["live/0 attempt 1"]
    assert world.checkpoint.attempts.latest_epoch(KEY) == 1, "nothing to fence"
    assert world.table() == {0: [1]}
    world.run(1)
    assert lines(diary)[-1] == "diary finished live/0 1"
    assert world.janitor().actions == []


def test_a_hook_that_nobody_could_call_is_called_and_the_commit_stands(world: World, diary: Path) -> None:
    Path(f"{diary}.fails").write_text("diary finished")
    world.run(0)
    assert world.janitor().failed
    assert world.table() == {0: [1]}
    Path(f"{diary}.fails").unlink()
    end_pauses(world.root / "checkpoint")
    assert world.janitor().of("attempt ended") == ["live/0 attempt 1"]
    assert lines(diary)[1:] == ["diary finished live/0 1"] * 3
    assert world.janitor().actions == []


def test_a_hook_that_keeps_failing_is_called_later_and_later_and_then_given_up(
    world: World, diary: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else it keeps its attempt unfinished, and retention from its work, for ever."""
    checkpoint = world.root / "checkpoint"
    Path(f"{diary}.fails").write_text("diary finished")
    world.run(0)
    assert world.janitor().failed, "the second call is made at once"
    for pause in PAUSES[1:]:
        calls = len(lines(diary))
        end_pauses(checkpoint, pause - 30)
        assert world.janitor().of("waits for its hook") == ["live/0 attempt 1"]
        assert len(lines(diary)) == calls
        assert world.checkpoint.leases.unfinished() == [(KEY, 1)]
        end_pauses(checkpoint, pause)
        last = world.janitor()
        assert len(lines(diary)) == calls + 1
    assert last.of("attempt ended") == ["live/0 attempt 1"]
    assert world.checkpoint.leases.unfinished() == []
    assert world.janitor().actions == []
    assert main(["check", str(checkpoint)]) == 1
    told = "hook tests.support.hooks:Diary was not told that it is finished, and was given up after 9 tries"
    said = capsys.readouterr().out
    assert told in said
    assert "own trouble" in said
    assert main(["log", str(checkpoint)]) == 0
    assert told in capsys.readouterr().out
    assert main(["log", str(checkpoint), "--json"]) == 0
    assert told in json.loads(capsys.readouterr().out)[0]["hooks_given_up"][0]
    (record,) = checkpoint.rglob("*.given-up")
    record.unlink()
    assert main(["check", str(checkpoint)]) == 0


def test_retention_goes_on_when_a_hook_is_given_up(world: World, diary: Path) -> None:
    world.options["min_batches_to_retain"] = 2
    Path(f"{diary}.fails").write_text("diary finished")
    for number in range(5):
        world.land(number + 1)
        world.run(number)
    assert world.checkpoint.offset_log.ids() == [0, 1, 2, 3, 4]
    for _ in PAUSES:
        end_pauses(world.root / "checkpoint")
        world.janitor()
    assert world.checkpoint.offset_log.ids() == [3, 4]


def test_hooks_that_can_no_longer_be_imported_are_given_up_too(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(checkpoint: object, attempt: Attempt) -> list[JobStatusHook]:
        raise DefinitionError("cannot load 'hooks:Gone'")

    world.staged()
    world.expire_leases()
    monkeypatch.setattr(status, "hooks_of", gone)
    for _ in range(len(PAUSES) + 1):
        end_pauses(world.root / "checkpoint")
        world.janitor()
    assert world.checkpoint.leases.unfinished() == []
    assert [one.hook for one in world.checkpoint.deliveries.given_up(KEY)] == ["finding the pipeline's hooks"]


def test_hooks_of_a_definition_that_was_removed_are_given_up_too(world: World) -> None:
    """As ``rewind`` says of a definition that is none of the user's own: the janitor must not fail for ever then."""
    checkpoint = world.checkpoint
    theirs = checkpoint.definitions.put({"class": "stranger:Pipeline", "version": 1, "arguments": {"sources": {}}})
    checkpoint.attempts.take_exactly(replace(world.staged(), epoch=2, definition=theirs))
    checkpoint.leases.begin(KEY, 2, seconds=60)
    world.expire_leases()
    checkpoint.definitions.forget(theirs)
    for _ in range(len(PAUSES) + 1):
        end_pauses(world.root / "checkpoint")
        world.janitor()
    assert world.checkpoint.leases.unfinished() == []
    (given_up,) = world.checkpoint.deliveries.given_up(KEY)
    assert "is not in" in given_up.error


def test_a_hook_is_told_failed_when_the_attempt_of_a_replay_died_and_the_old_output_stays(world: World) -> None:
    world.run(0)
    run = run_identity(0, clear_number=1)
    world.execution.open_attempt(key=KEY, run=run, code=CODE, engine=InlineEngine())
    world.expire_leases()
    world.janitor()
    assert world.table() == {0: [1]}
    ended = world.checkpoint.attempts.ended(KEY, 2)
    assert ended is not None
    assert ended.state == "failed"


def test_replaced_output_goes_after_its_grace_period(world: World) -> None:
    world.run(0)
    world.run(0, clear_number=1)
    kept = world.lake / "_replaced" / world.checkpoint_id / "lane=live" / "batch_id=0" / "attempt=1"
    assert kept.is_dir()
    assert world.janitor().actions == []
    assert world.janitor(grace_seconds=0, dry_run=True).of("replaced output removed") == [str(kept)]
    assert kept.is_dir()
    assert world.janitor(grace_seconds=0).of("replaced output removed") == [str(kept)]
    assert not kept.exists()
    assert world.table() == {0: [1]}


def test_a_stage_that_no_attempt_of_this_checkpoint_wrote_is_left_alone(world: World) -> None:
    world.run(0)
    foreign = world.stage_folder(4, key=BatchKey("live", 9))
    foreign.mkdir(parents=True)
    assert world.janitor().of("unknown stage left alone") == ["live/9 attempt 4"]
    assert foreign.is_dir()


def test_a_lease_whose_epoch_was_never_taken_is_forgotten(world: World) -> None:
    world.run(0)
    world.checkpoint.leases.renew(BatchKey("live", 1), 1)
    assert world.janitor().of("alive") == ["live/1 attempt 1"]
    world.expire_leases()
    world.janitor()
    assert world.checkpoint.leases.unfinished() == []


STEPS = [
    (Attempts, "take_exactly"),
    (Attempts, "end"),
    (InlineEngine, "cancel"),
    (FileSink, "drop_stage"),
    (janitor_module, "end_attempt"),
]


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(("owner", "name"), STEPS, ids=lambda value: getattr(value, "__name__", value))
def test_killed_anywhere_the_next_run_goes_on(world: World, diary: Path, owner: object, name: str, after: bool) -> None:
    world.staged()
    world.expire_leases()
    real = getattr(owner, name)

    def dying(*args: object, **kwargs: object) -> None:
        if after:
            real(*args, **kwargs)
        raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, dying)
        with pytest.raises(Killed):
            world.janitor()
    assert not world.janitor().failed
    assert world.stages() == []
    assert world.checkpoint.leases.unfinished() == []
    ends = [world.checkpoint.attempts.ended(KEY, epoch) for epoch in (1, 2)]
    assert [end.state for end in ends if end is not None] == ["failed", "canceled"]
    assert lines(diary) == ["diary created live/0 1", "diary failed live/0 1"]
    world.run(1)
    assert world.table() == {0: [1]}


def test_a_stage_that_is_dropped_while_it_is_published_is_published_whole_or_not_at_all(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = world.staged()
    sink, batch = world.pipeline.sink, expected_batch(world.checkpoint, KEY)
    real = Path.rename

    def rename(self: Path, target: Path) -> Path:
        moved = real(self, target)
        if ".dropped-" in target.name:
            with pytest.raises(SinkError, match="no complete stage"):
                sink.publish(batch, attempt.epoch)
        return moved

    monkeypatch.setattr(Path, "rename", rename)
    assert sink.drop_stage(attempt.batch, attempt.epoch)
    assert world.table() == {}
    assert world.stages() == []


def test_a_fence_whose_janitor_was_killed_is_no_attempt_to_the_hooks(
    world: World, diary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dying(*_: object) -> None:
        raise Killed

    world.staged()
    world.expire_leases()
    with monkeypatch.context() as patch:
        patch.setattr(Attempts, "end", dying)
        with pytest.raises(Killed):
            world.janitor()
    world.run(0, try_number=2)
    assert [line.split()[-1] for line in lines(diary)] == ["1", "1", "3", "3"]


def test_what_a_drop_that_was_cut_off_left_is_still_a_stage(world: World) -> None:
    attempt = world.staged()
    stage = world.stage_folder()
    stage.rename(f"{stage}.dropped-0123abcd")
    assert world.stages() == ["live/0 attempt 1"]
    assert world.pipeline.sink.drop_stage(attempt.batch, attempt.epoch)
    assert world.stages() == []
