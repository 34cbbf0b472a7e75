"""What is opened for one task, look or command is closed at its end: connections, consumers, clients.

Whoever begins one (an operator, the sensor's trigger, the janitor, a command) says so by :func:`lifetime`; a source or
a sink hands what closes what it holds to ``at_end`` of its context. Nothing in between has to pass it on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar

log = logging.getLogger(__name__)

Close = Callable[[], object]

_stack: ContextVar[ExitStack | None] = ContextVar("lifetime", default=None)


@contextmanager
def lifetime() -> Iterator[None]:
    """When the block ends, close what was opened in it, the newest first. One within another closes its own."""
    with ExitStack() as stack:
        token = _stack.set(stack)
        try:
            yield
        finally:
            _stack.reset(token)


def at_end(close: Close) -> None:
    """Have this called when the task, look or command that goes on here ends. What it raises is logged: nobody's work
    is undone because a connection cannot be closed. Outside of any, as in a notebook, nothing calls it."""
    stack = _stack.get()
    if stack is not None:
        stack.callback(_close, close)


def _close(close: Close) -> None:
    try:
        close()
    except Exception as error:
        log.warning("%s could not be closed: %s", getattr(close, "__qualname__", close), error, exc_info=error)
