"""The commands that change a checkpoint, as a test says them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

import pytest

from airflow_provider_microbatch.checkpoint.maintenance import HOLD_SECONDS
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.stores.location import open_store
from airflow_provider_microbatch.stores.posix import PosixStore
from airflow_provider_microbatch.upkeep.commands import apply
from airflow_provider_microbatch.upkeep.commands.apply import Applier
from airflow_provider_microbatch.upkeep.commands.plan import Drafting, Plan
from airflow_provider_microbatch.upkeep.commands.repair import plan_repair
from airflow_provider_microbatch.upkeep.commands.rewind import plan_rewind
from tests.execution.world import World
from tests.support.inline_engine import InlineEngine
from tests.support.leases import expire_leases

Make = Callable[[Drafting], Plan]
W = TypeVar("W", bound=World)


class Killed(BaseException):
    """The process is gone."""


CHANGES = {PosixStore: ("put_if_absent", "delete", "delete_if"), FileSink: ("withdraw",)}
"""Where a command changes something."""

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


def filled(world: W, count: int) -> W:
    """The world, with so many batches of one row each, all committed."""
    for number in range(count):
        world.land(number)
        world.run(number)
    return world


def rows(world: World) -> list[int]:
    """All ids of the live lane's table, as often as they are in it."""
    return sorted(row for found in world.table().values() for row in found)


KEPT = ("checkpoint", "lake")
"""What a backup is of."""


def backed_up(world: World) -> None:
    """A backup is taken of checkpoint and table."""
    for folder in KEPT:
        shutil.copytree(world.root / folder, world.root / "backup" / folder)


def put_back(world: World, *folders: str) -> None:
    """The backup is put back: of both, or of those that are named."""
    for folder in folders or KEPT:
        shutil.rmtree(world.root / folder)
        shutil.copytree(world.root / "backup" / folder, world.root / folder)


def expire(world: World) -> None:
    """What was killed a while ago counts as dead."""
    world.expire_leases()
    for path in (world.root / "checkpoint" / "maintenance").glob("leases/*/*"):
        path.unlink()


def expire_all(root: Path) -> None:
    """Whoever was killed, at any checkpoint below ``root``, counts as dead: its attempts, and its commands."""
    for place, _, names in os.walk(root):
        folder = Path(place)
        if folder.name == "leases":
            expire_leases(folder.parent)
        elif folder.parts[-3:-1] == ("maintenance", "leases"):
            for name in names:  # it stays where it is: only who takes the command for its own puts another there
                with suppress(FileNotFoundError):
                    long_ago = (folder / name).stat().st_mtime - 3600
                    os.utime(folder / name, (long_ago, long_ago))


