"""A table that remembers its batches, and does not know what is committed: nothing is written on top of that."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import pytest

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.cli.main import main
from airflow_provider_microbatch.exceptions import (
    BatchSetAsideError,
    ForeignBatchError,
    MaintenanceError,
    SinkError,
    SourceError,
    TransformError,
)
from airflow_provider_microbatch.execution.intervals import lane_of
from airflow_provider_microbatch.sinks.delta import DeltaSink
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sinks.several import Sinks
from tests.execution.intervals import IntervalWorld, backfill_run, hour
from tests.execution.kept_tables import adopt
from tests.execution.maintaining import applied, expire_all, planned, rewind
from tests.execution.typed_commands import advised, said
from tests.execution.world import World, run_identity
from tests.support.delta_table import batches_of
from tests.support.inline_engine import InlineEngine

pytestmark = pytest.mark.slow  # many tables are made by libraries of their own


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Two batches in a Delta table, of which a backup was made after the first."""
    world = World(tmp_path, sink=DeltaSink(str(tmp_path / "lake")))
    world.land(1)
    world.run(0)
    shutil.copytree(world.lake, tmp_path / "backup")
    world.land(2)
    world.run(1)
    world.land(3)
    return world


def table(world: World) -> dict[int, list[int]]:
    return {key.id: sorted(row["id"] for row in rows) for key, rows in batches_of(str(world.lake), apart=False).items()}


def restore(world: World) -> None:
    shutil.rmtree(world.lake)
    shutil.copytree(world.root / "backup", world.lake)


@pytest.mark.slow
def test_a_restored_table_gets_no_batch_until_what_it_lost_is_back(world: World) -> None:
    restore(world)
    with pytest.raises(
        SinkError, match=r"batch live/1 is committed, and .*lake does not know it.*had of batch 1 is.*--to 0"
    ):
        world.run(2)
    assert table(world) == {0: [1]}
    assert main(["check", world.pipeline.checkpoint]) == 1
    world.expire_leases()
    assert main(["rewind", world.pipeline.checkpoint, "--to", "0", "--drop-output"]) == 0
    for number in (3, 4):
        world.run(number)
    assert sorted(row for rows in table(world).values() for row in rows) == [1, 2, 3]


def test_a_clear_of_the_batch_that_is_lost_puts_it_back(world: World) -> None:
    restore(world)
    world.run(1, clear_number=1)
    world.run(2)
    assert table(world) == {0: [1], 1: [2], 2: [3]}


def test_of_two_that_are_lost_the_newer_one_does_not_come_back_alone(world: World) -> None:
    """The table would know the newest batch then, and nobody miss the one before."""
    world.run(2)
    world.land(4)
    restore(world)
    with pytest.raises(SinkError, match=r"batch live/1 is committed, and .* does not know it.*the oldest first"):
        world.run(2, clear_number=1)
    with pytest.raises(SinkError, match=r"batch live/2 is committed"):
        world.run(3)
    assert table(world) == {0: [1]}
    world.expire_leases()
    world.run(1, clear_number=1)
    world.run(2, clear_number=1, try_number=2)
    world.run(3)
    assert table(world) == {0: [1], 1: [2], 2: [3], 3: [4]}


def test_nor_does_one_that_had_been_set_aside(world: World) -> None:
    world.options |= {"on_failure": "set_aside", "set_aside_after": 1}
    with pytest.raises(BatchSetAsideError):
        world.run(2, InlineEngine(transform=lambda sources: 1 / 0))  # type: ignore[arg-type, return-value]
    restore(world)
    with pytest.raises(SinkError, match=r"batch live/1 is committed"):
        world.run(2, clear_number=1)
    assert table(world) == {0: [1]}


def test_nor_is_a_planned_batch_made_once_the_table_was_restored(world: World) -> None:
    with pytest.raises(TransformError):
        world.run(2, InlineEngine(transform=lambda sources: 1 / 0))  # type: ignore[arg-type, return-value]
    restore(world)
    with pytest.raises(SinkError, match=r"batch live/1 is committed"):
        world.run(2, try_number=2)
    assert table(world) == {0: [1]}


def test_so_is_one_missed_that_was_adopted(world: World) -> None:
    """Batch 2 is what a copy of the checkpoint had published, which is lost."""
    checkpoint, kept, copy = (world.root / name for name in ("checkpoint", "kept", "copy"))
    shutil.copytree(checkpoint, copy)
    world.execution.plan(run_identity(2))
    checkpoint.rename(kept)
    copy.rename(checkpoint)
    world.run(2)
    shutil.rmtree(checkpoint)
    kept.rename(checkpoint)
    applied(world, adopt(2))
    world.run(2)
    world.land(4)
    restore(world)
    with pytest.raises(SinkError, match=r"batch live/2 is committed, and .*lake does not know it.*--to 0"):
        world.run(3)
    assert table(world) == {0: [1]}
    applied(world, rewind(0))
    for number in (4, 5, 6):
        world.run(number)
    assert sorted(row for rows in table(world).values() for row in rows) == [1, 2, 3, 4]


