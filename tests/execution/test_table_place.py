"""The table's folder is away, or the pipeline writes to another table: nothing is hidden, lost or doubled silently."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from airflow_provider_microbatch.exceptions import BatchSetAsideError, ForeignBatchError, SinkError, TransformError
from airflow_provider_microbatch.execution.table_place import make_ready
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sinks.table import TableSink
from airflow_provider_microbatch.sinks.table.path_catalog import PathCatalog
from airflow_provider_microbatch.upkeep.commands.rewind import plan_rewind
from airflow_provider_microbatch.upkeep.commands.start_behind import plan_start_behind
from airflow_provider_microbatch.upkeep.table_check import check_table
from tests.execution.intervals import IntervalWorld, backfill_run, hour
from tests.execution.maintaining import applied, filled, rewind, rows
from tests.execution.world import CODE, KEY, Killed, World, run_identity
from tests.support.inline_engine import InlineEngine


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Two batches are committed, and a file has come for the next one."""
    world = World(tmp_path)
    for number in range(2):
        world.land(number)
        world.run(number)
    world.land(2)
    return world


@pytest.mark.parametrize("mount_point", [False, True], ids=["not there", "empty"])
def test_nothing_is_planned_while_the_table_is_away(world: World, mount_point: bool) -> None:
    kept = world.lake.rename(world.root / "kept")
    if mount_point:
        world.lake.mkdir()
    with pytest.raises(SinkError, match=r"batch live/1 is committed, and the table .* may not be mounted"):
        world.run(2)
    assert world.checkpoint.offset_log.ids() == [0, 1]
    shutil.rmtree(world.lake, ignore_errors=True)
    kept.rename(world.lake)
    world.run(3)
    assert world.table() == {0: [0], 1: [1], 2: [2]}


def goes_on_once_emptied(world: World) -> None:
    """Refused until somebody says that it was on purpose, as the error tells."""
    shutil.rmtree(world.lake)
    with pytest.raises(SinkError, match="emptied on purpose") as refused:
        world.run(2)
    told_folder(refused).mkdir(parents=True)
    world.run(2)
    assert world.table() == {2: [2]}


def test_a_table_that_was_emptied_on_purpose_goes_on(world: World) -> None:
    goes_on_once_emptied(world)


def told_folder(refused: pytest.ExceptionInfo[SinkError]) -> Path:
    """The folder that the error says to make."""
    return Path(str(refused.value).partition("make the folder ")[2].partition(";")[0])


def away(world: World) -> Path:
    """The table's file system is taken away: what is left is the place where it is mounted. Returns where it is."""
    kept = world.lake.rename(world.root / "kept")
    world.lake.mkdir()
    return kept


def back(world: World, kept: Path) -> None:
    """It is mounted again, over whatever was written there."""
    world.lake.rename(world.root / "hidden")
    kept.rename(world.lake)


@pytest.mark.parametrize("known", [True, False], ids=["known by an id", "of before ids"])
def test_a_planned_batch_is_not_run_into_the_place_of_a_table_that_is_away(world: World, known: bool) -> None:
    with pytest.raises(Killed):
        world.run(2, InlineEngine(before_stage=kill))
    world.expire_leases()
    if not known:
        forget(world)
    kept, retry = away(world), InlineEngine()
    with pytest.raises(SinkError, match="may not be mounted"):
        world.run(2, retry, try_number=2)
    assert retry.jobs == []
    assert list(world.lake.iterdir()) == [], "with something in it no plan sees that the table is away"
    back(world, kept)
    world.run(2, try_number=3)
    assert world.table() == {0: [0], 1: [1], 2: [2]}


def test_a_clear_is_not_answered_in_the_place_of_a_table_that_is_away(world: World) -> None:
    kept, replay = away(world), InlineEngine(transform=lambda _: [{"id": 100}])
    with pytest.raises(SinkError, match="may not be mounted"):
        world.run(0, replay, clear_number=1)
    assert replay.jobs == []
    back(world, kept)
    world.run(0, replay, clear_number=1, try_number=2)
    assert world.table() == {0: [100], 1: [1]}


