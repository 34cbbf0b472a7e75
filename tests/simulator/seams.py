"""Where the world takes the place of what the package runs on: time, threads, chance, and the file system's calls."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any
from unittest import mock

from airflow_provider_microbatch import settings
from airflow_provider_microbatch.execution import dead_letters, liveness, state_files, stateful
from airflow_provider_microbatch.kafka import cluster
from airflow_provider_microbatch.listeners import marking
from airflow_provider_microbatch.sinks.file import posix as file_posix
from airflow_provider_microbatch.sinks.kafka import marks, transaction
from airflow_provider_microbatch.task_context import stoppable
from airflow_provider_microbatch.upkeep.commands import copy, copying, exchange, moving
from tests.simulator.kafka_client import Clock, stand_ins
from tests.simulator.processes import Threading
from tests.simulator.state_files import SNAPSHOT_EVERY

if TYPE_CHECKING:
    from tests.simulator.world import World

_CALLS = {"rename": True, "replace": True, "link": True, "unlink": False, "rmdir": False, "mkdir": False}
"""Calls of :mod:`os` before each of which a process may die, or another one go on; and whether something may appear by
it that a reader sees."""

_world: World | None = None


def world() -> World:
    """The world that is played now."""
    assert _world is not None, "no world is played"
    return _world


def _operation(real: Callable[..., Any], name: str, *, changes: bool) -> Callable[..., Any]:
    player = threading.get_ident()

    def step(*args: Any, **kwargs: Any) -> Any:
        # A library's own thread (pyiceberg writes manifests in some) takes no turns: it is a part of the operation.
        own = threading.get_ident() == player
        if own and _world is not None and _world.processes.current is not None:
            _world.point(name)
            if changes:
                _world.touched = True
                _check_room(_world, args)
        return real(*args, **kwargs)

    return step


def _check_room(played: World, paths: Sequence[Any]) -> None:
    if played.full is not None and any(str(path).startswith(played.full) for path in paths):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), played.full)


def _settings() -> settings.Settings:
    return settings.Settings(trusted_modules=("tests.simulator.hooks", "tests.support.halves"))


def _nothing(descriptor: int) -> None:
    """No power is cut in the world."""


def _wrap_methods(stack: ExitStack, base: type, made: type, kind: str) -> None:
    """Every call of the seam ``base`` to the class ``made`` is an operation."""
    for name in sorted(vars(base)):
        if not name.startswith("_") and name in vars(made) and callable(vars(made)[name]):
            step = _operation(vars(made)[name], f"{kind}.{name}", changes=False)
            stack.enter_context(mock.patch.object(made, name, step))


@contextmanager
def simulated(new: World) -> Iterator[None]:
    """Play ``new``: until the block ends the package runs on it."""
    global _world
    processes = new.processes
    with ExitStack() as stack:
        logging.disable(logging.CRITICAL)
        stack.callback(logging.disable, logging.NOTSET)
        stack.enter_context(mock.patch.object(settings, "_given", _settings))
        for module in (liveness, stoppable):
            stack.enter_context(mock.patch.object(module, "threading", Threading(lambda: processes)))
        for module in (marking, copy, copying, moving, exchange, dead_letters):
            stack.enter_context(mock.patch.object(module, "open_store", new.open_store))
        stack.enter_context(mock.patch.object(uuid, "uuid4", new.uuid))
        stack.enter_context(mock.patch.object(time, "time", new.machine_seconds))
        stack.enter_context(mock.patch.object(time, "time_ns", new.machine_ns))
        stack.enter_context(mock.patch.object(os, "fsync", _nothing))
        for name, changes in _CALLS.items():
            step = _operation(getattr(os, name), f"os.{name}", changes=changes)
            stack.enter_context(mock.patch.object(os, name, step))
        rename = _operation(file_posix.rename_with, "renameat2", changes=True)
        stack.enter_context(mock.patch.object(file_posix, "rename_with", rename))
        stack.enter_context(mock.patch.object(fcntl, "flock", new.flock))
        for module in (cluster, marks, transaction):
            stack.enter_context(mock.patch.object(module, "time", Clock(new)))
        # Marks are few in a world: read so many at once, a look would have all of them whatever it takes for known.
        stack.enter_context(mock.patch.object(marks, "_FIRST_WINDOW", 2))
        if new.keeps_state:
            for module in (stateful, state_files):
                stack.enter_context(mock.patch.object(module, "SNAPSHOT_EVERY", SNAPSHOT_EVERY))
        for owner, name, made in stand_ins(new):
            stack.enter_context(mock.patch.object(owner, name, made))
        for base, made, kind in new.system.operations():
            assert issubclass(made, base)
            _wrap_methods(stack, base, made, kind)
        _world = new
        try:
            yield
        finally:
            processes.end()
            _world = None
