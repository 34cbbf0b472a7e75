"""Wait for a condition that a process elsewhere brings about."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


def wait_until(condition: Callable[[], bool], seconds: float = 120) -> None:
    """Until it is true; an assertion fails if it is not by then."""
    deadline, moment = time.monotonic() + seconds, threading.Event()
    while not condition():
        assert time.monotonic() < deadline
        moment.wait(0.05)
