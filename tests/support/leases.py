"""Time passes for leases and for hooks that failed, as far as the store's clock can tell."""

from __future__ import annotations

import os
from pathlib import Path


def end_pauses(checkpoint: Path, seconds: float = 3600) -> None:
    """All calls of hooks below the checkpoint's folder that failed are longer ago now."""
    for path in (checkpoint / "hooks").rglob("*.try-*"):
        past = path.stat().st_mtime - seconds
        os.utime(path, (past, past))


def expire_leases(checkpoint: Path, seconds: float = 3600) -> None:
    """All leases below the checkpoint's folder are older now. A holder that is alive renews its own."""
    for path in (checkpoint / "leases").rglob("*-*-*"):
        past = path.stat().st_mtime - seconds
        os.utime(path, (past, past))
