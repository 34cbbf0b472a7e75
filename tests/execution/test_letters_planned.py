"""Dead letters whose batch is planned and not in the tables were not run again, and nobody says that they were."""

from __future__ import annotations

import json
from pathlib import Path
from unittest import mock

import pytest

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.cli.main import main
from airflow_provider_microbatch.exceptions import CheckpointError, EngineError, SourceChangedError, TransformError
from airflow_provider_microbatch.execution.dead_letters import execution_of, replaying
from airflow_provider_microbatch.execution.execution import Execution
from airflow_provider_microbatch.execution.left import find_left
from airflow_provider_microbatch.runtime.job import Job
from tests.execution.test_dead_letters import Checked, OfLetters, refusing
from tests.execution.two_tables import is_clean
from tests.execution.world import CODE, Killed, run_identity


@pytest.fixture
def world(tmp_path: Path) -> Checked:
    """One batch, of which 2 is a dead letter."""
    world = Checked(tmp_path)
    world.land(1, 2, 3)
    world.run(0, refusing({1: None}))
    return world


def again(world: Checked) -> Execution:
    world.clock += 1
    return execution_of(replaying(world.pipeline, "mend.py:mend"), world.checkpoint, clock_ms=world._tick)


def replay(world: Checked, engine: OfLetters | None = None) -> None:
    world.expire_leases()
    again(world).run(run=run_identity(10), engine=engine or OfLetters(), code=CODE, transform=None)


def clear(world: Checked, clear_number: int = 1) -> None:
    """Of three rows 1 is a dead letter now, and 2 is none any more."""
    world.run(0, refusing({1: "dead_letter", 2: None, 3: None}), clear_number=clear_number)


def ids(world: Checked) -> list[int]:
    """Of all lanes."""
    return sorted(
        json.loads(line)["id"]
        for file in (world.root / "lake").glob("lane=*/batch_id=*/*.json")
        for line in file.read_text().splitlines()
    )


def letters_planned(world: Checked) -> list[int]:
    return list(world.checkpoint.lane("dead-letters").offset_log.ids())


def test_a_batch_whose_letters_are_only_planned_to_be_run_again_is_replayed(world: Checked) -> None:
    """The planned batch has the letters that there are when it is run."""
    assert again(world).plan(run_identity(10)) is not None
    clear(world)
    assert (ids(world), world.rows("letters")) == ([2, 3], [1])
    replay(world)
    assert ids(world) == [1, 2, 3]
    assert letters_planned(world) == [0]
    assert is_clean(world)


def test_so_is_one_at_whose_letters_an_attempt_has_failed(world: Checked) -> None:
    with pytest.raises(TransformError, match="division"):
        replay(world, OfLetters(transform=lambda rows: [{"id": 1 // 0}]))
    clear(world)
    replay(world)
    assert ids(world) == [1, 2, 3]


def test_but_none_at_whose_letters_an_attempt_is(world: Checked) -> None:
    refused = list[str]()

    def meanwhile(job: Job) -> None:
        with pytest.raises(CheckpointError, match="are run again as batch dead-letters/0, whose attempt 1 has") as told:
            clear(world)
        refused.append(str(told.value))

    replay(world, OfLetters(before_stage=meanwhile))
    assert refused
    assert ids(world) == [1, 2, 3]


def test_nor_one_whose_letters_are_in_the_table_though_their_batch_is_not_committed(world: Checked) -> None:
    with mock.patch.object(Execution, "commit", side_effect=Killed), pytest.raises(Killed):
        replay(world)
    world.expire_leases()
    (attempt,) = world.checkpoint.attempts.all(BatchKey("dead-letters", 0))
    with pytest.raises(CheckpointError, match="not replayed: its dead letters are run again"):
        clear(world)
    again(world).abandon(attempt, state="failed", error=EngineError("found dead"), engine=None)
    with pytest.raises(CheckpointError, match="not replayed: its dead letters were run again"):
        clear(world, 2)
    assert ids(world) == [1, 2, 3]


def test_letters_of_before_a_replay_are_not_published_behind_it(world: Checked) -> None:
    """It had looked before the letters' attempt began, and has published while that read."""

    def meanwhile(job: Job) -> None:
        with (
            mock.patch("airflow_provider_microbatch.execution.job_of.check_not_taken"),
            mock.patch("airflow_provider_microbatch.execution.read_again.check_not_taken"),
            mock.patch("airflow_provider_microbatch.execution.replay.check_not_taken"),
        ):
            clear(world)

    stale = OfLetters(after_stage=meanwhile, told={"read": {"dead_letters": {"epochs": {"live/0": 1}}}})
    with pytest.raises(SourceChangedError, match="batch live/0 was replayed while its dead letters were read"):
        replay(world, stale)
    assert ids(world) == [2, 3]
    replay(world)
    assert ids(world) == [1, 2, 3]


@pytest.mark.parametrize(
    ("connection", "why"),
    [(None, "cannot be used"), ("spark-connect://127.0.0.1:1", "does not answer")],
    ids=["missing", "nobody answers"],
)
def test_nothing_is_planned_where_no_spark_can_be_reached(
    world: Checked,
    connection: str | None,
    why: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if connection is not None:
        monkeypatch.setenv("AIRFLOW_CONN_FOR_LETTERS", connection)
    (world.root / "mend.py").write_text("def mend(batch):\n    return batch\n")
    arguments = ["--replay", "mend.py:mend", "--base", str(world.root), "--conn-id", "for_letters"]
    assert main(["dead-letters", world.pipeline.checkpoint, *arguments]) == 2
    assert why in capsys.readouterr().err
    assert letters_planned(world) == []


def test_the_list_tells_letters_that_are_planned_from_those_that_were_run_again(
    world: Checked, capsys: pytest.CaptureFixture[str]
) -> None:
    def listed() -> tuple[str | None, str | None]:
        assert main(["dead-letters", world.pipeline.checkpoint, "--json"]) == 0
        (one,) = json.loads(capsys.readouterr().out)
        return one["planned_as"], one["replayed_as"]

    again(world).plan(run_identity(10))
    assert listed() == ("dead-letters/0", None)
    replay(world)
    assert listed() == (None, "dead-letters/0")


def test_what_is_left_of_them_is_gone_on_with_by_a_command_and_by_no_task(world: Checked) -> None:
    again(world).plan(run_identity(10))
    world.expire_leases()
    (found,) = find_left(world.checkpoint)
    where = world.checkpoint.location
    assert "lear" not in found.repair
    assert f"`microbatch dead-letters {where} --replay FILE:FUNCTION` goes on with it" in found.repair
    assert main(["rewind", where, "--to", "-1", "--drop-output", "--lane", "dead-letters"]) == 0
    assert f"`microbatch rewind {where} --to -1 --drop-output --lane dead-letters`" in found.repair
    assert find_left(world.checkpoint) == []
