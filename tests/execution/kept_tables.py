"""Words for tests of tables that hold the batches of more than one checkpoint."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.sinks import Sink
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sinks.table import TableSink
from airflow_provider_microbatch.sinks.table.path_catalog import PathCatalog
from airflow_provider_microbatch.sources.file import FileSource
from airflow_provider_microbatch.upkeep.commands.adopt import plan_adopt
from airflow_provider_microbatch.upkeep.commands.start_behind import plan_start_behind
from tests.execution.maintaining import Make
from tests.execution.world import World, run_identity
from tests.support.inline_engine import InlineEngine

SINKS: dict[str, Callable[[Path], Sink]] = {
    "file sink": lambda root: FileSink(str(root / "lake" / "orders"), format="json"),
    "table, append": lambda root: TableSink(PathCatalog(str(root / "lake")), "orders", format="json"),
}


class Setting:
    """Pipelines that publish to one table, each with a landing folder and a checkpoint of its own.

    :param clean: ``clean_source`` of all of them.
    """

    def __init__(self, root: Path, make: Callable[[Path], Sink], *, clean: str | None) -> None:
        self.root = root
        self._make = make
        self._clean = clean

    def world(self, name: str, *, pipeline: str = "orders") -> World:
        world = World(self.root / name, name=pipeline, sink=self._make(self.root))
        world.lake = self.root / "lake" / "orders"
        source = FileSource(
            str(world.landing()), format="json", schema="id long", max_files=1, clean_source=self._clean
        )  # fmt: skip
        world.sources = {"orders": source}
        return world


def refused(world: World, number: int) -> str:
    """A run that ends with the error, before an engine was started and with nothing of the source given up."""
    engine = InlineEngine()
    landed = sorted(world.landing().glob("[!.]*"))
    commits = world.checkpoint.commit_log.ids()
    with pytest.raises(SinkError, match="is another one than") as error:
        world.run(number, engine)
    assert type(error.value).__name__ == "ForeignBatchError"
    assert engine.jobs == []
    assert sorted(world.landing().glob("[!.]*")) == landed
    assert world.checkpoint.commit_log.ids() == commits
    return str(error.value)


def start_behind(*, allow_reread: bool = False) -> Make:
    return lambda drafting: plan_start_behind(drafting, allow_reread=allow_reread)


def adopt(number: int, *, allow_skip: bool = False) -> Make:
    return lambda drafting: plan_adopt(drafting, BatchKey("live", number), allow_skip=allow_skip)


def kept_table(tmp_path: Path, *, batches: int = 3) -> tuple[World, World]:
    """A table of three batches, and a new checkpoint that has been refused there."""
    setting = Setting(tmp_path, SINKS["file sink"], clean=None)
    old, new = setting.world("old"), setting.world("new")
    for number in range(batches):
        old.land(number)
        old.run(number)
    new.land(7)
    refused(new, 0)
    return old, new


def planned_where_another_is(tmp_path: Path, *, files: int = 1) -> World:
    """A new checkpoint that has planned batch 0, of row 7 (and more, a file each), and whose table has row 1 of the old
    one's."""
    setting = Setting(tmp_path, SINKS["file sink"], clean=None)
    old, new = setting.world("old"), setting.world("new")
    new.sources = {name: replace(source, max_files=files) for name, source in new.sources.items()}
    for number in range(files):
        new.land(7 + number)
    new.execution.plan(run_identity(0))
    old.land(1)
    old.run(0)
    return new


def restored_and_planned_anew(tmp_path: Path) -> World:
    """A checkpoint that was restored from before batch 1, which is in the table, and has planned it again."""
    world = Setting(tmp_path, SINKS["file sink"], clean=None).world("only")
    world.land(1)
    world.run(0)
    checkpoint, backup = world.root / "checkpoint", world.root / "backup"
    shutil.copytree(checkpoint, backup)
    world.land(2)
    world.run(1)
    kept = (world.lake / "lane=live" / "batch_id=1").rename(world.root / "kept")
    shutil.rmtree(checkpoint)
    backup.rename(checkpoint)
    world.execution.plan(run_identity(2))
    kept.rename(world.lake / "lane=live" / "batch_id=1")
    refused(world, 2)
    return world
