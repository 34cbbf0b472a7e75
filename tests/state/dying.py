"""A process that dies at a step of the runtime."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def dying(step: Callable[..., Any]) -> Callable[..., Any]:
    """The step, and a death right behind it."""

    def die(*given: Any) -> Any:
        step(*given)
        raise KeyError("killed")

    return die
