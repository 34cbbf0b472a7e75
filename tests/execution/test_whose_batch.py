"""A batch in the table is this checkpoint's only if this checkpoint's plan of it made it. Whatever else is at its place
is an error that names whose it is; nothing is committed, and no source gives anything up."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from unittest import mock

import pytest

from airflow_provider_microbatch.checkpoint.definitions import Definitions
from airflow_provider_microbatch.checkpoint.identity import BatchIdentity
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import (
    CheckpointError,
    DefinitionError,
    MaintenanceError,
    SinkError,
    SourceError,
)
from airflow_provider_microbatch.execution.identity import planned_identity
from airflow_provider_microbatch.graph import JobGraph
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sources.file import FileSource
from airflow_provider_microbatch.sources.file.open import OpenFileSource
from airflow_provider_microbatch.upkeep.table_check import SAMPLE, check_table, sample
from tests.execution.kept_tables import SINKS, Setting, refused, start_behind
from tests.execution.maintaining import applied, planned, rewind
from tests.execution.world import CODE, World, run_identity
from tests.support.inline_engine import InlineEngine


@pytest.fixture(params=[None, "delete"], ids=["kept", "clean_source"])
def clean(request: pytest.FixtureRequest) -> str | None:
    found: str | None = request.param
    return found


@pytest.fixture(params=SINKS.values(), ids=SINKS.keys())
def setting(request: pytest.FixtureRequest, tmp_path: Path, clean: str | None) -> Setting:
    return Setting(tmp_path, request.param, clean=clean)


def test_a_new_checkpoint_on_a_kept_table_takes_nothing_for_its_own(setting: Setting) -> None:
    old = setting.world("old")
    for number in range(2):
        old.land(number + 1)
        old.run(number)
    before, location = old.table(), str(old.root / "checkpoint")
    new = setting.world("new")
    new.land(7, 8)
    text = refused(new, 0)
    assert f"(checkpoint {old.checkpoint_id} at {location}, planned 2023-" in text
    assert f"microbatch start-behind {new.root}/checkpoint" in text
    assert new.checkpoint.offset_log.ids() == [], "nothing is planned either"
    assert old.table() == before
    elsewhere = setting.world("elsewhere", pipeline="orders")
    elsewhere.options["sink"] = FileSink(str(setting.root / "another"), format="json")
    elsewhere.land(9)
    assert elsewhere.run(0) is not None


def test_of_two_pipelines_on_one_table_the_second_is_told_when_it_plans(tmp_path: Path, clean: str | None) -> None:
    setting = Setting(tmp_path, SINKS["file sink"], clean=clean)
    one, two = setting.world("one", pipeline="one"), setting.world("two", pipeline="two")
    one.land(1)
    two.land(2)
    one.run(0)
    assert "it was published by pipeline 'one'" in refused(two, 0)
    assert one.table() == {0: [1]}


def test_whose_a_batch_is_is_told_though_the_store_takes_no_pipeline_on_record(tmp_path: Path) -> None:
    """What the table has is to be read, and not what the store does, which the next run meets too."""
    setting = Setting(tmp_path, SINKS["file sink"], clean=None)
    one, two = setting.world("one", pipeline="one"), setting.world("two", pipeline="two")
    one.land(1)
    two.land(2)
    one.run(0)
    with mock.patch.object(Definitions, "put", side_effect=CheckpointError("read-only")):
        assert "it was published by pipeline 'one'" in refused(two, 0)


def test_of_two_pipelines_that_run_one_number_at_once_one_publishes_and_neither_touches_the_other(
    tmp_path: Path, clean: str | None
) -> None:
    setting = Setting(tmp_path, SINKS["file sink"], clean=clean)
    one, two = setting.world("one", pipeline="one"), setting.world("two", pipeline="two")
    one.land(1)
    two.land(2)
    first, second = one.staged(), two.staged()
    assert one.stages() == two.stages() == ["live/0 attempt 1"]
    for world in (one, two):
        world.expire_leases()
    assert two.janitor().of("stage dropped") == ["live/0 attempt 1"]
    assert one.stages() == ["live/0 attempt 1"], "the stage of the same number of somebody else stays"
    assert two.stages() == []
    published = one.execution.publish(first)
    one.execution.commit(key=first.key, manifest=published, run=first.run)
    with pytest.raises(SinkError, match="is another one than pipeline 'two'"):
        two.execution.publish(second)
    refused(two, 1)
    assert one.table() == {0: [1]}
    assert two.landing().joinpath("000002.json").exists()


def test_a_pipeline_that_was_renamed_goes_on_under_the_name_and_checkpoint_that_the_error_says(tmp_path: Path) -> None:
    """A checkpoint is of its pipeline's name for good, so its place alone leads nowhere."""
    old, new = World(tmp_path, name="old"), World(tmp_path, name="new", checkpoint=str(tmp_path / "another"))
    old.land(1)
    old.run(0)
    new.land(2)
    told = re.search(r"if that pipeline is this one[^;]*: Pipeline\('(\w+)', …, checkpoint='(\S+)'\);", refused(new, 0))
    assert told is not None
    new.options |= {"name": told[1], "checkpoint": told[2]}
    assert new.run(1) is not None
    assert new.table() == {0: [1], 1: [2]}