def test_what_a_job_wrote_after_the_table_went_away_is_not_published(world: World) -> None:
    kept: list[Path] = []
    with pytest.raises(SinkError, match="may not be mounted"):
        world.run(2, InlineEngine(before_stage=lambda _: kept.append(away(world))))
    assert world.checkpoint.commit_log.ids() == [0, 1]
    back(world, *kept)
    world.run(2, try_number=2)
    assert world.table() == {0: [0], 1: [1], 2: [2]}


def test_an_exchange_of_mounts_is_not_taken_for_the_table(world: World) -> None:
    other = World(world.root / "other")
    other.land(7)
    other.run(0)
    kept = world.lake.rename(world.root / "kept")
    other.lake.rename(world.lake)
    with pytest.raises(SinkError, match="another one is in its place"):
        world.run(2)
    back(world, kept)
    world.run(2)
    assert world.table() == {0: [0], 1: [1], 2: [2]}


@pytest.mark.parametrize("known", [True, False], ids=["known by an id", "of before ids"])
def test_a_batch_that_is_set_aside_tells_nothing_of_the_table(tmp_path: Path, known: bool) -> None:
    world = filled(World(tmp_path, on_failure="set_aside", set_aside_after=1), 2)
    world.land(2)

    def fail(_: object) -> list[dict[str, int]]:
        raise ValueError("a bad batch")

    with pytest.raises(BatchSetAsideError):
        world.run(2, InlineEngine(transform=fail))
    if not known:
        forget(world)
    world.land(3)
    kept = away(world)
    with pytest.raises(SinkError, match=r"batch live/1 is committed, and .* may not be mounted"):
        world.run(3)
    assert list(world.lake.iterdir()) == []
    back(world, kept)
    world.run(3)
    assert world.table() == {0: [0], 1: [1], 3: [3]}


def test_the_janitor_leaves_nothing_in_the_place_of_a_table_that_is_away(world: World) -> None:
    forget(world)
    run, engine = run_identity(0, clear_number=1), InlineEngine()
    found = world.execution.look(KEY, run, engine_of=lambda name: engine)
    world.execution.open_attempt(key=KEY, run=run, code=CODE, engine=engine, look=found)
    world.expire_leases()
    away(world)
    world.janitor()
    assert list(world.lake.iterdir()) == []
    with pytest.raises(SinkError, match="may not be mounted"):
        world.run(2)


@pytest.mark.parametrize("drop_output", [True, False], ids=["drop output", "keep output"])
def test_a_rewind_does_not_take_a_table_that_is_away_for_an_empty_one(world: World, drop_output: bool) -> None:
    kept = away(world)
    before = world.files()
    with pytest.raises(SinkError, match="may not be mounted"):
        applied(world, rewind(0, drop_output=drop_output))
    assert world.files() == before
    back(world, kept)
    applied(world, rewind(0))
    world.run(3)
    world.run(4)
    assert rows(world) == [0, 1, 2]


def test_a_table_of_before_ids_is_known_by_one_once_it_has_shown_its_newest_batch(world: World) -> None:
    forget(world)
    world.run(2)
    assert [path.name for path in (world.lake / "_table_id").iterdir()] == known_tables(world)
    assert len(known_tables(world)) == 1


@pytest.mark.parametrize("left", ["_staging", "_table_id"])
def test_nor_is_it_written_before_what_an_older_version_left_in_its_place(world: World, left: str) -> None:
    forget(world)
    kept, engine = away(world), InlineEngine()
    (world.lake / left).mkdir()
    for number in (2, 3):
        with pytest.raises(SinkError, match=r"newest batch .* is not there: its file system may not be mounted"):
            world.run(number, engine)
        world.expire_leases()
    assert engine.jobs == []
    assert known_tables(world) == []
    back(world, kept)
    world.run(4)
    assert world.table() == {0: [0], 1: [1], 2: [2]}


