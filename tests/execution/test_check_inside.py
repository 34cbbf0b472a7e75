"""``microbatch check --table`` looks into the folders of batches that are published."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from deltalake import DeltaTable

from airflow_provider_microbatch import connections
from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.sinks import ExpectedBatch, Manifest, Sink
from airflow_provider_microbatch.sinks.delta import DeltaSink
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sinks.merge import Merge
from airflow_provider_microbatch.upkeep.compaction import compact
from airflow_provider_microbatch.upkeep.table_check import check_table
from tests.cli.test_compact import split
from tests.execution.world import World
from tests.support import iceberg_table
from tests.support.inline_engine import InlineEngine


def told(world: World, *, everything: bool = True) -> list[str]:
    return [finding.message for finding in check_table(world.checkpoint, everything=everything).findings]


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    for number in range(2):
        world.land(number)
        world.run(number)
    assert told(world) == []
    return world


@pytest.mark.parametrize("what", ["missing: part-0", "of another size: part-0", "not in the manifest: part-1"])
def test_files_of_a_published_batch_are_compared_with_its_manifest(world: World, what: str) -> None:
    folder = world.lake / "lane=live" / "batch_id=0"
    match what.partition(":")[0]:
        case "missing":
            (folder / "part-0.json").unlink()
        case "of another size":
            (folder / "part-0.json").write_text("")
        case _:
            shutil.copy(folder / "part-0.json", folder / "part-1.json")
    (message,) = told(world)
    assert what in message
    assert told(world, everything=False) == []
    world.run(0, clear_number=1)
    assert told(world) == [], "a clear of its task puts it back"


def test_a_table_of_before_a_replay_is_found(world: World) -> None:
    folder, backup = world.lake / "lane=live" / "batch_id=0", world.root / "before"
    shutil.copytree(folder, backup)
    world.run(0, InlineEngine(transform=lambda _: [{"id": 9}]), clear_number=1)
    assert told(world) == []
    shutil.rmtree(folder)
    backup.rename(folder)
    (message,) = told(world)
    assert "is attempt 1's, and attempt 2 has replaced that since" in message


def test_a_restore_that_removed_nothing_is_found(world: World) -> None:
    """A backup without deletion has the files of before a compaction, or a replay, beside those of after it."""
    folder = world.lake / "lane=live" / "batch_id=0"
    (manifest,) = (folder / "_manifest").glob("part-*")
    shutil.copy(folder / "part-0.json", folder / "part-joined.json")
    text = manifest.read_text().replace("part-0.json", "part-joined.json")
    (folder / "_manifest" / "part-00000-of-another.txt").write_text(text)
    (message,) = told(world)
    assert "has two outputs of batch live/0" in message
    folder.rename(world.root / "moved away")
    world.run(0, clear_number=1)
    assert told(world) == []


@pytest.mark.parametrize("changed", [True, False], ids=["a compaction", "a file that goes"])
def test_what_is_exchanged_between_two_looks_is_no_damage(
    world: World, monkeypatch: pytest.MonkeyPatch, changed: bool
) -> None:
    world.land(8, 9)
    world.run(2)
    split(world, 2)
    real = FileSink.damage

    def damage(self: FileSink, batch: ExpectedBatch, found: Manifest) -> str | None:
        if found.key.id != 2:
            return real(self, batch, found)
        monkeypatch.setattr(FileSink, "damage", real)
        if changed:
            compact(world.checkpoint)
        else:
            next((world.lake / "lane=live" / "batch_id=2").glob("*.json")).unlink()
        return real(self, batch, found)

    monkeypatch.setattr(FileSink, "damage", damage)
    assert len(told(world)) == (0 if changed else 1)


@pytest.mark.parametrize("everything", [False, True])
def test_a_batch_that_was_moved_or_copied_to_a_later_number_is_found_where_it_is(
    world: World, everything: bool
) -> None:
    lane = world.lake / "lane=live"
    (lane / "batch_id=0").rename(lane / "batch_id=7")
    missing, elsewhere = told(world, everything=everything)
    assert "live/0 is committed and not in" in missing
    assert "batch_id=7 should hold batch live/7, but its manifest says" in elsewhere
    world.run(0, clear_number=1)
    assert told(world, everything=everything) == [elsewhere], (
        "a clear puts back what is in the table a second time then"
    )
    shutil.rmtree(lane / "batch_id=7")
    assert told(world, everything=everything) == []


def test_a_clear_is_named_as_the_second_step_where_something_is_in_its_way(world: World) -> None:
    lane = world.lake / "lane=live"
    shutil.rmtree(lane / "batch_id=0")
    shutil.copytree(lane / "batch_id=1", lane / "batch_id=0")
    (finding,) = check_table(world.checkpoint, everything=True).findings
    assert "batch_id=0 should hold batch live/0, but its manifest says" in finding.message
    assert finding.repair.startswith("Mend that first, as it says. If the batch is not in then: Clear task")
    shutil.rmtree(lane / "batch_id=0")
    world.run(0, clear_number=1)
    assert told(world) == []


MERGE = Merge(keys=("id",), sequence_by=("id",))


class InDelta:
    told = "version 3: RESTORE by"

    def __init__(self, lake: Path) -> None:
        self._lake = lake
        self.sink: Sink = DeltaSink(str(lake), merge=MERGE)

    def put(self, batch: int) -> None:
        """The table as it was after a batch."""
        DeltaTable(str(self._lake)).restore(batch)


class InIceberg:
    told = "the Iceberg table shop.orders was rolled back to snapshot"

    def __init__(self, lake: Path) -> None:
        self._lake = lake
        self.sink: Sink = iceberg_table.sink_in(lake, merge=MERGE)

    def put(self, batch: int) -> None:
        """The table as it was after a batch."""
        look = iceberg_table.opened_in(self._lake)._log.look()
        assert look is not None
        id = look.table.metadata.snapshots[batch].snapshot_id
        look.table.manage_snapshots().set_current_snapshot(snapshot_id=id).commit()


@pytest.mark.slow
@pytest.mark.parametrize("of", [InDelta, InIceberg])
def test_a_table_of_merged_changes_that_was_put_back_is_found_and_gets_no_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of: type[InDelta | InIceberg]
) -> None:
    table = of(tmp_path / "lake")
    monkeypatch.setattr(connections, "_found_by", [lambda _: iceberg_table.connection_of(tmp_path / "lake")])
    world = World(tmp_path, sink=table.sink)
    for number in range(3):
        world.land(number)
        world.run(number)
    assert told(world) == []
    table.put(0)
    world.land(3)
    assert all(table.told in message for message in told(world))
    assert told(world)
    with pytest.raises(SinkError, match=table.told):
        world.run(3)
    assert world.checkpoint.offset_log.latest_id() == 2
    table.put(2)
    assert told(world) == []
    world.run(3)


def test_of_a_log_of_merged_changes_that_was_put_back_alone_the_way_on_is_told_first(tmp_path: Path) -> None:
    world = World(tmp_path, sink=DeltaSink(str(tmp_path / "lake"), merge=MERGE))
    world.land(0)
    world.run(0)
    shutil.copytree(world.lake, tmp_path / "backup")
    world.land(1)
    world.run(1)
    shutil.rmtree(world.lake / "_delta_log")
    shutil.copytree(tmp_path / "backup" / "_delta_log", world.lake / "_delta_log")
    with pytest.raises(SinkError, match=r"put back the log alone.*or the whole table, of one moment"):
        world.run(2)
    first, *_ = told(world)
    assert "put back the log alone" in first
    shutil.rmtree(world.lake)
    shutil.copytree(tmp_path / "backup", world.lake)
    world.run(1, clear_number=1)
    assert told(world) == []