def test_so_does_one_of_a_job_that_was_renamed(tmp_path: Path) -> None:
    def job(name: str, place: str, pipeline: str) -> World:
        graph = JobGraph(name, checkpoint=place)
        orders = FileSource(str(tmp_path / "landing"), format="json", schema="id long")
        graph.sink(
            "rows", graph.source("orders", orders), FileSink(str(tmp_path / "lake"), format="json"), pipeline=pipeline
        )
        (made,) = graph.pipelines
        world = World(tmp_path, name=made.name, checkpoint=made.checkpoint, transform=None)
        world.sources = {"orders": orders}
        return world

    old, new = job("shop", str(tmp_path / "jobs"), "v1.orders"), job("store", str(tmp_path / "others"), "orders")
    (tmp_path / "landing").mkdir(exist_ok=True)
    (tmp_path / "landing" / "1.json").write_text('{"id": 1}\n')
    old.run(0)
    (tmp_path / "landing" / "2.json").write_text('{"id": 2}\n')
    named = r"or in a job JobGraph\('(\w+)', …, checkpoint='(\S+)'\) and its sink\(…, pipeline='(\S+)'\);"
    told = re.search(named, refused(new, 0))
    assert told is not None
    again = job(*told.groups())
    assert again.run(1) is not None
    assert again.table() == {0: [1], 1: [2]}


def test_one_whose_checkpoint_was_moved_and_that_was_renamed_is_told_both(tmp_path: Path) -> None:
    old = World(tmp_path, name="old")
    old.land(1)
    old.run(0)
    (tmp_path / "checkpoint").rename(tmp_path / "moved")
    new = World(tmp_path, name="new")
    new.land(2)
    assert re.search("put it back, .* as checkpoint=…, and call the pipeline 'old' again;", refused(new, 0))
    new.options |= {"name": "old", "checkpoint": str(tmp_path / "moved")}
    assert new.run(1) is not None
    assert new.table() == {0: [1], 1: [2]}


def test_replaced_output_and_fence_marks_are_dropped_by_their_own_janitor_alone(tmp_path: Path) -> None:
    setting = Setting(tmp_path, SINKS["file sink"], clean=None)
    one, two = setting.world("one", pipeline="one"), setting.world("two", pipeline="two")
    one.land(1)
    one.run(0)
    one.run(0, clear_number=1)
    one.land(2)
    one.staged(1)
    one.expire_leases()
    one.run(2)
    two.land(3)
    refused(two, 0)
    kinds = {"replaced output removed", "fence removed"}
    assert not [action for action in two.janitor(grace_seconds=0).actions if action.kind in kinds]
    assert {action.kind for action in one.janitor(grace_seconds=0).actions} >= kinds