def test_the_lane_of_an_interval_misses_the_one_before_and_what_the_live_lane_has(tmp_path: Path) -> None:
    """Of two lanes that are gone the earlier one comes back first, as the error says."""
    world = IntervalWorld(tmp_path, sink=DeltaSink(str(tmp_path / "lake")), plan="interval")
    for number in range(4):
        world.land_at(number + 0.5, number)
    world.backfill(hour(0), 0)
    shutil.copytree(world.lake, tmp_path / "backup")
    for number in (1, 2):
        world.backfill(hour(number), number)
    restore(world)
    for number, clear in ((3, 0), (2, 1)):
        with pytest.raises(SinkError, match=rf"batch {lane_of(hour(number - 1))}/0 is committed, and .* know it"):
            world.backfill(hour(number), backfill_run(number, clear_number=clear))
    for number, clear in ((1, 1), (2, 1), (3, 0)):
        world.backfill(hour(number), backfill_run(number, clear_number=clear))
    found = {key.lane: [row["id"] for row in rows] for key, rows in batches_of(str(world.lake), apart=False).items()}
    assert found == {lane_of(hour(number)): [number] for number in range(4)}


def restored_behind_retention(root: Path, *, batches: int = 6, kept_by: int = 2, restored_to: int = 2) -> World:
    """Of batches 0 to 5 the log keeps 4 and 5, and the table is put back to after batch 2: what batch 3 read is in no
    log any more."""
    world = World(root, sink=DeltaSink(str(root / "lake")), min_batches_to_retain=kept_by)
    for number in range(batches):
        world.land(number)
        world.run(number)
        if number == restored_to:
            shutil.copytree(world.lake, root / "backup")
        if number == 4:
            shutil.copytree(world.lake, root / "younger")
    restore(world)
    world.land(6)
    world.expire_leases()
    return world


def test_what_no_log_knows_any_more_stays_an_error_of_runs_and_of_clears(tmp_path: Path) -> None:
    """Nor is it said to be of another life. On top of the oldest batch that is kept, nobody would miss those before."""
    world = restored_behind_retention(tmp_path)
    gap = r"batch live/5 is committed, and .* does not know it.*Of batch 3 no log tells any more"
    for number, clear in ((6, 0), (4, 1), (6, 0)):
        with pytest.raises(SinkError, match=gap) as error:
            world.run(number, clear_number=clear, try_number=1 + clear)
        assert advised(str(error.value), world) == [], "each rewind is refused"
    assert table(world) == {0: [0], 1: [1], 2: [2]}
    assert world.checkpoint.replays.pending(BatchKey("live", 4)) == []


def test_check_names_what_no_log_knows_any_more_and_no_rewind_that_is_refused(tmp_path: Path) -> None:
    world = restored_behind_retention(tmp_path)
    status, text = said(["check", world.pipeline.checkpoint, "--table"])
    assert status == 1
    assert "batch 3 is not in" in text
    assert "backup of the table that has batch 3" in text
    assert text.count("batch 3 is not in") == 1
    assert advised(text, world) == []


def test_nor_is_one_of_them_put_back_that_had_been_set_aside(tmp_path: Path) -> None:
    world = World(tmp_path, sink=DeltaSink(str(tmp_path / "lake")), min_batches_to_retain=2)
    world.options |= {"on_failure": "set_aside", "set_aside_after": 1}
    for number in range(6):
        world.land(number)
        if number == 3:
            with pytest.raises(BatchSetAsideError):
                world.run(3, InlineEngine(transform=lambda sources: 1 / 0))  # type: ignore[arg-type, return-value]
            continue
        world.run(number)
        if number == 1:
            shutil.copytree(world.lake, tmp_path / "backup")
    restore(world)
    with pytest.raises(SinkError, match="Of batch 2 no log tells any more"):
        world.run(3, clear_number=1)
    assert table(world) == {0: [0], 1: [1]}


def test_a_younger_backup_of_the_table_is_the_way_on(tmp_path: Path) -> None:
    world = restored_behind_retention(tmp_path)
    shutil.rmtree(world.lake)
    shutil.copytree(world.root / "younger", world.lake)
    with pytest.raises(SinkError, match=r"batch live/5 is committed, and .* does not know it.*batch 5 is in no table"):
        world.run(6)
    world.run(5, clear_number=1)
    world.run(6, try_number=2)
    assert table(world) == {number: [number] for number in range(7)}
    assert said(["check", world.pipeline.checkpoint, "--table"])[0] == 0


def test_or_another_table_that_gets_what_is_kept(tmp_path: Path) -> None:
    world = restored_behind_retention(tmp_path)
    world.lake = tmp_path / "other"
    world.options["sink"] = DeltaSink(str(world.lake))
    for number in (4, 5):
        world.run(number, clear_number=1)
    world.run(6)
    assert table(world) == {4: [4], 5: [5], 6: [6]}
    assert said(["check", world.pipeline.checkpoint, "--table"])[0] == 0


