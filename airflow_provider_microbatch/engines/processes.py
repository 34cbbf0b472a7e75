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
"""Allowed difference between two readings of one process's start time, in seconds: the start is counted from the
boot time, which is adjusted."""

STOP_SECONDS = 1.5
"""``grace_seconds`` of a task's own engine. Airflow kills a task five seconds after telling it to stop: by then the
task's Spark must be gone, its stage dropped and its end on record, so that nothing is left to the janitor."""


def new_tag() -> str:
    """A tag for one attempt: a UUID, so that only a reader of the tag can name the attempt's processes."""
    return f"microbatch-{uuid.uuid4()}"


def check_tag(tag: object) -> str:
    """Return ``tag`` if it has the form of an attempt's tag.

    :raises HandleError: for any other text, which might occur in every command line, or lead to any folder.
    """
    found = _TAG.fullmatch(tag) if isinstance(tag, str) else None
    if found is None or found["engine"]:
        raise HandleError(f"{tag!r:.100} is no tag of an attempt; it was not acted on.")
    return found[0]


def is_engine_tag(tag: object) -> TypeGuard[str]:
    """Whether ``tag`` has the form of a warm server's tag."""
    found = _TAG.fullmatch(tag) if isinstance(tag, str) else None
    return found is not None and found["engine"] is not None


def find(tag: str) -> list[psutil.Process]:
    """Processes that carry ``tag``, and all their descendants. Never this process or one of its ancestors: the tag may
    be an argument of the command that asks.

    :raises HandleError: if ``tag`` is neither a tag of an attempt nor of a warm server.
    """
    if not isinstance(tag, str) or not _TAG.fullmatch(tag):
        check_tag(tag)
    return carrying(tag)


def carrying(text: str) -> list[psutil.Process]:
    """Processes that have ``text`` in their command line, and all their descendants; see :func:`find`. Never call it
    with a text from a checkpoint."""
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
            continue  # gone in the meantime, or a process of another user
    return list(found.values())


def running(*, pid: int, started: float) -> psutil.Process | None:
    """The process of that id, if it runs and started at that time (seconds since the epoch): ids are used again. Never
    this process."""
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
    """Send SIGTERM, then SIGKILL to processes that are left after ``grace`` seconds, and wait as long again at most.

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
    """Wait until all processes are gone; return those that are left after ``seconds``.

    Not psutil's own wait: it reaps a child of this process, and the code that launched the child then gets status 0.
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
    """Whether a process whose first thread has ended still has threads that are ending: a JVM that was killed holds its
    ports, and a write in the kernel goes on, until the last thread has ended."""
    return len(_threads(pid)) > 1


def _shown_by_threads(pid: int) -> Iterator[str]:
    """The command line as each thread shows it: a thread that has ended shows none, not even the first thread."""
    for thread in _threads(pid):
        with contextlib.suppress(OSError):
            yield (thread / "cmdline").read_text(errors="replace")


def _threads(pid: int) -> list[Path]:
    try:
        return list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return []  # gone; or not Linux, which has no such list


def end_all(tag: str, *, grace: float, until: float = 60.0) -> bool:
    """End all processes with ``tag``, including those that appear meanwhile.

    :param until: seconds after which to give up.
    :return: True if there were any; False if there was nothing to end.
    :raises TimeoutError: if some did not end.
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