def test_a_newest_batch_that_was_removed_by_hand_is_brought_back_once_somebody_says_so(world: World) -> None:
    forget(world)
    (world.lake / "lane=live" / "batch_id=1").rename(world.root / "removed by hand")
    with pytest.raises(SinkError, match="or the batch removed") as refused:
        world.run(2)
    world.expire_leases()
    told_folder(refused).mkdir()
    world.run(2, try_number=2)
    assert known_tables(world) == [told_folder(refused).name]
    world.run(1, clear_number=1)
    assert world.table() == {0: [0], 1: [1], 2: [2]}


def test_a_table_of_before_ids_that_was_emptied_goes_on_once_somebody_says_so(world: World) -> None:
    forget(world)
    goes_on_once_emptied(world)


def test_pipelines_that_write_one_table_share_its_id(world: World) -> None:
    other = World(world.root / "other", name="returns")
    other.lake = world.lake
    with pytest.raises(ForeignBatchError):
        filled(other, 1)
    applied(other, lambda drafting: plan_start_behind(drafting, allow_reread=False))
    other.run(1)
    assert known_tables(other) == known_tables(world)
    assert len(known_tables(other)) == 1


def test_a_table_that_was_moved_is_known_where_it_is_now(world: World) -> None:
    world.staged(2)
    world.expire_leases()
    moved = world.lake.rename(world.root / "moved")
    world.options["sink"] = FileSink(str(moved), format="json")
    world.run(2, try_number=2)
    assert [action for action in world.janitor().actions if action.kind == "failed"] == []
    assert check_table(world.checkpoint, everything=True).findings == []
    applied(world, rewind(1))
    world.run(2)
    world.land(3)
    with pytest.raises(Killed):
        world.run(3, InlineEngine(before_stage=kill))
    world.expire_leases()
    applied(world, rewind(2, drop_output=False))
    assert len(known_tables(world)) == 2
    assert len(set(known_tables(world))) == 1


def known_tables(world: World) -> list[str]:
    """Ids of the tables that the checkpoint has on record."""
    folder = world.root / "checkpoint" / "microbatch" / "tables"
    return [json.loads(path.read_text().splitlines()[1])["id"] for path in folder.glob("*")]


def forget(world: World) -> None:
    """As a version of before ids has left it."""
    shutil.rmtree(world.root / "checkpoint" / "microbatch" / "tables")
    shutil.rmtree(world.lake / "_table_id")


def kill(_: object) -> None:
    raise Killed


@pytest.mark.parametrize("mode", ["append", "create_or_replace"])
def test_a_table_of_a_path_catalog_that_is_away_is_not_written_by_a_retry(tmp_path: Path, mode: str) -> None:
    tables = tmp_path / "tables"
    world = World(tmp_path, sink=TableSink(PathCatalog(str(tables)), "sales.orders", format="json", mode=mode))
    filled(world, 2).land(2)
    with pytest.raises(Killed):
        world.run(2, InlineEngine(before_stage=kill))
    world.expire_leases()
    kept, retry = tables.rename(tmp_path / "kept"), InlineEngine()
    with pytest.raises(SinkError, match="may not be mounted"):
        world.run(2, retry, try_number=2)
    assert retry.jobs == []
    assert not tables.exists()
    kept.rename(tables)
    assert world.run(2, try_number=3) is not None


@pytest.mark.parametrize("mode", ["append", "create_or_replace"])
def test_nor_by_a_job_that_is_there_when_it_goes_away(tmp_path: Path, mode: str) -> None:
    tables, kept = tmp_path / "tables", tmp_path / "kept"
    world = World(tmp_path, sink=TableSink(PathCatalog(str(tables)), "sales.orders", format="json", mode=mode))
    filled(world, 2).land(2)
    with pytest.raises(SinkError, match="may not be mounted"):
        world.run(2, InlineEngine(before_stage=lambda _: tables.rename(kept)))
    assert world.checkpoint.commit_log.ids() == [0, 1]


