"""Tells what fails while executors read a source in Python from what the user's transform does with the rows.

Spark hands both to the driver as the text of a Python worker's traceback, from whatever action ran: one of the
transform's own, or the write of its result. Such a text may quote values of rows, so a reader's error has a token that
whoever writes rows cannot know.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from secrets import token_hex


class SourceReadError(Exception):
    """Rows of a source could not be read where Spark runs. The message begins with the driver's token and names the
    source, and the cause is the error."""


@cache
def own_token() -> str:
    """The token of this process, for its readers to take along to executors, where this module has another one.

    It is made when it is first asked for, and not with the module: attempts by Spark Connect are forks of one process,
    and would share what that has made.
    """
    return token_hex(16)


@contextmanager
def reading(name: str, token: str) -> Iterator[None]:
    """Turn any error inside into a :class:`SourceReadError`. Around all that a reader runs on an executor.

    :param name: name of the source.
    :param token: the driver's :func:`own_token`.
    """
    try:
        yield
    except Exception as error:
        told = f"{type(error).__name__}: {error}"
        named = told if f"source {name!r}" in told else f"source {name!r}: {told}"
        raise SourceReadError(f"{token} {named}") from error


def read_failure(text: str) -> str | None:
    """What the error of a reader of this process's says, without the token, in the text of an error of Spark's; None if
    the text has none."""
    # The last line of such a traceback. The cause comes before it, with its own traceback.
    last = rf"^[ \t]*(?:[\w.]+\.)?{SourceReadError.__name__}: {own_token()} ([^\n]+)"
    found = re.search(last, text, re.MULTILINE)
    return None if found is None else found[1].rstrip()


def without_token(text: str) -> str:
    """The text as it may be shown: who knows the token can write a row whose value passes for what a reader says."""
    return text.replace(f"{own_token()} ", "")
