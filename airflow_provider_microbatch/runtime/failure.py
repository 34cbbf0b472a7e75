"""Where a batch failed, and the part of the traceback that helps the person who has to mend it."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TRACEBACK_LIMIT = 60_000
"""Characters of a traceback that are reported; the end of it is kept, where the error is."""

_FOREIGN = ("pyspark", "py4j", "airflow_provider_microbatch")
_JVM = re.compile(r"\n+JVM stacktrace:\n[^\n]*(?:\n(?:\s+at |\s+\.\.\. |Caused by: )[^\n]*)*")
_READING = ("FAILED_READ_FILE", "CANNOT_READ", "MALFORMED_RECORD", "PATH_NOT_FOUND")


class BatchFailure(Exception):
    """A batch cannot go on.

    :param origin: ``transform``, ``read``, ``write`` or ``runtime``: whose fault it is.
    :param error: one paragraph for a person.
    :param traceback: what to look at; for a transform, the user's frames only.
    """

    def __init__(self, origin: str, error: str, traceback: str = "") -> None:
        super().__init__(error)
        self.origin = origin
        self.error = error
        self.traceback = traceback

    def report(self) -> dict[str, str]:
        """The JSON line of ``_error/``."""
        return {"origin": self.origin, "error": self.error, "traceback": self.traceback[-TRACEBACK_LIMIT:]}


@contextmanager
def failing_as(origin: str, *, where: str = "") -> Iterator[None]:
    """Turn any error inside into a :class:`BatchFailure` of ``origin``.

    :param where: put before the error's text, such as ``source 'orders'``.
    """
    try:
        yield
    except BatchFailure:
        raise
    # SystemExit too: a transform that calls sys.exit(0) must not pass for a batch that succeeded.
    except (Exception, SystemExit) as error:
        text = f"{where}: {_describe(error)}" if where else _describe(error)
        found = _origin(error, origin)
        raise BatchFailure(found, text, trimmed_traceback(error)) from error


def trimmed_traceback(error: BaseException) -> str:
    """The traceback as Python prints it, without frames of this package, PySpark and Py4J."""
    story = traceback.TracebackException.from_exception(error)
    link: traceback.TracebackException | None = story
    while link is not None:
        link.stack = traceback.StackSummary.from_list([frame for frame in link.stack if not _foreign(frame.filename)])
        # What Py4J raised inside PySpark says the same once more, in a hundred lines.
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    return _without_jvm("".join(story.format()))


def _foreign(filename: str) -> bool:
    return any(part in _FOREIGN or part.startswith("py4j-") for part in Path(filename).parts) or filename.endswith(
        "runtime.zip"
    )


def _without_jvm(text: str) -> str:
    """Without the server's Java stack, which Spark Connect puts behind its messages."""
    return _JVM.sub("", text)


def _describe(error: BaseException) -> str:
    text = _without_jvm(str(error)).strip()
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _origin(error: BaseException, origin: str) -> str:
    """Spark is lazy: what is wrong with a file or with a function of the user's may surface only while it writes."""
    if origin != "write":
        return origin
    if type(error).__name__ == "PythonException":
        return "transform"
    return "read" if any(mark in str(error) for mark in _READING) else origin
