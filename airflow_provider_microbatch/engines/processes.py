"""Finding and ending the processes of an attempt on this host, by the tag in their command lines."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable

import psutil  # type: ignore[import-untyped,unused-ignore]


def find(tag: str) -> list[psutil.Process]:
    """Processes that carry ``tag``, and all their descendants. Never this process nor one that it descends from: the
    tag may be an argument of the command that asks."""
    mine = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    found: dict[int, psutil.Process] = {}
    for process in psutil.process_iter():
        try:
            if process.pid in mine or not any(tag in argument for argument in process.cmdline()):
                continue
            if not _alive(process):
                continue
            found[process.pid] = process
            found.update((child.pid, child) for child in process.children(recursive=True) if _alive(child))
        except psutil.Error:
            continue  # gone in the meantime, or another user's
    return list(found.values())


def end(processes: Iterable[psutil.Process], *, grace: float) -> bool:
    """SIGTERM, then SIGKILL to what is left after ``grace`` seconds; returns when all of them are gone.

    :return: True if all are gone.
    """
    waiting = list(processes)
    for process in waiting:
        _signal(process, kill=False)
    alive = _wait(waiting, seconds=grace)
    for process in alive:
        _signal(process, kill=True)
    return not _wait(alive, seconds=grace)


def _wait(processes: list[psutil.Process], *, seconds: float) -> list[psutil.Process]:
    """Wait until all are gone; what is left after ``seconds``.

    Not psutil's own wait: that reaps a child of this process, and whoever launched it is then told exit status 0.
    """
    deadline = time.monotonic() + seconds
    while (alive := [process for process in processes if _alive(process)]) and time.monotonic() < deadline:
        time.sleep(0.05)
    return alive


def _alive(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def end_all(tag: str, *, grace: float, until: float = 60.0) -> bool:
    """End all processes with ``tag``, those that appear meanwhile too.

    :param until: seconds after which to give up.
    :return: True if there were any; False if there was nothing to end.
    :raises TimeoutError: if some would not go.
    """
    deadline = time.monotonic() + until
    some = False
    while found := find(tag):
        some = True
        end(found, grace=grace)
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes {sorted(process.pid for process in found)} would not end")
    return some


def _signal(process: psutil.Process, *, kill: bool) -> None:
    try:
        process.kill() if kill else process.terminate()
    except psutil.Error:
        return
