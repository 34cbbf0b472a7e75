"""Python functions that Spark's workers run for a query, as something by which one can be told from another.

Of a function, Spark's text of a plan has the name alone, and all lambdas have one.
"""

from __future__ import annotations

import io
import re
from contextlib import suppress
from types import CodeType
from typing import Any

_CLASS = re.compile(rb"[0-9a-f]{32}")
"""The id that the pickler gives a class that it takes along, another one in each process."""


def told(pickled: bytes) -> str:
    """The function in a form that is the same in each process, and wherever in its file the function stands.

    :param pickled: as Spark's driver pickles it for the workers.
    """
    with suppress(Exception):  # any, as of whatever the function takes along: then it is told by its lines too
        pickled = _without_lines(pickled)
    return _CLASS.sub(b"", pickled).hex()


def _without_lines(pickled: bytes) -> bytes:
    from pyspark import cloudpickle

    base: Any = cloudpickle.CloudPickler

    class Pickler(base):  # type: ignore[misc]
        def reducer_override(self, one: object) -> Any:
            if isinstance(one, CodeType):
                bare = one.replace(co_filename="", co_firstlineno=1, co_linetable=b"")
                return self.dispatch_table[CodeType](bare)
            return super().reducer_override(one)

    written = io.BytesIO()
    Pickler(written).dump(cloudpickle.loads(pickled))
    return written.getvalue()
