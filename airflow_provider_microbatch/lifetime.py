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


class _Ends(ExitStack):
    """What is to be closed."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[Close] = []


_ends: ContextVar[_Ends | None] = ContextVar("lifetime", default=None)


@contextmanager
def lifetime() -> Iterator[None]:
    """When the block ends, close what was opened in it, the newest first. One within another closes its own."""
    with _Ends() as ends:
        token = _ends.set(ends)
        try:
            yield
        finally:
            _ends.reset(token)


def at_end(close: Close) -> None:
    """Have this called when the task, look or command that goes on here ends, once, however often it is said. What it
    raises is logged: nobody's work is undone because a connection cannot be closed. Outside of any, as in a notebook,
    nothing calls it."""
    ends = _ends.get()
    if ends is not None and close not in ends.said:
        ends.said.append(close)
        ends.callback(_close, close)


def _close(close: Close) -> None:
    try:
        close()
    except Exception as error:
        log.warning("%s could not be closed: %s", getattr(close, "__qualname__", close), error, exc_info=error)
