"""State that is not there any more, as behind a restore of its folder from a backup."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import pytest

from airflow_provider_microbatch.cli.main import main
from airflow_provider_microbatch.exceptions import CheckpointError
from tests.state.stateful import SessionEngine, StatefulWorld

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def test_the_newest_batch_whose_state_is_there_is_named_and_the_pipeline_goes_on_from_it(
    tmp_path: Path, engine: SessionEngine
) -> None:
    world = StatefulWorld(tmp_path, engine=engine)
    state, backup = tmp_path / "checkpoint" / "state", tmp_path / "backup"
    for number in range(3):
        world.land(str(number), 1, 2)
        world.run(number)
        if number == 0:
            shutil.copytree(state, backup)
    shutil.rmtree(state)
    backup.rename(state)
    world.land("3", 1)
    with pytest.raises(CheckpointError, match=r"state of batch live/2, of which files are not in") as lost:
        world.run(3)
    (_, typed, _) = str(lost.value).split("`")

    assert main(shlex.split(typed)[1:]) == 0
    for number in range(4, 7):
        world.run(number)
    assert "rewind" in typed
    assert "--to 0" in typed
    assert world.table() == {
        **{number: [{"id": 1, "count": number + 1}, {"id": 2, "count": number + 1}] for number in range(3)},
        3: [{"id": 1, "count": 4}],
    }


def test_of_damaged_files_the_way_on_is_named_too(tmp_path: Path, engine: SessionEngine) -> None:
    """Spark does not force them to disk: a machine that loses power leaves empty ones."""
    world = StatefulWorld(tmp_path, engine=engine)
    for number in range(3):
        world.land(str(number), 1)
        world.run(number)
    newest = max((tmp_path / "checkpoint" / "state").rglob("3_*"), key=lambda path: path.name)
    for path in newest.parent.glob("*3_*"):
        path.write_bytes(b"")
    world.land("3", 1)
    with pytest.raises(
        CheckpointError, match=r"state of batch live/2, of which files are not in \S+ any more, or are none of Spark's"
    ) as lost:
        world.run(3)
    (_, typed, _) = str(lost.value).split("`")

    assert main(shlex.split(typed)[1:]) == 0
    for number in range(4, 6):
        world.run(number)
    assert {number: rows[0]["count"] for number, rows in world.table().items()} == {0: 1, 1: 2, 2: 3, 3: 4}


def test_a_file_of_state_that_is_cut_off_is_seen_before_a_batch_needs_it(
    tmp_path: Path, engine: SessionEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    world = StatefulWorld(tmp_path, engine=engine)
    for number in range(2):
        world.land(str(number), 1)
        world.run(number)
    check = ["check", "--table", str(tmp_path / "checkpoint")]
    assert main(check) == 0
    newest = max((tmp_path / "checkpoint" / "state").rglob("2_*.changelog"))
    newest.write_bytes(newest.read_bytes()[:-1])
    capsys.readouterr()

    assert main(check) == 1
    told = capsys.readouterr().out
    assert newest.name in told
    assert "--to 0 --drop-output" in told


def test_no_batch_is_named_that_no_rewind_goes_back_to(tmp_path: Path, engine: SessionEngine) -> None:
    """The oldest that retention keeps has none before it, from which a log would go on."""
    world = StatefulWorld(tmp_path, engine=engine, min_batches_to_retain=2)
    state, backup = tmp_path / "checkpoint" / "state", tmp_path / "backup"
    for number in range(3):
        world.land(str(number), 1)
        world.run(number)
        if number == 1:
            shutil.copytree(state, backup)
    shutil.rmtree(state)
    backup.rename(state)
    world.land("3", 1)
    with pytest.raises(CheckpointError, match=r"state of batch live/2, .* begin a checkpoint and a table of their own"):
        world.run(3)
    assert world.checkpoint.commit_log.ids() == [1, 2]