def test_a_checkpoint_that_was_restored_from_an_older_backup_does_not_know_what_came_after(setting: Setting) -> None:
    world = setting.world("only")
    world.land(1)
    world.run(0)
    checkpoint, backup = world.root / "checkpoint", world.root / "backup"
    shutil.copytree(checkpoint, backup)
    world.land(2)
    world.run(1)
    shutil.rmtree(checkpoint)
    backup.rename(checkpoint)
    world.land(3)
    text = refused(world, 2)
    assert "The checkpoint was restored from an older backup" in text
    assert f"microbatch rewind {checkpoint} --to 0 --drop-output" in text
    assert world.table() == {0: [1], 1: [2]}


def test_a_batch_that_was_planned_anew_is_not_published_by_an_attempt_of_before(tmp_path: Path) -> None:
    """A process that slept while its checkpoint was restored: the range is another one now."""
    world = Setting(tmp_path, SINKS["file sink"], clean=None).world("only")
    world.land(1)
    late = world.staged()
    (world.root / "checkpoint" / "offsets" / "0").unlink()
    world.expire_leases()
    world.land(0)
    world.execution.plan(run_identity(1))
    with pytest.raises(Exception, match="planned anew since attempt 1 was opened"):
        world.execution.publish(late)
    assert world.table() == {}


def test_an_attempt_is_opened_under_the_plan_that_its_run_has_seen(tmp_path: Path) -> None:
    world = Setting(tmp_path, SINKS["file sink"], clean=None).world("only")
    world.land(1)
    run = run_identity(0)
    planned = world.execution.plan(run)
    assert planned is not None
    attempt = world.execution.open_attempt(key=planned.key, run=run, code=CODE, engine=InlineEngine())
    assert attempt.identity == planned.identity
    assert BatchIdentity.from_dict(world.execution.job(attempt, None).identity) == planned.identity
    read = world.checkpoint.attempts.get(planned.key, 1)
    assert read is not None
    assert read.identity == planned.identity


def without_identity(world: World, folder: Path) -> None:
    """Its manifest as an older version of this package wrote it."""
    (part,) = (folder / "_manifest").glob("part-*")
    lines = [json.loads(line) for line in part.read_text().splitlines()]
    for line in lines:
        line.get("result", {}).pop("identity", None)
    part.write_text("".join(json.dumps(line) + "\n" for line in lines))


def as_of_before(world: World, number: int = 0, epoch: int = 1) -> None:
    """The batch's attempt and output as an older version left them."""
    path = world.root / "checkpoint" / "attempts" / "live" / str(number) / str(epoch)
    version, text = path.read_text().split("\n")
    path.write_text(f"{version}\n{json.dumps({**json.loads(text), 'identity': None})}")
    without_identity(world, world.lake / "lane=live" / f"batch_id={number}")


@pytest.fixture
def older(tmp_path: Path) -> World:
    """A pipeline whose batch 0 an older version has made."""
    world = Setting(tmp_path, SINKS["file sink"], clean=None).world("older")
    world.land(1)
    world.run(0)
    as_of_before(world)
    return world


def test_a_table_of_before_goes_on_where_attempts_of_this_checkpoint_made_it(older: World) -> None:
    older.land(2)
    assert older.run(1) is not None
    assert older.run(0, InlineEngine(transform=lambda _: [{"id": 9}]), clear_number=1) is not None
    assert older.table() == {0: [9], 1: [2]}


def test_a_batch_that_an_older_version_published_and_did_not_commit_is_committed(older: World) -> None:
    (older.root / "checkpoint" / "commits" / "0").unlink()
    (older.root / "checkpoint" / "attempts" / "live" / "0" / "1.end").unlink()
    engine = InlineEngine()
    assert older.run(0, engine, try_number=2) is not None
    assert engine.jobs == []
    assert older.checkpoint.commit_log.ids() == [0]


