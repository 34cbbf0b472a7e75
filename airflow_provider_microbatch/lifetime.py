"""Close connections, consumers and clients when the task, look or command that they were opened for ends.

The code that begins a task, look or command (an operator, the sensor's trigger, the janitor, a command) opens a
:func:`lifetime`. A source or a sink hands the functions that close what it has opened to ``at_end`` of its context; the
layers in between pass nothing on. A client that is costly to open is :func:`shared` by all lifetimes of the process.
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
    """The functions to call at the end of a lifetime."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[Close] = []
        self.kept: dict[Hashable, Any] = {}
        self.over = False


_ends: ContextVar[_Ends | None] = ContextVar("lifetime", default=None)
_longest: ContextVar[_Life | None] = ContextVar("longest", default=None)

_OVER = "what this was opened for has ended"

_lock = threading.Lock()
_open: dict[Hashable, _Shared] = {}


class _Life:
    """The outermost lifetime, and the keys of the shared things that it holds."""

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
    """When the block ends, close everything that was opened in the block, the newest first. A lifetime within another
    lifetime closes its own."""
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
    """Have ``close`` called once when the innermost lifetime ends, however often ``close`` is handed in. An error of
    ``close`` is logged: no work is undone because a connection cannot be closed. Outside of any lifetime, as in a
    notebook, ``close`` is not called.

    :raises RuntimeError: if the lifetime has ended meanwhile, as for a look whose trigger was cancelled; ``close`` is
        called first.
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


def kept(key: Hashable, make: Callable[[], T]) -> T:
    """One thing for all callers with the same key in the innermost lifetime: one task, one command, or one look of a
    trigger. The next one makes its own, by what is so then: a connection may have been edited since. Outside of any
    lifetime each call makes a new thing.

    :param key: tells things apart, so the key names the kind of caller too.
    """
    ends = _ends.get()
    if ends is None:
        return make()
    with _lock:
        if key not in ends.kept:
            ends.kept[key] = make()
        value: T = ends.kept[key]
        return value


def shared(key: Hashable, open_it: Callable[[], tuple[T, Close]]) -> T:
    """One thing for all callers with the same key, such as one client for all sources of a cluster in all triggers of
    the process. The thing lives as long as the longest of the outermost lifetimes of its callers: over all looks of a
    trigger, say. Outside of any lifetime each call makes a new thing, and nothing closes it.

    :param key: tells things apart; process-wide, so the key names the kind of caller too. Held in memory, shown
        nowhere.
    :param open_it: makes the thing, if no caller has made it yet, and returns it with the function that closes it.
    :raises RuntimeError: if the lifetime has ended meanwhile, as for a look whose trigger was cancelled: nothing would
        ever let go of the thing.
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
