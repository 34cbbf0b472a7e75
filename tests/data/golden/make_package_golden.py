"""Write golden checkpoints of this package: what a version of it leaves, made once by that version.

    PYTHONPATH=<checkout of the version> python make_package_golden.py <target folder>

Absolute paths are written as ``@ROOT@``: a test puts its own folder in their place.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

from airflow_provider_microbatch import PathCatalog, TableSink
from airflow_provider_microbatch.exceptions import TransformError
from airflow_provider_microbatch.triggers.new_data import NewDataTrigger
from tests.execution.world import World, run_identity
from tests.support.inline_engine import InlineEngine


def broken(sources: object) -> list[dict[str, int]]:
    raise ValueError("the data is at fault")


def land(world: World, number: int) -> None:
    """A file whose time of change is known: a copy of it is given the same."""
    os.utime(world.land(number), (1_700_000_000 + number, 1_700_000_000 + number))


def files(root: Path) -> World:
    """A table of files: three batches, of which one failed once and one was replayed, and a planned one."""
    world = World(root)
    for number in range(3):
        land(world, number)
        if number == 1:
            with contextlib.suppress(TransformError):
                world.run(number, InlineEngine(transform=broken))
        world.run(number, try_number=2)
    world.run(0, clear_number=1, try_number=3)
    land(world, 3)
    world.execution.plan(run_identity(3))
    return world


def tables(root: Path) -> World:
    """A table of a path catalog, with a replay that waits for its answer, and the stage of a killed attempt."""
    world = World(root, sink=TableSink(PathCatalog(str(root / "tables")), "shop.orders", format="json"))
    for number in range(3):
        land(world, number)
        world.run(number)
    with contextlib.suppress(TransformError):
        world.run(1, InlineEngine(transform=broken), clear_number=1, try_number=2)
    land(world, 3)
    world.staged(3)
    return world


def main(target: Path) -> None:
    for make in (files, tables):
        root = Path(tempfile.mkdtemp())
        world = make(root)
        trigger = NewDataTrigger(pipeline=world.pipeline.to_dict(), poll_interval=1)
        (root / "trigger.json").write_text(json.dumps(trigger.serialize(), indent=1, default=str))
        for path in root.rglob("*"):
            if path.is_file():
                path.write_bytes(path.read_bytes().replace(str(root).encode(), b"@ROOT@"))
        shutil.copytree(root, target / make.__name__)
        shutil.rmtree(root)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
