"""Finding and ending the processes of an attempt on this host, by the tag in their command lines."""

from __future__ import annotations

import contextlib
import os
import re
import time
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeGuard

import psutil  # type: ignore[import-untyped,unused-ignore]

from airflow_provider_microbatch.exceptions import HandleError

_TAG = re.compile(r"microbatch-(?P<engine>engine-)?[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


_CLOCK_SECONDS = 2.0
"""By how much two looks at one process's start time may differ: it is counted from the boot, whose time is adjusted."""

STOP_SECONDS = 1.5
"""``grace_seconds`` of a task's own engine. Airflow kills a task five seconds after it told it to stop: until then its
Spark is gone, its stage dropped and its end on record, so that nothing is left to the janitor."""


def new_tag() -> str:
    """A tag for one attempt: a UUID, so that whoever has not read it cannot name its processes."""
    return f"microbatch-{uuid.uuid4()}"


def check_tag(tag: object) -> str:
    """``tag`` if it can be an attempt's.

    :raises HandleError: for any other text, which might be a part of every command line, or lead to any folder.
    """
    found = _TAG.fullmatch(tag) if isinstance(tag, str) else None
    if found is None or found["engine"]:
        raise HandleError(f"{tag!r:.100} is no tag of an attempt; it was not acted on.")
    return found[0]


def is_engine_tag(tag: object) -> TypeGuard[str]:
    """Whether ``tag`` can be a warm server's."""
    found = _TAG.fullmatch(tag) if isinstance(tag, str) else None
    return found is not None and found["engine"] is not None


def find(tag: str) -> list[psutil.Process]:
    """Processes that carry ``tag``, and all their descendants. Never this process nor one that it descends from: the
    tag may be an argument of the command that asks.

    :raises HandleError: if it is no tag of an attempt nor of a warm server.
    """
    if not isinstance(tag, str) or not _TAG.fullmatch(tag):
        check_tag(tag)
    return carrying(tag)


def carrying(text: str) -> list[psutil.Process]:
    """Processes that have ``text`` in their command line, and all their descendants; see :func:`find`. Not for a text
    out of a checkpoint."""
    mine = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    found: dict[int, psutil.Process] = {}
    for process in psutil.process_iter():
        try:
            if process.pid in mine or not carries(process, text):
                continue
            if not _alive(process):
                continue
            found[process.pid] = process
            found.update((child.pid, child) for child in process.children(recursive=True) if _alive(child))
        except psutil.Error:
            continue  # gone in the meantime, or another user's
    return list(found.values())


def running(*, pid: int, started: float) -> psutil.Process | None:
    """The process of that id, if it runs and has started at that time (seconds since the epoch): ids are used again.
    Never this process."""
    try:
        process = psutil.Process(pid)
        is_it = pid != os.getpid() and abs(process.create_time() - started) < _CLOCK_SECONDS and _alive(process)
    except psutil.Error:
        return None
    return process if is_it else None


def carries(process: psutil.Process, tag: str) -> bool:
    """Whether the tag is in the process's command line, also if only threads of it are left; see :func:`_alive`."""
    try:
        return any(tag in argument for argument in process.cmdline())
    except psutil.ZombieProcess:
        return any(tag in text for text in _shown_by_threads(process.pid))
    except psutil.Error:
        return False


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
        if not process.is_running():
            return False
        return process.status() != psutil.STATUS_ZOMBIE or _has_threads(process.pid)
    except psutil.Error:
        return False


def _has_threads(pid: int) -> bool:
    """Whether threads of a process whose first one has ended are still at their end: a JVM that was killed holds its
    ports, and a write that was in the kernel goes on, until the last of them is through."""
    return len(_threads(pid)) > 1


def _shown_by_threads(pid: int) -> Iterator[str]:
    """The command line as each thread shows it: the one that has ended, the first one too, shows none any more."""
    for thread in _threads(pid):
        with contextlib.suppress(OSError):
            yield (thread / "cmdline").read_text(errors="replace")


def _threads(pid: int) -> list[Path]:
    try:
        return list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return []  # gone; or no Linux, which does not tell


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