def test_so_it_is_with_tables_of_a_path_catalog_and_with_intervals(tmp_path: Path) -> None:
    world = IntervalWorld(tmp_path)
    world.options["sink"] = TableSink(
        PathCatalog(str(tmp_path / "tables")), "sales.orders", format="json", mode="append"
    )
    world.land_at(0.5, 1)
    world.backfill(hour(0), 1)
    world.land_at(1.5, 2)
    (tmp_path / "tables").rename(tmp_path / "kept")
    with pytest.raises(SinkError, match="may not be mounted"):
        world.backfill(hour(1), 2)


def test_a_batch_is_not_replayed_into_another_table_than_it_is_in(world: World) -> None:
    older, newer = world.lake, world.root / "newer"
    world.options["sink"] = FileSink(str(newer), format="json")
    world.run(2)
    replay = InlineEngine(transform=lambda _: [{"id": 100}])
    for _ in range(2):
        with pytest.raises(SinkError, match=r"is there\. The pipeline writes to .*newer now"):
            world.run(0, replay, clear_number=1)
    assert replay.jobs == []
    assert world.checkpoint.replays.epochs.lanes() == []
    shutil.rmtree(older)
    with pytest.raises(SinkError, match=r"emptied on purpose.* if it is gone for good, `.* --allow-skip`") as refused:
        world.run(0, replay, clear_number=1)
    told_folder(refused).mkdir(parents=True)
    world.run(0, replay, clear_number=1)
    assert (newer / "lane=live/batch_id=0").is_dir()


@pytest.mark.parametrize("known", [True, False], ids=["known by an id", "of before ids"])
def test_nor_while_nobody_can_tell_since_that_one_is_away(world: World, known: bool) -> None:
    older, newer = world.lake, world.root / "newer"
    world.options["sink"] = FileSink(str(newer), format="json")
    world.run(2)
    if not known:
        forget(world)
    kept, replay = away(world), InlineEngine(transform=lambda _: [{"id": 100}])
    for _ in range(2):
        with pytest.raises(SinkError, match=r"its rows would be in both.*may not be mounted"):
            world.run(0, replay, clear_number=1)
    assert replay.jobs == []
    assert world.checkpoint.replays.epochs.lanes() == []
    back(world, kept)
    with pytest.raises(SinkError, match=r"is there\. The pipeline writes to .*newer now"):
        world.run(0, replay, clear_number=1)
    world.options["sink"] = FileSink(str(older), format="json")
    world.run(0, replay, clear_number=1)
    assert world.table() == {0: [100], 1: [1]}


@pytest.mark.parametrize("way_on", ["the old table", "rewind"])
def test_nor_is_one_made_again_that_was_published_there_and_not_committed(world: World, way_on: str) -> None:
    world.execution.publish(world.staged(2))
    world.expire_leases()
    newer, engine = world.root / "newer", InlineEngine()
    world.options["sink"] = FileSink(str(newer), format="json")
    with pytest.raises(SinkError, match=r"live/2 was published to .*lake, and is there\..*its rows would be in both"):
        world.run(3, engine)
    assert engine.jobs == []
    world.expire_leases()
    if way_on == "rewind":
        applied(world, rewind(1))
        world.run(4)
        assert world.table() == {0: [0], 1: [1]}
        assert (newer / "lane=live/batch_id=2").is_dir()
    else:
        world.options["sink"] = FileSink(str(world.lake), format="json")
        world.run(4)
        assert world.table() == {0: [0], 1: [1], 2: [2]}
        assert world.checkpoint.commit_log.ids() == [0, 1, 2]


def test_a_batch_whose_job_failed_for_a_table_that_is_gone_is_made_in_the_new_one(tmp_path: Path) -> None:
    """It can be in no other: its job left nothing to publish."""
    world = World(tmp_path)
    world.land(0)
    world.options["sink"] = FileSink(str(tmp_path / "mistyped"), format="json")
    with pytest.raises(TransformError):
        world.run(0, InlineEngine(transform=lambda sources: 1 / 0))  # type: ignore[arg-type, return-value]
    shutil.rmtree(tmp_path / "mistyped")
    world.options["sink"] = FileSink(str(world.lake), format="json")
    world.run(0, try_number=2)
    assert world.table() == {0: [0]}