def slow_place(world: World, target: str, monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """Have each look at a file of the place, and each put there, take half of the time for which a command counts as
    alive after a sign. Returns which command is seen to be alive at each of them."""
    seconds, seen, get, put = [0.0], list[str | None](), PosixStore.get, PosixStore.put_if_absent

    def take_long(store: PosixStore, path: str) -> None:
        if store.location == target and not path.startswith("maintenance/") and path != "metadata":
            seconds[0] += HOLD_SECONDS / 2
            for lease in (world.root / "checkpoint/maintenance/leases").rglob("*-*"):
                found = lease.stat()
                os.utime(lease, ns=(found.st_atime_ns, found.st_mtime_ns - int(HOLD_SECONDS / 2 * 1e9)))
            seen.append(world.checkpoint.maintenance.in_progress())

    def slow_get(store: PosixStore, path: str) -> bytes | None:
        take_long(store, path)
        return get(store, path)

    def slow_put(store: PosixStore, path: str, data: bytes) -> bool:
        take_long(store, path)
        return put(store, path, data)

    monkeypatch.setattr(PosixStore, "get", slow_get)
    monkeypatch.setattr(PosixStore, "put_if_absent", slow_put)
    monkeypatch.setattr(apply, "monotonic", lambda: seconds[0])
    return seen


def moments(root: Path, *, first: int = 1, step: int = 2) -> Iterator[int]:
    """Moments for :func:`killed_at` and :func:`at_change`; at each of them the folder is as it was at the beginning."""
    yield from at_each(root, range(first, 400, step))
    raise AssertionError("it does not come to an end")


def at_each(root: Path, moments: Iterable[int]) -> Iterator[int]:
    """These moments; at each of them the folder is as it was at the beginning."""
    kept = root.with_name(f"{root.name}-kept")
    shutil.copytree(root, kept, symlinks=True)
    for moment in moments:
        yield moment
        shutil.rmtree(root)
        shutil.copytree(kept, root, symlinks=True)


def killed_at(moment: int, action: Callable[[], object], *, signs: bool = True) -> bool:
    """Die at the ``moment``-th change of checkpoint or table, before it and after it counted apart; True if it came to
    that.

    :param signs: count signs of life too.
    """

    def killed() -> None:
        raise Killed

    try:
        return at_change(moment, action, killed, signs=signs)
    except Killed:
        return True


def at_change(moment: int, action: Callable[[], object], happen: Callable[[], object], *, signs: bool = False) -> bool:
    """Have something happen at the ``moment``-th change that ``action`` makes; what that changes is not counted. True
    if it came to that."""
    chances, happens = 0, False

    def reach() -> None:
        nonlocal chances, happens
        if happens:
            return
        chances += 1
        if chances == moment:
            happens = True
            try:
                happen()
            finally:
                happens = False

    _watched(action, reach, signs=signs)
    return chances >= moment


def moments_of(
    root: Path, action: Callable[[], object], look: Callable[[Path], object] = lambda root: None
) -> list[Any]:
    """What a look at the folder tells at each moment, without signs of life, of an action to which nothing happens. The
    folder is as it was at the beginning."""
    kept = root.with_name(f"{root.name}-kept")
    shutil.copytree(root, kept, symlinks=True)
    seen = list[Any]()
    _watched(action, lambda: seen.append(look(root)), signs=False)
    shutil.rmtree(root)
    kept.rename(root)
    return seen


def different_moments(root: Path, action: Callable[[], object]) -> list[int]:
    """Moments for :func:`killed_at`, without signs of life, at which another world is left behind than at the moment
    before, and a last one to which it does not come, since all is done. (Right before a change the world is mostly as
    it was right behind the change before.)"""
    seen = moments_of(root, action, _files)
    return [number for number in range(2, len(seen) + 1) if seen[number - 1] != seen[number - 2]] + [len(seen) + 1]


def _files(root: Path) -> dict[str, tuple[int, int]]:
    """What tells whether any file changes, but for signs of life."""
    found = dict[str, tuple[int, int]]()
    for folder, _, names in os.walk(root):
        if "leases" not in folder.split("/"):
            for path in (f"{folder}/{name}" for name in names):
                status = os.lstat(path)
                found[path] = (status.st_ino, status.st_mtime_ns)
    return found


def _watched(action: Callable[[], object], reach: Callable[[], None], *, signs: bool) -> None:
    """Have ``reach`` called before each change and after it."""

    def reached(owner: object) -> None:
        if signs or not isinstance(owner, PosixStore) or "leases" not in owner.location.split("/"):
            reach()

    def watched(real: Callable[..., object]) -> Callable[..., object]:
        def step(owner: object, *args: object, **kwargs: object) -> object:
            reached(owner)
            value = real(owner, *args, **kwargs)
            reached(owner)
            return value

        return step

    with ExitStack() as stack:
        for seam, names in CHANGES.items():
            for name in names:
                stack.enter_context(mock.patch.object(seam, name, watched(getattr(seam, name))))
        action()


def checkpoint_files(root: Path) -> dict[str, bytes]:
    """The checkpoint without what commands write about themselves."""
    found = {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}
    return {path: data for path, data in found.items() if not path.startswith(("maintenance/", "repaired/"))}