@pytest.mark.parametrize("late_ms", [-60_000, 0])
def test_it_is_where_the_clocks_of_its_two_hosts_differ(older: World, late_ms: int) -> None:
    planned = older.checkpoint.offset_log.get(0)
    assert planned is not None
    path = older.root / "checkpoint" / "attempts" / "live" / "0" / "1"
    version, _, text = path.read_text().partition("\n")
    path.write_text(
        f"{version}\n{json.dumps({**json.loads(text), 'started_ms': planned.batch_timestamp_ms + late_ms})}"
    )
    (older.root / "checkpoint" / "commits" / "0").unlink()
    (older.root / "checkpoint" / "attempts" / "live" / "0" / "1.end").unlink()
    assert older.run(0, try_number=2) is not None
    assert older.table() == {0: [1]}


def test_a_kept_table_of_before_is_no_new_checkpoints(older: World) -> None:
    new = Setting(older.root.parent, SINKS["file sink"], clean="delete").world("new")
    new.land(2)
    assert "did not say whose a batch is" in refused(new, 0)


def test_output_of_before_is_not_that_of_a_new_attempt_of_the_same_number(tmp_path: Path) -> None:
    """The new checkpoint had planned its batch, and begun to run it, when the other one published."""
    setting = Setting(tmp_path, SINKS["file sink"], clean="delete")
    old, new = setting.world("old"), setting.world("new")
    new.land(2)
    attempt = new.staged()
    old.land(1)
    old.run(0)
    as_of_before(old)
    assert attempt.epoch == 1
    with pytest.raises(SinkError, match="is another one than"):
        new.execution.publish(attempt)
    new.expire_leases()
    refused(new, 1)
    assert old.table() == {0: [1]}


def test_a_batch_keeps_its_identity_when_a_repair_writes_its_lost_entry_again(tmp_path: Path) -> None:
    world = Setting(tmp_path, SINKS["file sink"], clean=None).world("only")
    for number in range(4):
        world.land(number)
        world.run(number)
    before = planned_identity(world.checkpoint, BatchKey("live", 2))
    (world.root / "checkpoint" / "offsets" / "2").write_bytes(b"v2\n{")
    (world.root / "checkpoint" / "metadata").unlink()
    applied(world)
    assert planned_identity(world.checkpoint, BatchKey("live", 2)) == before
    assert world.published(BatchKey("live", 2)) is not None
    world.run(2, InlineEngine(transform=lambda _: [{"id": 9}]), clear_number=1)
    assert world.table()[2] == [9]


def restored(tmp_path: Path, *, clean: str | None) -> World:
    """Batch 0 is in the backup, batches 1 and 2 were lost with the checkpoint; file 3 has landed since."""
    world = Setting(tmp_path, SINKS["file sink"], clean=clean).world("only")
    checkpoint, backup = world.root / "checkpoint", world.root / "backup"
    world.land(1)
    world.run(0)
    shutil.copytree(checkpoint, backup)
    for number in (2, 3):
        world.land(number)
        world.run(number)
    shutil.rmtree(checkpoint)
    backup.rename(checkpoint)
    world.land(4)
    return world


def test_after_a_restore_a_rewind_takes_out_what_the_backup_does_not_know(tmp_path: Path) -> None:
    world = restored(tmp_path, clean=None)
    refused(world, 4)
    (finding,) = check_table(world.checkpoint, everything=False).findings
    assert "restored from an older backup" in finding.message
    with pytest.raises(MaintenanceError, match="is in the table, and would be in it twice: batch 1, 2"):
        planned(world, rewind(0, drop_output=False))
    applied(world, rewind(0))
    for number in range(5, 8):
        world.run(number)
    assert sorted(row for rows in world.table().values() for row in rows) == [1, 2, 3, 4]
    assert check_table(world.checkpoint, everything=True).findings == []


