"""Tells what fails while executors read a source in Python from what the user's transform does with the rows.

Spark hands both to the driver as the text of a Python worker's traceback, from whatever action ran: one of the
transform's own, or the write of its result.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager


class SourceReadError(Exception):
    """Rows of a source could not be read where Spark runs. The message names the source, and the cause is the error."""


_TOLD = re.compile(rf"^[ \t]*(?:[\w.]+\.)?{SourceReadError.__name__}: ([^\n]+)", re.MULTILINE)
"""The last line of such a traceback. The cause comes before it, with its own traceback."""


@contextmanager
def reading(name: str) -> Iterator[None]:
    """Turn any error inside into a :class:`SourceReadError`. Around all that a reader runs on an executor.

    :param name: name of the source.
    """
    try:
        yield
    except Exception as error:
        told = f"{type(error).__name__}: {error}"
        raise SourceReadError(told if f"source {name!r}" in told else f"source {name!r}: {told}") from error


def read_failure(text: str) -> str | None:
    """The message of the reading error that the text of an error of Spark's has; None if it has none."""
    found = _TOLD.search(text)
    return None if found is None else found[1].rstrip()
