"""Worlds whose batches go to two tables, and the moments at which a process can die between them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from airflow_provider_microbatch.checkpoint.verify import verify_all
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sinks.several import Sinks
from airflow_provider_microbatch.stores.posix import PosixStore
from airflow_provider_microbatch.upkeep.table_check import check_table
from tests.execution.world import Killed, World
from tests.support.inline_engine import InlineEngine

NAMES = ("orders", "daily")
Table = dict[int, list[tuple[int, int]]]


class Two(World):
    """Every row goes to both tables, with the version of the code."""

    def __init__(self, root: Path, **pipeline: Any) -> None:
        super().__init__(root, **{"sink": self.sink_of(root), **pipeline})

    @staticmethod
    def sink_of(root: Path, *names: str) -> Sinks:
        return Sinks({name: FileSink(str(root / name), format="json") for name in names or NAMES})

    def tables(self, *names: str) -> list[Table]:
        return [read(self.root / name) for name in names or NAMES]


def read(table: Path) -> Table:
    found: Table = {}
    for folder in sorted(table.glob("lane=live/batch_id=*")):
        rows = [json.loads(line) for path in sorted(folder.glob("*.json")) for line in path.read_text().splitlines()]
        found[int(folder.name.partition("=")[2])] = sorted((row["id"], row.get("version", 0)) for row in rows)
    return found


def coded(version: int = 1) -> InlineEngine:
    return InlineEngine(
        transform=lambda sources: [{**row, "version": version} for rows in sources.values() for row in rows]
    )


def dying(moment: int, action: Callable[[], object]) -> bool:
    """A process dies at the ``moment``-th change: before an entry of the checkpoint is written, or before a table or a
    stage changes, or right after that. It changes nothing any more. True if it came to that."""
    chances = itertools.count(1)
    is_dead = False

    def reach() -> None:
        nonlocal is_dead
        is_dead = is_dead or next(chances) == moment
        if is_dead:
            raise Killed

    def watched(real: Callable[..., object], *, after: bool) -> Callable[..., object]:
        def step(*args: object, **kwargs: object) -> object:
            reach()
            value = real(*args, **kwargs)
            if after:
                reach()
            return value

        return step

    with ExitStack() as stack:
        put = watched(PosixStore.put_if_absent, after=False)
        stack.enter_context(mock.patch.object(PosixStore, "put_if_absent", put))
        for name in ("publish", "replace", "withdraw", "drop_stage"):
            stack.enter_context(mock.patch.object(FileSink, name, watched(getattr(FileSink, name), after=True)))
        try:
            action()
        except Killed:
            return True
    return False


def die_between_two_tables(world: Two, number: int = 0) -> None:
    """Attempt 1 of the run's batch is published to the first table, and its process died then."""
    attempt = world.staged(number)
    real = FileSink.publish

    def publish(sink: FileSink, *given: Any) -> object:
        if sink.path.endswith(NAMES[1]):
            raise Killed
        return real(sink, *given)

    with mock.patch.object(FileSink, "publish", publish), pytest.raises(Killed):
        world.execution.publish(attempt)


def is_clean(world: World) -> bool:
    return not verify_all(world.checkpoint) and not check_table(world.checkpoint, everything=True).findings
