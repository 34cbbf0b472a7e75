"""Python functions that Spark's workers run for a query, as something by which one can be told from another.

Of a function, Spark's text of a plan has the name alone, and all lambdas have one. What is pickled is read, and never
made again: what a function takes along may connect to something when it is.
"""

from __future__ import annotations

import pickletools
import re
from collections.abc import Iterator
from contextlib import suppress
from hashlib import sha256

_CLASS = re.compile(r"[0-9a-f]{32}")
"""The id that the pickler gives a class that it takes along, another one in each process."""

_SILENT = ("MEMOIZE", "FRAME", "PROTO")
_SAME_AGAIN = ("BINGET", "LONG_BINGET")


def told(pickled: bytes) -> str:
    """A digest of the function that is the same in each process, and on whatever lines of its file the function stands.

    :param pickled: as Spark's driver pickles it for the workers.
    """
    digest = sha256()
    with suppress(Exception):  # any, as of what is no pickle: then its bytes tell it
        for part in _parts_of(pickled):
            digest.update(part.encode())
        return digest.hexdigest()[:16]
    return sha256(pickled).hexdigest()[:16]


def _parts_of(pickled: bytes) -> Iterator[str]:
    steps = [(step.name, value) for step, value, _ in pickletools.genops(pickled) if step.name not in _SILENT]
    for at, (name, value) in enumerate(steps):
        if isinstance(value, str) and (value.endswith(".py") or _CLASS.fullmatch(value)):
            continue
        if not (_are_lines(steps[at : at + 3]) or _are_lines(steps[max(at - 1, 0) : at + 2])):
            yield f"{name} {value!r}\n"


def _are_lines(steps: list[tuple[str, object]]) -> bool:
    """Whether it is the first line of a function, the table of its lines, and that of its exceptions."""
    if len(steps) < 3:
        return False
    (_, first), (_, lines), (name, exceptions) = steps
    return (
        isinstance(first, int) and isinstance(lines, bytes) and (isinstance(exceptions, bytes) or name in _SAME_AGAIN)
    )
