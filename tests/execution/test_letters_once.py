"""A letter is run again once, whatever became of the entry that says so: retention, a replay that publishes meanwhile,
a checkpoint that was restored."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from airflow_provider_microbatch.checkpoint.replays import Replays
from airflow_provider_microbatch.exceptions import (
    BatchSetAsideError,
    CheckpointError,
    ForeignBatchError,
    MaintenanceError,
    MicroBatchError,
    SinkError,
)
from airflow_provider_microbatch.execution.dead_letters import execution_of, replaying
from airflow_provider_microbatch.execution.execution import Execution
from airflow_provider_microbatch.execution.summary import summarize
from airflow_provider_microbatch.runtime.job import Job
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sources.file import FileSource
from tests.execution.intervals import IntervalWorld, hour
from tests.execution.maintaining import applied, rewind
from tests.execution.test_dead_letters import Checked, OfLetters, refusing, typed
from tests.execution.test_set_aside import broken
from tests.execution.two_tables import is_clean
from tests.execution.typed_commands import advised, said
from tests.execution.world import CODE, KEY, Killed, World, run_identity

REFUSED = "dead_letter"


def again(world: World) -> Execution:
    world.clock += 1
    return execution_of(replaying(world.pipeline, "mend.py:mend"), world.checkpoint, clock_ms=world._tick)


def replay(world: World, number: int, *refused: int, **engine: Any) -> None:
    """All letters are run again, and these are refused once more."""
    world.expire_leases()
    engine = {"refuse": lambda row: REFUSED if row["id"] in refused else None, **engine}
    again(world).run(run=run_identity(number), engine=OfLetters(**engine), code=CODE, transform=None)


def live(world: World, number: int, *refused: int, clear_number: int = 0) -> None:
    verdicts = {row: REFUSED if row in refused else None for row in range(20)}
    world.run(number, refusing(verdicts), clear_number=clear_number)


def ids(world: World, table: str = "lake") -> list[int]:
    """Of all lanes."""
    return sorted(
        json.loads(line)["id"]
        for file in (world.root / table).glob("lane=*/batch_id=*/*.json")
        for line in file.read_text().splitlines()
    )


def planned(world: World, lane: str = "dead-letters") -> list[int]:
    return list(world.checkpoint.lane(lane).offset_log.ids())


class TestRetention:
    def test_letters_that_were_run_again_are_not_forgotten_before_their_batch(self, tmp_path: Path) -> None:
        world = Checked(tmp_path, min_batches_to_retain=2)
        world.land(1, 2, 5)
        live(world, 0, 2, 5)
        for number in range(10, 15):
            replay(world, number, 5)
            world.janitor()
        assert ids(world) == [1, 2]
        with pytest.raises(CheckpointError, match="were run again as batch dead-letters/0"):
            live(world, 0, 2, 5, clear_number=1)
        assert ids(world) == [1, 2]

    def test_but_with_it(self, tmp_path: Path) -> None:
        world = Checked(tmp_path, min_batches_to_retain=3)
        world.land(1, 2, 5)
        live(world, 0, 2, 5)
        for number in range(10, 17):
            replay(world, number, 5)
        for number in range(1, 5):
            world.land(number + 5)
            live(world, number)
        assert planned(world, "live") == [2, 3, 4]
        world.janitor()
        assert planned(world) == [4, 5, 6]
        applied(world, rewind(3))  # what is in the table, and no longer in the logs, is in nobody's way
        live(world, 5)
        replay(world, 17, 5)
        assert ids(world) == [1, 2, 6, 7, 8, 9]

    def test_the_rewind_that_a_refused_clear_names_is_left_possible(self, tmp_path: Path) -> None:
        world = Checked(tmp_path, min_batches_to_retain=2)
        for number in range(5):
            world.land(number, number + 10)
            live(world, number, number + 10)
            replay(world, 10 + number)
            world.janitor()
        assert planned(world, "live") == [3, 4]
        with pytest.raises(CheckpointError, match="were run again as batch dead-letters/3") as refused:
            live(world, 3, 13, clear_number=1)
        status, told = said(advised(str(refused.value), world)[0])
        assert status == 0, told
        live(world, 3, 13, clear_number=1)
        replay(world, 20)
        assert ids(world) == sorted([*range(5), *range(10, 15)])


@pytest.fixture
def world(tmp_path: Path) -> Checked:
    """One batch, of which 2 is a dead letter."""
    world = Checked(tmp_path)
    world.land(1, 2, 3)
    live(world, 0, 2)
    return world


def while_publishing(world: Checked, happens: Callable[[], object]) -> None:
    """The batch is cleared, and something happens while its replay has passed all checks and publishes."""
    real, done = FileSink.replace, list[str]()

    def replace(sink: FileSink, *given: Any) -> object:
        if not done:
            done.append(sink.path)
            happens()
        return real(sink, *given)

    with mock.patch.object(FileSink, "replace", replace):
        live(world, 0, 1, clear_number=1)
    assert done


class TestReplays:
    @pytest.mark.parametrize("is_planned", [False, True], ids=["new", "planned"])
    def test_while_a_replay_publishes_its_letters_are_not_run_again(self, world: Checked, is_planned: bool) -> None:
        told = list[str]()

        def meanwhile() -> None:
            with pytest.raises(MicroBatchError, match=r"live/0.* a clear of it .*waits for its answer") as refused:
                replay(world, 10)
            told.append(str(refused.value))

        if is_planned:
            assert again(world).plan(run_identity(10)) is not None
        while_publishing(world, meanwhile)
        assert f"`microbatch withdraw-clear {world.checkpoint.location} live/0`" in told[0]
        assert (ids(world), world.rows("letters")) == ([2, 3], [1])
        replay(world, 11)
        assert ids(world) == [1, 2, 3]
        assert is_clean(world)

    def test_nor_are_letters_published_whose_batch_was_cleared_since_they_were_read(self, world: Checked) -> None:
        def meanwhile(job: Job) -> None:
            world.checkpoint.replays.request(KEY, run=run_identity(0, clear_number=1), requested_ms=1)

        with pytest.raises(CheckpointError, match=r"live/0.* a clear of it \(of run 'run-0'"):
            replay(world, 10, after_stage=meanwhile)
        assert ids(world) == [1, 3]
        live(world, 0, 1, clear_number=1)
        replay(world, 11)
        assert ids(world) == [1, 2, 3]

    def test_nor_while_an_attempt_of_a_clear_that_was_withdrawn_has_not_ended(self, world: Checked) -> None:
        def meanwhile() -> None:
            (request,) = world.checkpoint.replays.pending(KEY)
            world.checkpoint.replays.withdraw(KEY, request.epoch, reason="nobody waits")
            with pytest.raises(MicroBatchError, match=r"live/0.* attempt 2 at it has not ended"):
                replay(world, 10)

        while_publishing(world, meanwhile)
        replay(world, 11)
        assert ids(world) == [1, 2, 3]

    def test_nor_where_a_replay_that_nobody_waits_for_was_cut_off_before_them(self, world: Checked) -> None:
        real = FileSink.replace

        def replace(sink: FileSink, *given: Any) -> object:
            if sink.path.endswith("letters"):
                raise SinkError("the disk is full")
            return real(sink, *given)

        with mock.patch.object(FileSink, "replace", replace), pytest.raises(SinkError, match="the disk is full"):
            live(world, 0, clear_number=1)
        world.expire_leases()
        assert said(["withdraw-clear", world.pipeline.checkpoint, "0"])[0] == 0
        assert (ids(world), world.rows("letters")) == ([1, 2, 3], [2])
        with pytest.raises(MicroBatchError, match=r"they are attempt 1's, and \S+lake has the batch of attempt 2"):
            replay(world, 10)
        assert ids(world) == [1, 2, 3]
        live(world, 0, 1, clear_number=2)
        replay(world, 11)
        assert ids(world) == [1, 2, 3]

    def test_a_clear_that_is_refused_leaves_no_request(self, tmp_path: Path) -> None:
        world = Checked(tmp_path, min_batches_to_retain=2)
        world.land(1, 2, 3)
        live(world, 0, 2)
        replay(world, 10)
        with pytest.raises(CheckpointError, match="live/0 is not replayed"):
            live(world, 0, 2, clear_number=1)
        assert world.checkpoint.replays.all(KEY) == []
        for number in range(1, 4):
            world.land(number + 5)
            live(world, number)
        assert planned(world, "live") == [2, 3]

    def test_nor_does_a_backfill_that_would_replay_what_others_have(self, tmp_path: Path) -> None:
        letters = FileSink(str(tmp_path / "letters"), format="json")
        world = IntervalWorld(
            tmp_path, on_overlap="replay", dead_letters=letters, expect={"id > 0": "drop", "version = 1": "dead_letter"}
        )
        world.land_at(0.5, 1, 2)
        live(world, 0, 2)
        replay(world, 10)
        with pytest.raises(CheckpointError, match="live/0 is not replayed"):
            world.backfill(hour(0), 11)
        assert world.checkpoint.replays.all(KEY) == []
        assert ids(world) == [1, 2]

    @pytest.mark.parametrize("by", ["janitor", "repair"])
    @pytest.mark.parametrize("before", ["set aside", "committed"])
    def test_those_that_a_replay_alone_has_are_run_again_whoever_answers_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str, by: str
    ) -> None:
        """Its process died before the answer."""
        world = Checked(tmp_path, on_failure="set_aside", set_aside_after=1)
        world.land(1, 2)
        if before == "set aside":
            with pytest.raises(BatchSetAsideError):
                world.run(0, broken())
        else:
            live(world, 0)
        with monkeypatch.context() as patch:
            patch.setattr(Replays, "complete", mock.Mock(side_effect=Killed))
            with pytest.raises(Killed):
                live(world, 0, 2, clear_number=1)
        world.expire_leases()
        made = world.janitor() if by == "janitor" else applied(world)
        assert made
        assert world.checkpoint.replays.pending(KEY) == []
        told = summarize(world.checkpoint, KEY)
        assert (told.rows_out, told.dead_letters, told.read["orders"]["files"]) == (1, 1, 1)
        replay(world, 10)
        assert ids(world) == [1, 2]

    def test_one_that_waits_already_names_the_way_out(self, world: Checked) -> None:
        """Its letters were begun to be run again at the same moment."""

        def meanwhile(job: Job) -> None:
            world.checkpoint.replays.request(KEY, run=run_identity(0, clear_number=1), requested_ms=1)
            with pytest.raises(CheckpointError, match=r"live/0 is not replayed.* withdraw-clear"):
                live(world, 0, 2, clear_number=1)

        with pytest.raises(CheckpointError, match="withdraw-clear"):
            replay(world, 10, after_stage=meanwhile)
        assert ids(world) == [1, 3]


def restored(world: World, happens: Callable[[], object]) -> None:
    """A backup is taken, something happens, and the backup is put back."""
    shutil.copytree(world.root / "checkpoint", world.root / "backup")
    happens()
    shutil.rmtree(world.root / "checkpoint")
    (world.root / "backup").rename(world.root / "checkpoint")
    world.expire_leases()


def second(world: Checked) -> None:
    world.land(6, 7)
    live(world, 1, 7)


class TestRestoredCheckpoints:
    """The table has letters that were run again after the backup."""

    def test_a_batch_whose_letters_they_are_is_not_replayed(self, world: Checked) -> None:
        restored(world, lambda: replay(world, 10))
        with pytest.raises(SinkError) as refused:
            live(world, 0, 2, clear_number=1)
        assert ids(world) == [1, 2, 3]
        assert world.checkpoint.replays.all(KEY) == []
        typed(world, str(refused.value))
        live(world, 0, 2, clear_number=2)
        replay(world, 11)
        assert ids(world) == [1, 2, 3]
        assert is_clean(world)

    def test_nor_where_earlier_ones_are_known(self, world: Checked) -> None:
        replay(world, 10)
        second(world)
        restored(world, lambda: replay(world, 11))
        assert not is_clean(world)
        with pytest.raises(SinkError) as refused:
            live(world, 1, 7, clear_number=1)
        with pytest.raises(MaintenanceError, match=r"dead-letters/1.*--to 0 --drop-output --lane dead-letters"):
            applied(world, rewind(0))
        assert ids(world) == [1, 2, 3, 6, 7]
        typed(world, str(refused.value))
        live(world, 1, 7, clear_number=2)
        replay(world, 12)
        assert ids(world) == [1, 2, 3, 6, 7]
        assert is_clean(world)

    def test_nor_where_they_were_planned_otherwise_since(self, world: Checked) -> None:
        replay(world, 10)
        second(world)

        def otherwise() -> None:
            applied(world, rewind(-1, lane="dead-letters"))
            replay(world, 11)

        restored(world, otherwise)
        with pytest.raises(SinkError) as refused:
            live(world, 1, 7, clear_number=1)
        assert ids(world) == [1, 2, 3, 6, 7]
        with pytest.raises(MaintenanceError, match=r"dead-letters/0.*--to -1 --drop-output --lane dead-letters"):
            applied(world, rewind(0))
        status, told = said(advised(str(refused.value), world)[0])
        assert status == 0, told
        live(world, 1, 7, clear_number=2)
        replay(world, 12)
        assert ids(world) == [1, 2, 3, 6, 7]
        assert is_clean(world)

    def test_a_retry_of_a_clear_of_before_the_backup_looks_too(self, world: Checked) -> None:
        world.checkpoint.replays.request(KEY, run=run_identity(0, clear_number=1), requested_ms=1)
        shutil.copytree(world.root / "checkpoint", world.root / "kept")
        (request,) = world.checkpoint.replays.pending(KEY)
        world.checkpoint.replays.withdraw(KEY, request.epoch, reason="nobody waits")
        replay(world, 10)
        shutil.rmtree(world.root / "checkpoint")
        (world.root / "kept").rename(world.root / "checkpoint")
        world.expire_leases()
        with pytest.raises(SinkError, match="dead-letters"):
            live(world, 0, 2, clear_number=1)
        assert ids(world) == [1, 2, 3]

    def test_their_numbers_are_counted_over_where_nobody_can_take_them_out_alone(self, world: Checked) -> None:
        restored(world, lambda: replay(world, 10))
        behind = ["start-behind", world.pipeline.checkpoint, "--lane", "dead-letters", "--allow-skip"]
        status, told = said(behind)
        assert status != 0
        assert said(advised(told, world)[0])[0] == 0
        status, told = said(behind)
        assert status == 0
        assert "nothing to do" in told
        assert planned(world) == []
        replay(world, 11)
        assert ids(world) == [1, 2, 3]

    def test_they_are_taken_out_whatever_the_sources_give_up(self, tmp_path: Path) -> None:
        """Letters were read from their table, which gives up none."""
        world = Checked(tmp_path)
        folder = str(world.landing())
        world.sources = {"orders": FileSource(folder, format="json", schema="id long", clean_source="delete")}
        world.land(1, 2, 3)
        live(world, 0, 2)
        restored(world, lambda: replay(world, 10))
        with pytest.raises(ForeignBatchError) as refused:
            replay(world, 11)
        typed(world, str(refused.value))
        replay(world, 12)
        assert ids(world) == [1, 2, 3]

    def test_what_another_pipeline_has_of_that_lane_is_in_nobodys_way(self, world: Checked) -> None:
        replay(world, 10)
        folder = world.root / "lake" / "lane=dead-letters" / "batch_id=0"
        other = folder.with_name("batch_id=1")
        shutil.copytree(folder, other)
        manifest = next(path for path in other.rglob("*") if path.is_file() and "checkpoint" in path.read_text())
        own = world.checkpoint_id
        manifest.write_text(manifest.read_text().replace(own, own[::-1]).replace('"batchId": 0', '"batchId": 1'))
        second(world)
        live(world, 1, clear_number=1)
        assert 7 in ids(world)
