"""The time, as the logs write it down."""

from __future__ import annotations

import time


def now_ms() -> int:
    """Milliseconds since the epoch, UTC, by this host's clock."""
    return time.time_ns() // 1_000_000
