"""The ways on from a table that holds somebody else's batches: to count on behind them, or to adopt one."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from airflow_provider_microbatch.checkpoint.records import decode_record, encode_record
from airflow_provider_microbatch.checkpoint.verify import verify_all
from airflow_provider_microbatch.cli.main import main
from airflow_provider_microbatch.exceptions import MaintenanceError, SinkError
from airflow_provider_microbatch.execution.plan import PINNED_BY_DEFAULT
from airflow_provider_microbatch.execution.summary import summaries
from airflow_provider_microbatch.upkeep.commands.plan import Drafting, Plan
from airflow_provider_microbatch.upkeep.commands.start_behind import plan_start_behind
from airflow_provider_microbatch.upkeep.table_check import check_table
from tests.execution.kept_tables import (
    SINKS,
    Setting,
    adopt,
    kept_table,
    planned_where_another_is,
    refused,
    restored_and_planned_anew,
    start_behind,
)
from tests.execution.maintaining import applied, filled, planned, rewind
from tests.execution.world import World, run_identity
from tests.support.inline_engine import InlineEngine
from tests.support.leases import expire_leases


@pytest.mark.parametrize("batches", [1, 2, 3])
@pytest.mark.parametrize("format", ["v1", "v2"])
def test_a_new_checkpoint_can_count_on_behind_what_the_table_holds(tmp_path: Path, batches: int, format: str) -> None:
    setting = Setting(tmp_path, SINKS["file sink"], clean=None)
    old, new = setting.world("old"), setting.world("new")
    new.options["checkpoint_format"] = format
    for number in range(batches):
        old.land(number)
        old.run(number)
    new.land(7)
    refused(new, 0)
    before = old.table()
    applied(new, start_behind())
    assert applied(new, start_behind()).steps == (), "said again there is nothing to do"
    assert verify_all(new.checkpoint) == []
    new.run(0)
    new.land(8)
    new.run(1)
    assert new.table() == {**before, batches: [7], batches + 1: [8]}
    assert verify_all(new.checkpoint) == []
    assert check_table(new.checkpoint, everything=True).findings == []
    assert PINNED_BY_DEFAULT.items() <= new.checkpoint.offset_log.get(batches).conf.items()  # type: ignore[union-attr]
    assert [batch.state for batch in summaries(new.checkpoint)][-2:] == ["committed", "committed"]
    assert new.janitor().failed is False


def test_only_a_batch_that_is_planned_can_adopt(tmp_path: Path) -> None:
    _, new = kept_table(tmp_path)
    with pytest.raises(MaintenanceError, match="batch live/0 is not planned"):
        planned(new, adopt(0))


def test_what_is_adopted_counts_and_can_be_replayed_and_rewound(tmp_path: Path) -> None:
    new = planned_where_another_is(tmp_path)
    assert f"microbatch adopt {new.root}/checkpoint live/0" in refused(new, 0)
    plan = applied(new, adopt(0, allow_skip=True))
    assert "pipeline 'orders' (checkpoint " in plan.steps[0].why
    assert applied(new, adopt(0)).steps == ()
    engine = InlineEngine()
    assert new.run(0, engine, try_number=2) is not None
    assert engine.jobs == []
    assert check_table(new.checkpoint, everything=True).findings == []
    new.land(8)
    new.run(1)
    assert new.table() == {0: [1], 1: [8]}
    new.run(0, InlineEngine(transform=lambda _: [{"id": 9}]), clear_number=1)
    assert new.table() == {0: [9], 1: [8]}
    applied(new, rewind(-1))
    assert new.table() == {}
    new.run(2)
    new.run(3)
    assert new.table() == {0: [7], 1: [8]}


def test_output_that_was_made_of_less_than_is_planned_is_adopted_only_if_that_is_said(tmp_path: Path) -> None:
    """As where the table was put back to before the batch was rewound and planned anew: the rest is in no table."""
    new = planned_where_another_is(tmp_path, files=2)
    location = new.pipeline.checkpoint
    refused(new, 0)
    new.expire_leases()
    with pytest.raises(MaintenanceError, match=r"2 files and 20 bytes are planned, .* made of others \(1 files\)"):
        planned(new, adopt(0))
    assert main(["adopt", location, "0"]) == 2
    assert main(["adopt", location, "0", "--allow-skip"]) == 0
    new.run(0)
    assert new.table() == {0: [1]}


def test_output_that_was_made_of_as_much_of_other_data_is_no_batch_of_this_plan(tmp_path: Path) -> None:
    new = planned_where_another_is(tmp_path)
    refused(new, 0)
    with pytest.raises(MaintenanceError, match=r"1 files and 10 bytes are planned, and .* made of others \(1 files\)"):
        planned(new, adopt(0))


def test_output_that_was_made_of_the_very_files_is_adopted(tmp_path: Path) -> None:
    world = restored_and_planned_anew(tmp_path)
    applied(world, adopt(1))
    engine = InlineEngine()
    assert world.run(2, engine, try_number=2) is not None
    assert engine.jobs == []
    assert world.table() == {0: [1], 1: [2]}


def test_so_is_that_of_a_source_that_no_attempt_has_read_yet(tmp_path: Path) -> None:
    """The task that planned the batch died before its attempt; the run that names the command knows the source."""
    world = filled(World(tmp_path), 1)
    world.expire_leases()
    checkpoint, kept, copy = (tmp_path / name for name in ("checkpoint", "kept", "copy"))
    shutil.copytree(checkpoint, copy)
    world.land(7, source="refunds")
    world.sources = World(tmp_path, sources=("orders", "refunds")).sources
    world.execution.plan(run_identity(1))
    checkpoint.rename(kept)
    copy.rename(checkpoint)
    world.run(1)
    shutil.rmtree(checkpoint)
    kept.rename(checkpoint)
    refused(world, 1)
    applied(world, adopt(1))
    world.run(1, try_number=2)
    assert world.table() == {0: [0], 1: [7]}


def test_what_an_older_version_has_adopted_counts(tmp_path: Path) -> None:
    """It did not record in which table that is."""
    world = restored_and_planned_anew(tmp_path)
    applied(world, adopt(1))
    entry = world.root / "checkpoint" / "adopted" / "live" / "1"
    values = decode_record(entry.read_bytes(), where="here")
    del values["sink"]
    entry.write_bytes(encode_record(values))
    world.land(3)
    for number in (2, 3):
        world.run(number)
    assert world.table() == {0: [1], 1: [2], 2: [3]}


@pytest.mark.parametrize("told", ["", '"ranges": {"refunds": "00"}'], ids=["of before", "of another source"])
def test_output_that_does_not_tell_what_it_was_made_of_proves_nothing(tmp_path: Path, told: str) -> None:
    world = restored_and_planned_anew(tmp_path)
    for manifest in (world.lake / "lane=live" / "batch_id=1").glob("_manifest/*"):
        manifest.write_text(re.sub(r'"ranges": \{[^}]*\}', told or '"other": {}', manifest.read_text()))
    with pytest.raises(MaintenanceError, match="does not tell what of source 'orders' it was made of") as refusal:
        planned(world, adopt(1))
    assert ("made of data of source 'refunds' too" in str(refusal.value)) == bool(told)


def test_an_adopted_batch_can_be_taken_out_again(tmp_path: Path) -> None:
    new = planned_where_another_is(tmp_path)
    refused(new, 0)
    applied(new, adopt(0, allow_skip=True))
    new.run(0)
    applied(new, rewind(-1))
    new.run(1)
    assert new.table() == {0: [7]}


def counted_as(world: World, number: int, other: int) -> Path:
    """A copy of the batch in the table, under another number."""
    folder = world.lake / f"lane=live/batch_id={number}"
    copy = shutil.copytree(folder, folder.with_name(f"batch_id={other}"))
    for manifest in copy.glob("_manifest/*"):
        manifest.write_text(re.sub(rf'"batchId": ?{number}\b', f'"batchId": {other}', manifest.read_text()))
    return copy


def test_a_number_in_the_table_that_nobody_has_counted_to_is_not_counted_up_to(tmp_path: Path) -> None:
    world = filled(World(tmp_path), 2)
    stray = counted_as(world, 1, 20_000)

    def start_behind(drafting: Drafting) -> Plan:
        return plan_start_behind(drafting, allow_reread=True)

    with pytest.raises(MaintenanceError, match=rf"batch_id=20000 of file://{world.lake}\).*19998 numbers"):
        planned(world, start_behind)
    shutil.rmtree(stray)
    counted_as(world, 1, 4)
    applied(world, start_behind)
    assert world.checkpoint.commit_log.ids() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("kept", "stray", "message"),
    [
        (3, 20_000, "19997 numbers before it: nobody has counted so far"),
        (3, 10**19, "nobody has counted so far"),
    ],
)
def test_a_new_checkpoint_is_refused_a_number_that_the_table_has_not_come_to(
    tmp_path: Path, kept: int, stray: int, message: str
) -> None:
    counted_as(filled(World(tmp_path), kept), 0, stray)
    new = World(tmp_path, checkpoint=str(tmp_path / "new"))
    with pytest.raises(SinkError):
        new.run(0)
    with pytest.raises(MaintenanceError, match=rf"batch_id={stray} of file://{new.lake}\).*{message}"):
        planned(new, lambda drafting: plan_start_behind(drafting, allow_reread=True))


@pytest.mark.parametrize("stray", [2**63 - 1, 10**19])
def test_nor_is_one_without_batches_a_number_that_no_batch_can_have(tmp_path: Path, stray: int) -> None:
    world = filled(World(tmp_path), 1)
    folder = counted_as(world, 0, stray)
    elsewhere = folder.rename(tmp_path / folder.name)
    expire_leases(world.root / "checkpoint")
    applied(world, rewind(-1))
    folder.parent.mkdir(exist_ok=True)
    elsewhere.rename(folder)
    with pytest.raises(MaintenanceError, match=f"batch_id={stray} of .*no number of a batch"):
        planned(world, lambda drafting: plan_start_behind(drafting, allow_reread=True))


def test_a_new_checkpoint_starts_behind_whatever_number_the_table_has_come_to(tmp_path: Path) -> None:
    """Its log begins there, so that nothing has to be counted."""
    old = filled(World(tmp_path), 1)
    for number in range(10_000, 60_000, 10_000):
        counted_as(old, 0, number)
    new = World(tmp_path, checkpoint=str(tmp_path / "new"))
    with pytest.raises(SinkError):
        new.run(0)
    assert len(planned(new, lambda drafting: plan_start_behind(drafting, allow_reread=True)).steps) == 4


def test_who_names_a_place_that_its_checkpoint_was_moved_from_is_told_so_before_all_is_read_twice(
    tmp_path: Path,
) -> None:
    world = Setting(tmp_path, SINKS["file sink"], clean=None).world("shop")
    for number in range(2):
        world.land(number)
        world.run(number)
    checkpoint = world.root / "checkpoint"
    checkpoint.rename(world.root / "moved")
    world.land(2)
    assert "if the checkpoint that was here was moved, put it back" in refused(world, 2)
    with pytest.raises(MaintenanceError, match=r"batches 0 to 1 .* from here, by another checkpoint[\s\S]*was moved"):
        planned(world, start_behind())
    assert any("is read again" in note for note in planned(world, start_behind(allow_reread=True)).notes)
    checkpoint.rename(world.root / "begun by mistake")
    (world.root / "moved").rename(checkpoint)
    world.run(3)
    assert world.table() == {0: [0], 1: [1], 2: [2]}
