"""A pipeline has written to other tables before: only those are asked that may have the batch, and today's first."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from airflow_provider_microbatch.checkpoint.definitions import Definitions
from airflow_provider_microbatch.checkpoint.verify import verify_all
from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sinks.file.lock import locked
from airflow_provider_microbatch.sinks.table import TableSink
from airflow_provider_microbatch.sinks.table.path_catalog import PathCatalog
from airflow_provider_microbatch.upkeep.table_check import check_table
from tests.execution.maintaining import applied, filled, rewind
from tests.execution.world import World
from tests.support.inline_engine import InlineEngine


def write(world: World, path: Path) -> None:
    """Where the pipeline writes from now on."""
    world.options["sink"] = FileSink(str(path), format="json")


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Batch 0 is in a former table, batches 1 and 2 in today's."""
    world = World(tmp_path)
    write(world, tmp_path / "old")
    world.land(0)
    world.run(0)
    write(world, world.lake)
    for number in (1, 2):
        world.land(number)
        world.run(number)
    return world


def known(world: World, path: Path) -> Path:
    """The record of the table's id."""
    folder = world.root / "checkpoint/microbatch/tables"
    (found,) = (one for one in folder.iterdir() if f"file://{path}" in one.read_text())
    return found


def tear(path: Path) -> bytes:
    whole = path.read_bytes()
    path.write_bytes(b"v1\n{")
    return whole


def test_a_torn_id_is_mended_though_another_table_is_gone_for_good(world: World) -> None:
    record = known(world, world.lake)
    whole = tear(record)
    shutil.rmtree(world.root / "old")
    (world.root / "checkpoint/commits/1").write_bytes(b"")
    assert applied(world).problems == ()
    assert verify_all(world.checkpoint) == []
    world.land(3)
    world.run(3)
    assert world.table() == {1: [1], 2: [2], 3: [3]}
    assert record.read_bytes() == whole


def test_what_needs_no_look_at_a_table_that_is_away_is_mended_beside_its_torn_id(world: World) -> None:
    """In an empty folder no batch is found: what is committed would be planned again."""
    record = known(world, world.lake)
    tear(record)
    kept = world.lake.rename(world.root / "kept")
    world.lake.mkdir()
    tear(world.root / "checkpoint/microbatch/identity")
    tear(world.root / "checkpoint/attempts/live/1/1")
    torn_commit = world.root / "checkpoint/commits/2"
    torn_commit.write_bytes(b"")
    plan = applied(world)
    assert {step.what for step in plan.steps} == {"microbatch/identity", "attempts/live/1/1"}
    assert str(record) in [problem.where for problem in plan.problems]
    assert "may not be mounted" in str(plan.problems)
    assert torn_commit.read_bytes() == b""
    world.lake.rmdir()
    kept.rename(world.lake)
    assert applied(world).problems == ()
    assert verify_all(world.checkpoint) == []
    assert world.checkpoint.commit_log.get(2) is not None


@pytest.mark.parametrize("first", ["old", "lake"])
def test_a_rewind_takes_batches_out_of_todays_table_not_out_of_the_one_it_was_copied_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    """Whichever definition comes first by its name."""
    names, world, old = Definitions.names, World(tmp_path), tmp_path / "old"

    def is_later(definitions: Definitions, name: str) -> bool:
        return f"{tmp_path}/{first}" not in str(definitions.sink(name))

    monkeypatch.setattr(Definitions, "names", lambda self: sorted(names(self), key=lambda name: is_later(self, name)))
    write(world, old)
    filled(world, 3)
    shutil.copytree(old, world.lake)
    write(world, world.lake)
    world.land(3)
    world.run(3)
    world.expire_leases()
    applied(world, rewind(1))
    assert world.table() == {0: [0], 1: [1]}
    assert sorted(path.name for path in (old / "lane=live").iterdir()) == [f"batch_id={number}" for number in range(3)]
    world.run(4)
    world.run(5)
    assert world.table() == {0: [0], 1: [1], 2: [2], 3: [3]}
    assert check_table(world.checkpoint, everything=True).findings == []


def test_check_has_a_batch_cleared_that_no_former_table_can_have(world: World) -> None:
    shutil.rmtree(world.root / "old")
    shutil.rmtree(world.lake / "lane=live/batch_id=2")
    told = {one.where.rpartition("/")[2]: one for one in check_table(world.checkpoint, everything=True).findings}
    assert set(told) == {"0", "2"}
    assert told["0"].repair == "Bring the table back, then check again."
    assert told["2"].message.endswith(f"is committed and not in file://{world.lake}: its rows are missing.")
    assert told["2"].repair.startswith("Clear task")
    world.run(2, clear_number=1)
    assert world.table() == {1: [1], 2: [2]}
    assert [one.where.rpartition("/")[2] for one in check_table(world.checkpoint, everything=True).findings] == ["0"]


@pytest.mark.parametrize("kind", ["file sink", "table"])
def test_a_table_under_another_spelling_of_its_path_is_the_same(tmp_path: Path, kind: str) -> None:
    """A link leads to it: a clear puts the batch where it is."""
    world = World(tmp_path)
    (tmp_path / "alias").symlink_to(tmp_path)

    def spelled(root: Path) -> None:
        if kind == "table":
            world.options["sink"] = TableSink(PathCatalog(str(root)), "lake", format="json")
        else:
            write(world, root / "lake")

    spelled(tmp_path)
    filled(world, 2)
    spelled(tmp_path / "alias")
    world.land(2)
    world.run(2)
    world.run(1, InlineEngine(transform=lambda _: [{"id": 9}]), clear_number=1)
    assert world.table() == {0: [0], 1: [9], 2: [2]}


def test_nor_is_it_written_in_another_form(tmp_path: Path) -> None:
    world = filled(World(tmp_path), 2)
    (tmp_path / "alias").symlink_to(tmp_path)
    shutil.rmtree(tmp_path / "checkpoint/microbatch/tables")
    shutil.rmtree(world.lake / "_table_id")
    world.options["sink"] = FileSink(str(tmp_path / "alias/lake"), format="csv")
    world.land(2)
    with pytest.raises(SinkError, match="could not read both"):
        world.run(2)


def test_what_a_rewind_took_out_of_a_table_that_is_gone_is_made_in_another(tmp_path: Path) -> None:
    """Attempts of the batch's former life publish no more: a way on that the errors name leads on."""
    world, old = World(tmp_path), tmp_path / "old"
    write(world, old)
    filled(world, 3)
    world.expire_leases()
    applied(world, rewind(-1))
    shutil.rmtree(old)
    write(world, world.lake)
    for number in range(3):
        world.run(number)
    assert world.table() == {0: [0], 1: [1], 2: [2]}


def test_a_definition_stays_while_a_compaction_is_at_work_on_its_table(tmp_path: Path) -> None:
    world = filled(World(tmp_path, min_batches_to_retain=2), 1)
    old = world.lake
    left = old / "_compacted" / world.checkpoint_id / "lane=live" / "batch_id=0" / "attempt=1.0"
    left.mkdir(parents=True)
    world.lake = tmp_path / "today"
    for number in range(1, 6):
        world.land(number)
        world.run(number)
    with locked(old / "_compacted" / "lock", seconds=0):
        world.janitor(grace_seconds=0)
        assert left.is_dir(), "it may be what the compaction has counted"
        assert len(world.checkpoint.definitions.names()) == 2, "else no janitor would look there again"
    world.janitor(grace_seconds=0)
    assert not left.exists()
    assert len(world.checkpoint.definitions.names()) == 1
