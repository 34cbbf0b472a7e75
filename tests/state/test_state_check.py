"""What ``check --table`` says of a pipeline that keeps state, and of state that is gone or damaged."""

from __future__ import annotations

import re
import shlex
import shutil
import zipfile
from pathlib import Path

import pytest

from airflow_provider_microbatch.checkpoint.verify import Finding
from airflow_provider_microbatch.cli.main import main
from airflow_provider_microbatch.exceptions import CheckpointError, EngineError
from airflow_provider_microbatch.execution import state_files
from airflow_provider_microbatch.runtime.streaming import SNAPSHOT_EVERY
from airflow_provider_microbatch.upkeep.table_check import check_table
from tests.execution.maintaining import expire_all
from tests.execution.typed_commands import said
from tests.state.counting import CountingWorld
from tests.state.test_kept_state import lose, make, tell

DAMAGED = "[CANNOT_LOAD_STATE_STORE.CANNOT_READ_STREAMING_STATE_FILE] Error reading streaming state file"


def found(world: CountingWorld) -> list[Finding]:
    return list(check_table(world.checkpoint, everything=True).findings)


def type_it(world: CountingWorld, text: str) -> None:
    (command,) = re.findall(r"`microbatch ([^`]+)`", text)
    expire_all(world.root)
    assert main(shlex.split(command)) == 0


def test_state_that_is_gone_is_named_before_a_batch_needs_it(tmp_path: Path) -> None:
    world = CountingWorld(tmp_path)
    for number in range(3):
        make(world, number)
    assert found(world) == []
    lose(tmp_path)
    (finding,) = found(world)
    assert finding.kind == "state"
    assert "batch live/2 has left" in finding.message
    type_it(world, finding.repair)
    for number in range(3, 6):
        world.run(number, world.engine())
    assert world.table() == {0: [1], 1: [2], 2: [3]}
    assert found(world) == []


def test_also_where_the_whole_folder_is(tmp_path: Path) -> None:
    world = CountingWorld(tmp_path)
    make(world, 0)
    shutil.rmtree(tmp_path / "checkpoint" / "state")
    (finding,) = found(world)
    assert finding.kind == "state"


def test_a_snapshot_without_its_parts_is_none_to_go_back_to(tmp_path: Path) -> None:
    """A rewind to a batch that is read from it would take batches out, and the next run would name another one."""
    world = CountingWorld(tmp_path)
    last = SNAPSHOT_EVERY
    for number in range(last + 1):
        make(world, number)
    (snapshot,) = (tmp_path / "checkpoint" / "state").rglob(f"{last}_*.zip")
    with zipfile.ZipFile(snapshot, "w") as archive:
        archive.writestr("metadata", 'v1\n{"sstFiles":[{"localFileName":"1.sst","dfsSstFileName":"1-a.sst"}]}')
    (snapshot.parent / "SSTs").mkdir()
    (snapshot.parent / "SSTs" / "1-a.sst").touch()
    assert found(world) == []
    (snapshot.parent / "SSTs" / "1-a.sst").unlink()
    (finding,) = found(world)
    assert "1-a.sst" in finding.message
    assert f"--to {last - 2} " in finding.repair


def test_of_a_batch_that_the_table_has_lost_no_clear_is_named_that_is_refused(tmp_path: Path) -> None:
    world = CountingWorld(tmp_path)
    for number in range(3):
        make(world, number)
    shutil.rmtree(tmp_path / "lake" / "lane=live" / "batch_id=1")
    (finding,) = found(world)
    assert "Clear" not in finding.repair
    type_it(world, finding.repair)
    for number in range(3, 5):
        world.run(number, world.engine())
    assert world.table() == {0: [1], 1: [2], 2: [3]}


def test_behind_a_short_retention_the_newest_batch_is_made_again_alone(tmp_path: Path) -> None:
    """Its files are there, and damaged; no rewind goes further back."""
    world = CountingWorld(tmp_path, min_batches_to_retain=2)
    for number in range(4):
        make(world, number)
    world.come(5)
    with pytest.raises(CheckpointError, match=r"run 'run-3' of DAG 'orders', which makes that batch") as damaged:
        world.run(4, world.engine(before_stage=tell("read", DAMAGED)))
    type_it(world, str(damaged.value))
    world.run(3, world.engine(), clear_number=1)
    world.run(5, world.engine())
    assert world.table() == {0: [1], 1: [2], 2: [3], 3: [4], 4: [5]}


def test_a_torn_commit_hides_no_finding(tmp_path: Path) -> None:
    world = CountingWorld(tmp_path)
    make(world, 0)
    (tmp_path / "checkpoint" / "commits" / "0").write_text("v1\n{")
    status, text = said(["check", str(tmp_path / "checkpoint"), "--table"])
    assert status == 1
    assert "commits/0" in text
    assert "repair" in text


def test_state_that_cannot_be_read_is_not_said_to_be_gone(tmp_path: Path, as_nobody: None) -> None:
    """As by another user."""
    world = CountingWorld(tmp_path)
    for number in range(2):
        make(world, number)
    folder = tmp_path / "checkpoint" / "state" / "0" / "0"
    folder.chmod(0)
    try:
        (finding,) = found(world)
        assert (finding.kind, str(folder) in finding.message) == ("state", True)
        assert "cannot be told" in finding.message
        assert "rewind" not in finding.repair
        world.come(3)
        with pytest.raises(EngineError):  # and no error that names a rewind
            world.run(2, world.engine(before_stage=tell("read", "Permission denied")))
    finally:
        folder.chmod(0o755)
    assert found(world) == []


def test_a_snapshot_that_cannot_be_read_is_not_said_to_be_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = CountingWorld(tmp_path)
    for number in range(SNAPSHOT_EVERY + 1):
        make(world, number)

    def refused(folder: int, name: str) -> set[str]:
        raise PermissionError(13, "Permission denied", name)

    monkeypatch.setattr(state_files, "parts_of", refused)
    (finding,) = found(world)
    assert "cannot be told" in finding.message
    assert "rewind" not in finding.repair


@pytest.mark.parametrize("lost", [0, 1], ids=["an older one", "the newest"])
def test_a_commit_that_is_written_again_pins_the_watermark_that_its_state_has_come_to(
    tmp_path: Path, lost: int
) -> None:
    """By a lower one the next batch would take rows that are late."""
    world = CountingWorld(tmp_path)
    for number in range(2):
        world.come(number + 1)
        world.run(number, world.engine(watermark_ms=60_000 * (number + 1)))
    (tmp_path / "checkpoint" / "commits" / str(lost)).write_text("v1\n{")
    status, text = said(["repair", str(tmp_path / "checkpoint")])
    assert status == 0, text
    again = world.checkpoint.commit_log.get(lost)
    assert again is not None
    assert again.next_watermark_ms == 60_000 * (lost + 1)
    make(world, 2)
    entry = world.checkpoint.offset_log.get(2)
    assert entry is not None
    assert entry.watermark_ms == 120_000