def test_so_it_does_where_attempts_are_on_record_that_the_restored_logs_do_not_know(tmp_path: Path) -> None:
    world = Setting(tmp_path, SINKS["file sink"], clean=None).world("only")
    checkpoint, backup = world.root / "checkpoint", world.root / "backup"
    world.land(1)
    world.run(0)
    for log in ("offsets", "commits"):
        shutil.copytree(checkpoint / log, backup / log)
    world.land(2)
    world.run(1)
    for log in ("offsets", "commits"):
        shutil.rmtree(checkpoint / log)
        (backup / log).rename(checkpoint / log)
    refused(world, 2)
    applied(world, rewind(0))
    for number in range(2, 5):
        world.run(number)
    assert sorted(row for rows in world.table().values() for row in rows) == [1, 2]
    assert check_table(world.checkpoint, everything=True).findings == []


def test_after_a_restore_nothing_is_taken_out_whose_input_may_be_gone(tmp_path: Path) -> None:
    world = restored(tmp_path, clean="delete")
    for allow_skip in (False, True):
        with pytest.raises(MaintenanceError, match="source 'orders': clean_source has taken the files of entries 1"):
            planned(world, rewind(0, allow_skip=allow_skip))
    with pytest.raises(MaintenanceError, match="allow it with --allow-reread"):
        planned(world, start_behind())
    applied(world, start_behind(allow_reread=True))
    with pytest.raises(SourceError, match="what they held is in the table only if that is younger"):
        world.run(4)
    shutil.rmtree(world.landing() / ".microbatch_cleaned")
    for number in range(5, 9):
        world.run(number)
    assert world.table()[1] == [2]
    assert sorted({row for rows in world.table().values() for row in rows}) == [1, 2, 3, 4]


def test_nor_where_it_cannot_be_looked_for_behind_the_place_where_plans_go_on(tmp_path: Path) -> None:
    world = restored(tmp_path, clean=None)
    world.landing().rename(tmp_path / "away")
    with pytest.raises(MaintenanceError, match=r"rows may be nowhere else: .*landing.*--allow-skip.*--allow-reread"):
        planned(world, rewind(0))
    assert "lost to the table" in "\n".join(planned(world, rewind(0, allow_skip=True)).notes)
    (tmp_path / "away").rename(world.landing())
    applied(world, rewind(0))
    for number in range(4, 8):
        world.run(number)
    assert sorted(row for rows in world.table().values() for row in rows) == [1, 2, 3, 4]


@pytest.mark.parametrize("error", [DefinitionError, CheckpointError])
def test_nor_where_a_connection_or_an_entry_that_it_takes_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    world = restored(tmp_path, clean=None)
    monkeypatch.setattr(OpenFileSource, "gone_since", mock.Mock(side_effect=error("there is no 'lake'")))
    with pytest.raises(MaintenanceError, match=r"rows may be nowhere else: there is no 'lake'.*--allow-skip"):
        planned(world, rewind(0))
    assert "there is no 'lake'" in "\n".join(planned(world, rewind(0, allow_skip=True)).notes)


def test_the_rewind_that_cuts_a_damaged_source_log_off_does_so_behind_a_backup_too(tmp_path: Path) -> None:
    world = restored(tmp_path, clean=None)
    (world.root / "checkpoint" / "sources" / "orders" / "0").write_bytes(b"v1\n{")
    with pytest.raises(MaintenanceError, match="Batch 0 is later than that: rewind further"):
        planned(world, rewind(0, allow_skip=True))
    with pytest.raises(MaintenanceError, match=r"nobody knows what the later batches read.*--allow-skip"):
        planned(world, rewind(-1))
    applied(world, rewind(-1, allow_skip=True))
    for number in range(5, 9):
        world.run(number)
    assert sorted(row for rows in world.table().values() for row in rows) == [1, 2, 3, 4]


