"""A clock that a test puts forward, in place of waiting."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest


def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Have ``time.monotonic`` go on from now by what the function that is returned is given, in seconds, too."""
    goes_on, ahead = time.monotonic, [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: goes_on() + sum(ahead))
    return ahead.append
