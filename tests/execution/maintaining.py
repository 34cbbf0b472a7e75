"""The commands that change a checkpoint, as a test says them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from unittest import mock

from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.stores.location import open_store
from airflow_provider_microbatch.stores.posix import PosixStore
from airflow_provider_microbatch.upkeep.commands.apply import Applier
from airflow_provider_microbatch.upkeep.commands.plan import Drafting, Plan
from airflow_provider_microbatch.upkeep.commands.repair import plan_repair
from airflow_provider_microbatch.upkeep.commands.rewind import plan_rewind
from tests.execution.world import World
from tests.support.inline_engine import InlineEngine

Make = Callable[[Drafting], Plan]


class Killed(BaseException):
    """The process is gone."""


COMMAND = "a command --drop-output"
"""Typed each time."""


def rewind(to: int, *, drop_output: bool = True, allow_skip: bool = False, lane: str = "live") -> Make:
    return lambda drafting: plan_rewind(
        drafting, lane=lane, to=to, drop_output=drop_output, allow_skip=allow_skip
    )  # fmt: skip


def planned(world: World, make: Make = plan_repair, *, at_ms: int | None = None) -> Plan:
    """The plan alone; two of the same time are the same if the checkpoint is."""
    if at_ms is None:
        at_ms = world.clock = world.clock + 1
    return make(Drafting(open_store(world.pipeline.checkpoint), command=COMMAND, at_ms=at_ms, by="me@here"))


def applier(world: World, engine: InlineEngine | None = None) -> Applier:
    found = engine or InlineEngine()
    return Applier(
        store=open_store(world.pipeline.checkpoint),
        engine_of=lambda name: found if name == found.name else None,
        clock_ms=lambda: world.clock,
        typed=COMMAND,
    )


def applied(world: World, make: Make = plan_repair, *, engine: InlineEngine | None = None) -> Plan:
    """The command, as the command line does it: finish what was interrupted, plan, apply."""
    applier(world, engine).finish()
    shown = planned(world, make)
    if shown.steps:
        at_ms = world.clock
        applier(world, engine).apply(lambda: planned(world, make, at_ms=at_ms), by="me@here", shown=shown)
    return shown


def filled(world: World, count: int) -> World:
    """The world, with so many batches of one row each, all committed."""
    for number in range(count):
        world.land(number)
        world.run(number)
    return world


def rows(world: World) -> list[int]:
    """All ids of the live lane's table, as often as they are in it."""
    return sorted(row for found in world.table().values() for row in found)


def expire(world: World) -> None:
    """What was killed a while ago counts as dead."""
    world.expire_leases()
    for path in (world.root / "checkpoint" / "maintenance").glob("leases/*/*"):
        path.unlink()


def killed_at(moment: int, action: Callable[[], object]) -> bool:
    """Die at the ``moment``-th change of checkpoint or table, before it and after it counted apart; True if it came to
    that."""
    chances = 0

    def dying(real: Callable[..., object]) -> Callable[..., object]:
        def step(*args: object, **kwargs: object) -> object:
            nonlocal chances
            for before in (True, False):
                chances += 1
                if chances == moment:
                    raise Killed
                if before:
                    value = real(*args, **kwargs)
            return value

        return step

    with (
        mock.patch.object(PosixStore, "put_if_absent", dying(PosixStore.put_if_absent)),
        mock.patch.object(PosixStore, "delete", dying(PosixStore.delete)),
        mock.patch.object(PosixStore, "delete_if", dying(PosixStore.delete_if)),
        mock.patch.object(FileSink, "withdraw", dying(FileSink.withdraw)),
    ):
        try:
            action()
        except Killed:
            return True
    return False


def checkpoint_files(root: Path) -> dict[str, bytes]:
    """The checkpoint without what commands write about themselves."""
    found = {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}
    return {path: data for path, data in found.items() if not path.startswith(("maintenance/", "repaired/"))}