def test_once_what_was_taken_is_back_the_rewind_goes_on(tmp_path: Path) -> None:
    """No run is needed between: each would be refused, since the table is younger."""
    world = restored(tmp_path, clean="delete")
    with pytest.raises(MaintenanceError, match="move the files back to where they were"):
        planned(world, rewind(0))
    there = {json.loads(path.read_text())["id"] for path in world.landing().glob("*.json")}
    for gone in {2, 3} - there:
        world.land(gone)
    shutil.rmtree(world.landing() / ".microbatch_cleaned")
    with pytest.raises(MaintenanceError, match="then --allow-skip says so"):
        planned(world, rewind(0))
    notes = applied(world, rewind(0, allow_skip=True)).notes
    assert re.search(r"lost .* batches [1-4, ]+ read: source orders, which gives up", "\n".join(notes))
    for number in range(5, 10):
        world.run(number)
    assert sorted(row for rows in world.table().values() for row in rows) == [1, 2, 3, 4]


def test_check_finds_a_batch_that_was_removed_by_hand_and_says_how_to_bring_it_back(tmp_path: Path) -> None:
    world = Setting(tmp_path, SINKS["file sink"], clean=None).world("only")
    for number in range(3):
        world.land(number)
        world.run(number)
    assert check_table(world.checkpoint, everything=True).asked == 3
    shutil.rmtree(world.lake / "lane=live" / "batch_id=1")
    (finding,) = check_table(world.checkpoint, everything=False).findings
    assert finding.message.startswith("batch live/1 is committed and not in file://")
    assert "Clear task 'micro_batch' of run 'run-1' of DAG 'orders'" in finding.repair
    assert f"microbatch rewind {world.root}/checkpoint --to 0 --drop-output" in finding.repair
    world.run(1, clear_number=1)
    assert world.table()[1] == [1]
    assert check_table(world.checkpoint, everything=True).findings == []


def test_a_sample_has_the_newest_batches_and_some_of_all_ages() -> None:
    keys = [BatchKey("live", number) for number in range(1000)]
    chosen = sample(keys)
    assert len(chosen) == SAMPLE
    assert chosen[-10:] == keys[-10:]
    assert chosen[0] == keys[0]
    assert sample(keys[:5]) == keys[:5]
    assert sorted(sample(keys[:15])) == keys[:15]


def test_check_looks_at_the_place_of_a_batch_that_is_planned(tmp_path: Path) -> None:
    setting = Setting(tmp_path, SINKS["file sink"], clean=None)
    one, two = setting.world("one", pipeline="one"), setting.world("two", pipeline="two")
    two.land(2)
    two.staged()
    one.land(1)
    one.run(0)
    two.expire_leases()
    (finding,) = check_table(two.checkpoint, everything=False).findings
    assert "it was published by pipeline 'one'" in finding.message


@pytest.mark.parametrize(
    ("stray", "told"),
    [
        ("lane=live/batch_id=7/part-0.json", "batch_id=7 has no manifest"),
        ("lane=live/batch_id=07/part-0.json", "batch_id=07 is no batch's folder"),
        ("lane=live/part-0.json", "part-0.json is no batch's folder"),
        ("part-0.json", "part-0.json is no lane's folder"),
        ("_hidden/part-0.json", None),
    ],
)
def test_check_names_what_lies_in_the_table_and_is_no_batchs(tmp_path: Path, stray: str, told: str | None) -> None:
    world = Setting(tmp_path, SINKS["file sink"], clean=None).world("only")
    world.land(1)
    world.run(0)
    path = world.lake / stray
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text('{"id": 9}\n')
    found = [one for one in check_table(world.checkpoint, everything=True).findings if one.kind == "stray"]
    assert [told in one.message for one in found] == ([] if told is None else [True])
    assert all("Move it out of the table" in one.repair for one in found)
