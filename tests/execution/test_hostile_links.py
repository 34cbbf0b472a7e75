"""Links that somebody left in a table's folders, and records that name another checkpoint's batches."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_microbatch.checkpoint.identity import BatchIdentity
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import MaintenanceError, SinkError
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.upkeep.janitor_report import JanitorReport
from tests.execution.maintaining import applied, filled, rewind
from tests.execution.test_hostile_checkpoint import janitor, rewrite
from tests.execution.world import World
from tests.sinks.stages import make_ready

OWN = "d8c6b07e-6f0b-4d6a-9d93-6f3b4f2b8c11"
BATCH = BatchIdentity.at(BatchKey("live", 1), checkpoint=OWN)


@pytest.fixture
def sink(tmp_path: Path) -> FileSink:
    return FileSink(str(tmp_path / "lake"), format="json")


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A folder that looks like a published batch, and is nobody's business."""
    made = tmp_path / "victim"
    (made / "_manifest").mkdir(parents=True)
    (made / "_manifest" / "part").write_text("rows")
    (made / "dag.py").write_text("dag")
    return made


def untouched(victim: Path) -> bool:
    return (victim / "_manifest" / "part").read_text() == "rows" and (victim / "dag.py").read_text() == "dag"


def link(place: Path, target: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(target)


@pytest.mark.parametrize("name", ["dag.py", "new.py"])
def test_a_fence_is_not_written_through_a_link(sink: FileSink, victim: Path, name: str) -> None:
    mark = sink.root / "_fenced" / OWN / "lane=live" / "batch_id=1.attempt=1"
    link(mark, victim / name)
    sink.fence(BATCH, 1, by="import os")
    assert untouched(victim)
    assert not (victim / "new.py").exists()
    assert os.path.lexists(mark)


@pytest.mark.parametrize("place", ["_fenced", f"_fenced/{OWN}", f"_fenced/{OWN}/lane=live"])
def test_a_fence_is_not_written_into_a_folder_behind_a_link(sink: FileSink, victim: Path, place: str) -> None:
    link(sink.root / place, victim)
    with pytest.raises(SinkError, match="a link in place of a folder of the table"):
        sink.fence(BATCH, 1, by="x")
    assert {path.name for path in victim.iterdir()} == {"_manifest", "dag.py"}


def test_the_text_of_a_fence_is_none_that_a_checkpoint_says(sink: FileSink) -> None:
    (sink.root / "_staging").mkdir(parents=True)
    sink.fence(BATCH, 1, by="import os; os.system('id')")
    (mark,) = (sink.root / "_fenced").rglob("batch_id=*")
    assert mark.read_text() == "a later attempt has taken this one's place\n"
    mark.write_text("kept")
    sink.fence(BATCH, 1, by="again")
    assert mark.read_text() == "kept"


def test_of_a_link_among_replaced_output_only_the_link_goes(sink: FileSink, victim: Path) -> None:
    kept = sink.replaced_path(BATCH) / "attempt=1"
    link(kept, victim)
    assert sink.drop_replaced(OWN, older_seconds=0) == [str(kept)]
    assert untouched(victim)
    assert not os.path.lexists(kept)


def test_a_link_on_the_way_to_replaced_output_keeps_none_of_the_rest(tmp_path: Path, victim: Path) -> None:
    world = filled(World(tmp_path / "world"), 2)
    for number in range(2):
        world.run(number, clear_number=1)
    world.expire_leases()
    (victim / "batch_id=0" / "attempt=1").mkdir(parents=True)
    link(world.lake / "_replaced" / world.checkpoint_id / "lane=a", victim)
    link(world.lake / "_replaced" / world.checkpoint_id / "lane=z", victim)
    kept = "_replaced/*/lane=live/batch_id=*/attempt=*"
    assert len(list(world.lake.glob(kept))) == 2
    there = sorted(str(path) for path in world.lake.glob(kept))
    report = world.janitor(grace_seconds=0)
    failed = [action.why for action in report.actions if action.kind == "failed"]
    assert len(failed) == 1
    assert "a link in place of a folder of the table" in failed[0]
    assert list(world.lake.glob(kept)) == []
    assert sorted(report.of("replaced output removed")) == there
    assert (victim / "batch_id=0" / "attempt=1").is_dir()


@pytest.mark.parametrize("place", ["_replaced", f"_replaced/{OWN}", f"_replaced/{OWN}/lane=live"])
def test_nothing_is_removed_in_a_folder_behind_a_link(sink: FileSink, victim: Path, place: str) -> None:
    below = "lane=live/batch_id=1/attempt=1" if place.count("/") < 2 else "batch_id=1/attempt=1"
    (victim / below).mkdir(parents=True)
    link(sink.root / place, victim)
    with pytest.raises(SinkError, match="a link in place of a folder of the table"):
        sink.drop_replaced(OWN if OWN in place else "", older_seconds=0)
    assert (victim / below).is_dir()


@pytest.mark.parametrize("kept", [True, False], ids=["replaced output", "a stage"])
def test_a_link_that_comes_after_the_look_changes_nothing(
    sink: FileSink, victim: Path, monkeypatch: pytest.MonkeyPatch, kept: bool
) -> None:
    stage = sink.root / "_staging" / OWN / "lane=live" / "batch_id=1" / "attempt=1"
    own = sink.replaced_path(BATCH) / "attempt=1" if kept else stage
    (own / "_manifest").mkdir(parents=True)
    (victim / "attempt=1" / "_manifest").mkdir(parents=True)
    real = shutil.rmtree

    def swapped(path: str, **options: Any) -> None:
        if not own.parent.is_symlink():
            own.parent.rename(sink.root / "moved")
            own.parent.symlink_to(victim)
        real(path, **options)

    monkeypatch.setattr(shutil, "rmtree", swapped)
    if kept:
        assert sink.drop_replaced(OWN, older_seconds=0) == [str(own)]
    else:
        with pytest.raises(SinkError):  # the folder of its stages, which would go too, is a link by now
            sink.drop_stage(BATCH, 1)
    assert untouched(victim)
    assert (victim / "attempt=1" / "_manifest").is_dir()
    assert list((sink.root / "moved").iterdir()) == []


def test_of_a_stage_that_is_a_link_only_the_link_goes(sink: FileSink, victim: Path) -> None:
    stage = sink.root / "_staging" / OWN / "lane=live" / "batch_id=1" / "attempt=1"
    link(stage, victim)
    assert sink.drop_stage(BATCH, 1)
    assert untouched(victim)
    assert not os.path.lexists(stage)
    link(stage.parent, victim)
    with pytest.raises(SinkError, match="a link in place of a folder of the table"):
        sink.drop_stage(BATCH, 1)
    assert untouched(victim)


def test_an_attempt_that_says_it_is_another_checkpoints_is_refused(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.land(1)
    world.staged()
    world.expire_leases()
    attempt = world.checkpoint.attempts.get(BatchKey("live", 0), 1)
    assert attempt is not None
    assert attempt.identity is not None
    rewrite(world, "attempts/live/0/1", identity={**attempt.identity.to_dict(), "checkpoint": OWN})
    report: JanitorReport = janitor(world)
    assert report.of("refused") == ["live/0 attempt 1"]
    assert f"attempts/live/0/1 says that its batch is of checkpoint '{OWN}'." in report.problems[0]
    assert world.stages() == ["live/0 attempt 1"]
    assert not (world.lake / "_fenced").exists()


@pytest.mark.parametrize("place", ["_replaced", "_replaced/lane=live", "_replaced/lane=live/batch_id=1.lock"])
def test_a_lock_is_not_made_behind_a_link(tmp_path: Path, victim: Path, place: str) -> None:
    world = World(tmp_path)
    for number in range(2):
        world.land(number)
        world.run(number)
    link(world.lake / place, victim / "new.py" if place.endswith(".lock") else victim)
    before = sorted(victim.rglob("*"))
    with pytest.raises(MaintenanceError, match="a link in place of a folder of the table"):
        applied(world, rewind(0))
    assert sorted(victim.rglob("*")) == before
    assert world.table() == {0: [0], 1: [1]}


def test_a_table_whose_door_is_a_link_is_refused(sink: FileSink, victim: Path) -> None:
    link(sink.root / "_staging", victim)
    with pytest.raises(SinkError, match="a link in place of a folder of the table"):
        make_ready(sink)