def test_where_the_table_knows_all_that_retention_has_removed_the_oldest_that_is_kept_comes_back(
    tmp_path: Path,
) -> None:
    world = restored_behind_retention(tmp_path, restored_to=3)
    with pytest.raises(SinkError, match=r"batches 4 to 5 is in no table") as error:
        world.run(6)
    assert advised(str(error.value), world) == [], "the log has no entry before batch 4: a rewind to 3 is refused"
    for number in (4, 5):
        world.run(number, clear_number=1)
    world.run(6, try_number=2)
    assert table(world) == {number: [number] for number in range(7)}


def test_a_sink_may_lack_a_batch_since_it_was_not_named_when_that_was_published(tmp_path: Path) -> None:
    both = Sinks(
        {"orders": FileSink(str(tmp_path / "orders"), format="json"), "lake": DeltaSink(str(tmp_path / "lake"))}
    )
    world = World(tmp_path, sink=both)
    world.land(1)
    attempt = world.staged()
    world.options["sink"] = both.sinks["orders"]
    world.execution.commit(key=attempt.key, manifest=world.execution.publish(attempt), run=run_identity(0))
    world.options["sink"] = both
    world.land(2)
    with pytest.raises(SinkError, match=r"lake does not know it: .*, or the pipeline did not name it when"):
        world.run(1)
    world.run(0, clear_number=1)
    world.run(1, try_number=2)
    assert table(world) == {0: [1], 1: [2]}


def test_a_table_that_was_made_anew_is_no_table_of_the_pipeline(world: World) -> None:
    shutil.rmtree(world.lake / "_delta_log")
    with pytest.raises(SinkError, match=r"batch live/1 is committed"):
        world.run(2)


def test_rows_that_somebody_has_deleted_are_not_lost(world: World) -> None:
    from deltalake import DeltaTable

    DeltaTable(world.lake.as_uri()).delete()
    world.run(2)
    assert table(world) == {0: [], 1: [], 2: [3]}


def test_a_clear_that_is_refused_leaves_no_request_that_would_hold_retention(world: World) -> None:
    world.run(2)
    restore(world)
    with pytest.raises(SinkError, match=r"batch live/1 is committed"):
        world.run(2, clear_number=1)
    assert world.checkpoint.replays.pending(BatchKey("live", 2)) == []


def test_what_is_lost_for_good_is_given_up_by_word_and_the_rest_runs_again(world: World) -> None:
    """Neither the table nor the source has what batch 1 read: no clear, and no rewind, could ever bring it back."""
    world.run(2)
    restore(world)
    (world.landing() / "000002.json").unlink()
    with pytest.raises(SinkError, match=r"batch live/2 is committed[\s\S]*--allow-skip"):
        world.run(3)
    with pytest.raises(SourceError):
        world.run(1, clear_number=1)
    world.expire_leases()
    with pytest.raises(MaintenanceError, match=r"live/1 cannot be planned again[\s\S]*--allow-skip"):
        planned(world, rewind(0))
    notes = applied(world, rewind(0, allow_skip=True)).notes
    (told,) = (note for note in notes if "lost to the table: what batch live/1 read" in note)
    assert "000002.json" in told
    behind = shlex.split(told.partition("`microbatch ")[2].partition("`")[0])
    assert main(behind) == 0
    for number in (4, 5):
        world.run(number)
    assert table(world) == {0: [1], 2: [3]}


def test_where_another_copy_of_the_checkpoint_has_gone_on_a_run_says_what_check_says(tmp_path: Path) -> None:
    """Not that the table was restored, and that tasks are to be cleared: such a clear is refused."""
    world = World(tmp_path, sink=DeltaSink(str(tmp_path / "lake")))
    checkpoint = tmp_path / "checkpoint"
    world.land(1)
    world.run(0)
    shutil.copytree(checkpoint, tmp_path / "backup")
    world.land(2)
    world.run(1)
    checkpoint.rename(tmp_path / "newer")
    (tmp_path / "backup").rename(checkpoint)
    world.land(3)
    expire_all(tmp_path)
    assert main(["rewind", world.pipeline.checkpoint, "--to", "0", "--drop-output"]) == 0
    world.run(2)
    shutil.rmtree(checkpoint)
    (tmp_path / "newer").rename(checkpoint)
    expire_all(tmp_path)
    world.land(4)
    with pytest.raises(ForeignBatchError, match=r"batch live/1 in .*lake is another one than") as error:
        world.run(3)
    status, text = said(["check", world.pipeline.checkpoint])
    assert status == 1
    assert str(error.value) in text
    assert said(advised(str(error.value), world)[0])[0] == 0
    for number in (4, 5):
        world.run(number)
    assert table(world) == {0: [1], 1: [2], 2: [3, 4]}
