"""Ending a process from within at a named point, so that a death can be told from an error afterwards."""

from __future__ import annotations

import os
import signal
from pathlib import Path

KILLS = "kills.log"


def record(root: Path, name: str) -> None:
    """Note a kill that is about to happen. One short append: the bytes are the kernel's when the process dies."""
    with (root / KILLS).open("a") as file:
        file.write(f"{name}\n")


def kill(root: Path, name: str, *pids: int) -> None:
    """SIGKILL to each of ``pids``, recorded under ``name``; this process last."""
    record(root, name)
    for pid in sorted(pids, key=lambda pid: pid == os.getpid()):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