@pytest.mark.parametrize("known", [True, False], ids=["known by an id", "of before ids"])
def test_a_batch_of_a_table_that_was_moved_is_replayed_where_it_is_now(world: World, known: bool) -> None:
    if not known:
        forget(world)
    moved = world.lake.rename(world.root / "moved")
    world.options["sink"] = FileSink(str(moved), format="json")
    world.run(0, InlineEngine(transform=lambda _: [{"id": 100}]), clear_number=1)
    world.lake = moved
    assert world.table() == {0: [100], 1: [1]}


def test_nor_into_a_third_table_after_a_move(world: World) -> None:
    world.lake.rename(world.root / "moved")
    for number, name in ((3, "moved"), (4, "third")):
        world.options["sink"] = FileSink(str(world.root / name), format="json")
        world.land(number)
        world.run(number)
    with pytest.raises(SinkError, match="its rows would be in both"):
        world.run(0, clear_number=1)
    assert world.checkpoint.replays.epochs.lanes() == []


def test_a_way_on_that_the_error_names_is_of_the_batchs_lane(tmp_path: Path) -> None:
    world = IntervalWorld(tmp_path)
    world.land_at(0.5, 1)
    world.backfill(hour(0), 1)
    world.options["sink"] = FileSink(str(tmp_path / "newer"), format="json")
    with pytest.raises(SinkError, match=r"rewind .* --drop-output --lane interval-"):
        world.backfill(hour(0), backfill_run(1, clear_number=1))


def test_a_table_at_two_addresses_is_away_where_it_is_not(tmp_path: Path) -> None:
    disk, mounts = tmp_path / "disk", [tmp_path / "one", tmp_path / "two"]
    disk.mkdir()
    world = World(tmp_path / "world")
    for number in range(3):
        world.lake = mounts[number % 2]
        if not world.lake.exists():
            world.lake.symlink_to(disk)
        world.land(number)
        world.run(number)
    world.lake.unlink()
    world.lake.mkdir()
    world.land(3)
    with pytest.raises(SinkError, match="may not be mounted"):
        world.run(3)
    with pytest.raises(SinkError, match="may not be mounted"):
        world.run(0, clear_number=1)
    with pytest.raises(SinkError, match="may not be mounted"):
        make_ready(world.checkpoint, world.pipeline.sink, KEY)
    assert world.checkpoint.offset_log.ids() == [0, 1, 2]
    assert list(world.lake.iterdir()) == []
    world.lake.rmdir()
    world.lake.symlink_to(disk)
    world.run(4)
    assert world.table() == {0: [0], 1: [1], 2: [2], 3: [3]}


def test_check_advises_to_clear_no_batch_that_may_be_in_a_table_that_is_away(world: World) -> None:
    world.options["sink"] = FileSink(str(world.root / "newer"), format="json")
    world.run(2)
    for known in (True, False):
        if not known:
            forget(world)
        kept = away(world)
        found = check_table(world.checkpoint, everything=True)
        assert [one.repair for one in found.findings] == ["Bring the table back, then check again."] * 2
        assert all("may not be mounted" in one.message for one in found.findings)
        back(world, kept)
        assert check_table(world.checkpoint, everything=True).findings == []
        shutil.rmtree(world.root / "hidden")


def test_a_rewind_takes_batches_out_of_the_table_that_they_are_in(world: World) -> None:
    older, newer = world.lake, world.root / "newer"
    world.options["sink"] = FileSink(str(newer), format="json")
    world.run(2)
    applied(world, lambda drafting: plan_rewind(drafting, lane="live", to=0, drop_output=True))
    assert [path.name for path in sorted((older / "lane=live").iterdir())] == ["batch_id=0"]
    for number in range(3, 6):
        world.run(number)
    assert [path.name for path in sorted((newer / "lane=live").iterdir())] == ["batch_id=1", "batch_id=2"]
