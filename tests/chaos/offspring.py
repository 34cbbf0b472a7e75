"""Whatever ends a chaos run, nothing that it has started runs on."""

from __future__ import annotations

import contextlib
import ctypes
import os

import psutil

_PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Have the kernel hand this process every descendant whose parent dies, so that none gets out of sight."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "the kernel does not let this process adopt orphans")


def end_offspring() -> None:
    """SIGKILL to every descendant, those that appear meanwhile too."""
    while left := [child for child in psutil.Process().children(recursive=True) if not _reaped(child)]:
        for child in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        psutil.wait_procs(left, timeout=1)


def _reaped(child: psutil.Process) -> bool:
    """Reap a child that has ended: one that was adopted has nobody else to do it."""
    try:
        if child.status() != psutil.STATUS_ZOMBIE:
            return False
        with contextlib.suppress(ChildProcessError):
            os.waitpid(child.pid, os.WNOHANG)
    except psutil.NoSuchProcess:
        pass
    return True
