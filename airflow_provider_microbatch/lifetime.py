"""What is opened for one task, look or command is closed at its end: connections, consumers, clients.

Whoever begins one (an operator, the sensor's trigger, the janitor, a command) says so by :func:`lifetime`; a source or
a sink hands what closes what it holds to ``at_end`` of its context. Nothing in between has to pass it on. What is dear
to open is :func:`shared` by all that go on in the process.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

log = logging.getLogger(__name__)

Close = Callable[[], object]
T = TypeVar("T")


class _Ends(ExitStack):
    """What is to be closed."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[Close] = []
        self.over = False


_ends: ContextVar[_Ends | None] = ContextVar("lifetime", default=None)
_longest: ContextVar[_Life | None] = ContextVar("longest", default=None)

_OVER = "what this was opened for has ended"

_lock = threading.Lock()
_open: dict[Hashable, _Shared] = {}


class _Life:
    """The longest lifetime around, and what of the shared it holds."""

    def __init__(self, stack: _Ends) -> None:
        self.stack = stack
        self.holds: set[Hashable] = set()


class _Shared:
    """One thing that several lifetimes hold."""

    def __init__(self, value: Any, close: Close) -> None:
        self.value = value
        self.close = close
        self.holders = 0


@contextmanager
def lifetime() -> Iterator[None]:
    """When the block ends, close what was opened in it, the newest first. One within another closes its own."""
    with _Ends() as ends:
        token = _ends.set(ends)
        outer = _longest.get()
        longest = None if outer is not None else _longest.set(_Life(ends))
        try:
            yield
        finally:
            with _lock:
                ends.over = True
            _ends.reset(token)
            if longest is not None:
                _longest.reset(longest)


def at_end(close: Close) -> None:
    """Have this called when the task, look or command that goes on here ends, once, however often it is said. What it
    raises is logged: nobody's work is undone because a connection cannot be closed. Outside of any, as in a notebook,
    nothing calls it.

    :raises RuntimeError: if that has ended meanwhile, as for a look whose trigger was cancelled; it is called first.
    """
    ends = _ends.get()
    if ends is None:
        return
    with _lock:
        over = ends.over
        if not over and close not in ends.said:
            ends.said.append(close)
            ends.callback(_close, close)
    if over:
        _close(close)
        raise RuntimeError(_OVER)


def shared(key: Hashable, open_it: Callable[[], tuple[T, Close]]) -> T:
    """One thing for all who ask by the same key, such as a client for all sources of one cluster, and all triggers of
    the process. It lives as long as the longest lifetime around any of them: over all looks of a trigger, say. Outside
    of any it is made each time, and closed by nobody.

    :param key: tells things apart; process-wide, so it names who asks too. Held in memory, shown nowhere.
    :param open_it: makes it, if nobody has, and says what closes it.
    :raises RuntimeError: if the lifetime has ended meanwhile, as for a look whose trigger was cancelled: nobody would
        ever let go of it.
    """
    life = _longest.get()
    if life is None:
        return open_it()[0]
    with _lock:
        if life.stack.over:
            raise RuntimeError(_OVER)
        found = _open.get(key)
        if found is None:
            found = _open[key] = _Shared(*open_it())
        if key not in life.holds:
            life.holds.add(key)
            found.holders += 1
            life.stack.callback(_let_go, key)
        value: T = found.value
        return value


def _let_go(key: Hashable) -> None:
    with _lock:
        held = _open[key]
        held.holders -= 1
        last = held.holders == 0
        if last:
            del _open[key]
    if last:
        _close(held.close)


def _close(close: Close) -> None:
    try:
        close()
    except Exception as error:
        log.warning("%s could not be closed: %s", getattr(close, "__qualname__", close), error, exc_info=error)
