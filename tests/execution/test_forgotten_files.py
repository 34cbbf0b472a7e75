"""A checkpoint and its table that were restored together from an older backup: nothing in them tells of the batches
that came after, and ``clean_source`` has taken what these had read."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_microbatch.checkpoint.records import encode_record
from airflow_provider_microbatch.exceptions import SourceChangedError, SourceError
from airflow_provider_microbatch.sources.file import FileSource
from airflow_provider_microbatch.sources.file.place import NOTES
from airflow_provider_microbatch.upkeep.commands.rename_source import plan_rename_source
from airflow_provider_microbatch.upkeep.source_check import check_sources
from tests.execution.maintaining import applied, backed_up, put_back
from tests.execution.world import World, run_identity
from tests.support.inline_engine import InlineEngine


@pytest.fixture(params=["delete", "archive"])
def how(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture
def world(tmp_path: Path, how: str) -> World:
    world = World(tmp_path)
    archive = str(tmp_path / "archive") if how == "archive" else None
    source = FileSource(
        str(world.landing()), format="json", schema="id long", clean_source=how, archive_dir=archive
    )  # fmt: skip
    world.sources = {"orders": source}
    return world


def restored_from_before(world: World) -> World:
    """Batch 0 is in the backup; batches 1 and 2, which read files 2 and 3, came after it. File 4 has landed since."""
    world.land(1)
    world.run(0)
    backed_up(world)
    for number in (1, 2):
        world.land(number + 1)
        world.run(number)
    put_back(world)
    world.land(4)
    return world


def renamed(world: World, old: str = "orders", new: str = "sales") -> None:
    """In the checkpoint, and in the DAG file."""
    applied(world, lambda drafting: plan_rename_source(drafting, old=old, new=new))
    world.sources = {new: world.sources[old]}


def note(world: World, name: str = "orders") -> Path:
    return world.landing() / NOTES / f"{world.checkpoint_id}.{name}"


def test_files_of_batches_that_a_restored_checkpoint_has_forgotten_stop_its_plan(world: World, how: str) -> None:
    restored_from_before(world)
    logs = {path: path.read_bytes() for path in (world.root / "checkpoint" / "sources").rglob("*") if path.is_file()}
    with pytest.raises(
        SourceError, match=r"files of entries 1 to 2 of the source log .* ends at 0.*older backup"
    ) as told:
        world.run(3)
    assert str(note(world)) in str(told.value)
    assert (str(world.root / "archive") in str(told.value)) == (how == "archive")
    with pytest.raises(SourceError, match="restored from an older backup"):
        _ = world.execution.should_fire()
    assert world.checkpoint.offset_log.ids() == [0], "nothing is planned"
    assert logs == {path: path.read_bytes() for path in logs}
    (finding,) = check_sources(world.checkpoint)
    assert "restored from an older backup" in finding.message


@pytest.mark.parametrize("how", ["archive"], indirect=True)  # what is deleted comes back from nowhere
def test_they_are_read_again_once_they_were_put_back(world: World) -> None:
    restored_from_before(world)
    for number in (2, 3):
        (world.root / "archive" / f"{number:06d}.json").rename(world.landing() / f"{number:06d}.json")
    note(world).unlink()
    world.run(3)
    assert sorted(row for rows in world.table().values() for row in rows) == [1, 2, 3, 4]
    assert check_sources(world.checkpoint) == []


def test_who_does_not_miss_them_goes_on_by_removing_the_note(world: World) -> None:
    restored_from_before(world)
    note(world).unlink()
    world.run(3)
    assert world.table() == {0: [1], 1: [4]}


def test_a_landing_folder_that_was_restored_too_has_the_note_of_then(world: World) -> None:
    world.land(1)
    world.run(0)
    backed_up(world)
    shutil.copytree(world.landing(), world.root / "landing of then")
    world.land(2)
    world.run(1)
    put_back(world)
    shutil.rmtree(world.landing())
    (world.root / "landing of then").rename(world.landing())
    world.land(2)
    world.run(2)
    assert world.table() == {0: [1], 1: [2]}


def test_what_was_planned_when_the_backup_was_made_is_not_skipped_as_vanished(world: World, how: str) -> None:
    """The source log has the entry, and the record of the cleaner is of before it."""
    world.sources["orders"] = replace(world.sources["orders"], on_missing="skip")
    world.land(1)
    world.land(2)
    world.execution.plan(run_identity(0))
    (world.root / "lake").mkdir(exist_ok=True)
    backed_up(world)
    world.run(0)
    put_back(world)
    if how == "archive":
        world.run(1)
        assert world.table() == {0: [1, 2]}, "the note knows the archive, too"
    else:
        with pytest.raises(SourceChangedError, match="were archived or deleted by clean_source"):
            world.run(1)


def test_no_file_is_taken_that_could_not_be_noted(world: World) -> None:
    landed = world.land(1)
    execution = world.execution
    manifest = execution.publish(world.staged(0))
    (world.landing() / NOTES).write_text("in the way")
    execution.commit(key=manifest.key, manifest=manifest, run=run_identity(0))
    assert landed.exists()
    (world.landing() / NOTES).unlink()
    world.land(2)
    world.run(1)
    assert sorted(path.name for path in world.landing().iterdir()) == [NOTES]


def test_a_note_by_a_link_is_neither_read_nor_followed(world: World) -> None:
    elsewhere = world.root / "elsewhere"
    elsewhere.mkdir()
    (world.landing() / NOTES).symlink_to(elsewhere)
    world.land(1)
    with pytest.raises(SourceError, match="cannot be read"):
        world.run(0)
    assert list(elsewhere.iterdir()) == []


def test_another_checkpoint_reads_what_is_there(world: World) -> None:
    world.land(1)
    world.run(0)
    new = World(world.root, checkpoint=str(world.root / "new"), sink=world.pipeline.sink)
    new.lake = world.root / "new lake"
    new.options["sink"] = replace(world.pipeline.sink, path=str(new.lake))
    new.sources = dict(world.sources)
    new.land(2)
    new.run(0, InlineEngine())
    assert new.table() == {0: [2]}


def test_a_source_that_is_renamed_after_the_restore_misses_them_too(world: World) -> None:
    restored_from_before(world)
    renamed(world)
    with pytest.raises(SourceError, match=r"source 'sales': .*files of entries 1 to 2 .*older backup") as told:
        world.run(3)
    assert str(note(world)) in str(told.value)
    note(world).unlink()
    world.run(3)
    assert world.table() == {0: [1], 1: [4]}


def test_so_does_a_source_that_was_renamed_since_and_has_its_former_name_again(world: World) -> None:
    """Checkpoint, table and DAG are those of before the rename; the files were taken under the name of after it."""
    world.land(1)
    world.run(0)
    backed_up(world)
    renamed(world)
    renamed(world, "sales", "revenue")
    world.land(2)
    world.run(1)
    put_back(world)
    world.sources = {"orders": world.sources["revenue"]}
    world.land(3)
    with pytest.raises(SourceError, match=r"source 'orders': .*files of entries 1 to 1 .*older backup") as told:
        world.run(2)
    for name in ("orders", "sales", "revenue"):
        assert str(note(world, name)) in str(told.value)
    renamed(world)  # as it was called half way
    with pytest.raises(SourceError, match="older backup") as told:
        world.run(2)
    for name, entries in {"orders": "1 to 1", "sales": "1 to 1", "revenue": "0 to 1"}.items():
        assert f"'{note(world, name)}' (entries {entries})" in str(told.value)
        note(world, name).unlink()
    world.run(2)
    assert world.table() == {0: [1], 1: [3]}


def test_notes_that_tell_of_other_entries_are_named_at_once(world: World) -> None:
    """Each is of another life, or of a version that noted under the name of the day alone."""
    restored_from_before(world)
    data = note(world).read_bytes()
    assert b"[[0, 2]]" in data
    note(world).write_bytes(data.replace(b"[[0, 2]]", b"[[0, 1]]"))
    note(world, "sales").write_bytes(data.replace(b"[[0, 2]]", b"[[0, 0], [2, 4]]"))
    with pytest.raises(SourceError, match="older backup") as told:
        world.run(3)
    assert f"'{note(world)}' (entries 1 to 1) and '{note(world, 'sales')}' (entries 0 to 0, 2 to 4)" in str(told.value)


def added_since_and_forgotten(world: World) -> FileSource:
    """Source `b` reads the `.other` files of the folder, of which the backup knows nothing. One was taken."""
    other = replace(world.sources["orders"], file_name_pattern="*.other")
    world.sources = {"orders": replace(world.sources["orders"], file_name_pattern="*.json")}
    world.land(1)
    world.run(0)
    backed_up(world)
    world.sources["b"] = other
    (world.landing() / "2.other").write_text('{"id": 2}\n')
    world.run(1)
    assert not (world.landing() / "2.other").exists()
    put_back(world)
    del world.sources["b"]
    return other


@pytest.mark.parametrize("name", ["b", "c"])
def test_a_source_that_was_added_since_and_is_added_again_misses_them(world: World, name: str) -> None:
    other = added_since_and_forgotten(world)
    world.sources["orders"] = replace(world.sources["orders"], path=str(world.landing("elsewhere")))
    world.sources[name] = other
    (world.landing() / "3.other").write_text('{"id": 3}\n')
    with pytest.raises(SourceError, match=rf"source '{name}': .*files of entries 0 to 0 of .*older backup") as told:
        world.run(2)
    assert str(note(world, "b")) in str(told.value)
    assert ("of source 'b', which it does not know" in str(told.value)) == (name == "c")
    with pytest.raises(SourceError, match="older backup"):
        _ = world.execution.should_fire()
    assert str(told.value) in [finding.message for finding in check_sources(world.checkpoint)]
    note(world, "b").unlink()
    assert check_sources(world.checkpoint) == []
    world.run(2)
    assert world.table() == {0: [1], 1: [3]}
    assert check_sources(world.checkpoint) == []


def test_who_reads_beside_a_source_that_was_added_since_is_told(world: World) -> None:
    added_since_and_forgotten(world)
    world.land(4)
    with pytest.raises(SourceError, match=r"source 'orders': .*of source 'b', which it does not know.*older backup"):
        world.run(2)
    (finding,) = check_sources(world.checkpoint)
    assert "source 'b'" in finding.message


def test_the_note_of_another_source_of_the_folder_is_its_own(world: World) -> None:
    """Of today's pipeline, or one that was taken out of it, under each name that it had."""
    other = replace(world.sources["orders"], file_name_pattern="*.other")
    world.sources = {"orders": replace(world.sources["orders"], file_name_pattern="*.json"), "b": other}
    for number in (1, 2):
        world.land(number)
        (world.landing() / f"{number}.other").write_text(f'{{"id": {number}0}}\n')
        world.run(number - 1)
    assert note(world).exists()
    assert note(world, "b").exists()
    applied(world, lambda drafting: plan_rename_source(drafting, old="b", new="c"))
    del world.sources["b"]
    world.land(3)
    world.run(2)
    assert world.table() == {0: [1, 10], 1: [2, 20], 2: [3]}
    assert check_sources(world.checkpoint) == []


def test_a_former_name_that_is_a_path_is_no_place_of_a_note(world: World) -> None:
    """Who can write the checkpoint, as user code can, says that the source was called so."""
    world.land(1)
    world.run(0)
    said = world.root / "checkpoint" / "microbatch" / "renamed" / "0"
    said.parent.mkdir(parents=True)
    said.write_bytes(encode_record({"old": "../../elsewhere", "new": "orders"}))
    world.land(2)
    with pytest.raises(SourceError, match=r"called '../../elsewhere' before, which is no name of a source"):
        world.run(1)
