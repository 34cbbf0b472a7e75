"""Somebody does something right before a method runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest


@contextmanager
def interrupted(monkeypatch: pytest.MonkeyPatch, owner: type, name: str, do: Callable[[], object]) -> Iterator[None]:
    """Within the block ``do`` is called once, before the first call of the method goes on."""
    real, left = getattr(owner, name), [do]

    def first(*args: Any, **given: Any) -> Any:
        while left:
            left.pop()()
        return real(*args, **given)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, first)
        yield
    assert not left, f"{name} was not called"
