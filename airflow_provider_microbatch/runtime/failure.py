"""Where a batch failed, and the part of the traceback that helps the person who has to mend it."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from airflow_provider_microbatch.runtime.masking import mask

TRACEBACK_LIMIT = 60_000
"""Characters of a traceback that are reported; the end of it is kept, where the error is."""

_FOREIGN = ("pyspark", "py4j", "airflow_provider_microbatch")
_JVM = re.compile(r"\n+JVM stacktrace:\n[^\n]*(?:\n(?:\s+at |\s+\.\.\. |Caused by: )[^\n]*)*")
_QUERY = re.compile(r"\n*== SQL[^\n]*==\n.*?\n[ \t]*\^+(?=\n|$)", re.DOTALL)
"""Where Spark quotes, in an error, the part of a condition that it could not compute."""
_READING = ("FAILED_READ_FILE", "CANNOT_READ", "MALFORMED_RECORD", "PATH_NOT_FOUND")
_SQLSTATES = tuple(
    (re.compile(rf"\bSQLSTATE: (?:{states})\b"), origin)
    for states, origin in (
        # A value that cannot be computed with: a number out of range, a second row of a scalar subquery, a key twice, a
        # malformed record of csv; and what a query raises itself (raise_error, assert_true).
        (r"2[123]\w{3}|KD000|P0001", "data"),
        # A function of the user's that is none of Python's.
        ("39000", "transform"),
        # A right that is missing; a format, a setting or a catalog that this Spark lacks; a path that is in the way, or
        # that cannot be renamed. Another day, or on another cluster, the same rows can be written.
        ("42501|42K02|42K03|42K04|42616|42P08", "write"),
        # Spark's analysis: a column twice, a type that the format does not have, no column beside the partitions'.
        (r"42\w{3}|0A\w{3}|KD005", "result"),
    )
)
"""Whose fault it is by what Spark's error says of its kind; the first that is found. What says nothing of it (I/O, a
full disk, memory, a lost executor, a bug of Spark's) is not the batch's fault."""

_GONE = ("Py4JNetworkError", "RetriesExceeded")
_GONE_CLASS = "[INVALID_HANDLE.SESSION_"
_UNAVAILABLE = "UNAVAILABLE"
"""What a driver or a server that went away looks like, in whatever phase: errors of PySpark and Py4J, an error class of
Spark's, and a status of gRPC."""


class BatchFailure(Exception):
    """A batch cannot go on.

    :param origin: whose fault it is: ``transform``; ``read`` (a source), ``data`` (a value that cannot be computed
        with), ``result`` (columns that cannot be written as they are), ``write`` (the stage) or ``runtime`` (all
        else, a cluster that went away included).
    :param error: one paragraph for a person.
    :param traceback: what to look at; for a transform, the user's frames only.
    """

    def __init__(self, origin: str, error: str, traceback: str = "") -> None:
        # Masked where it comes from: it is logged by the driver, written to the stage, told to the task and stored.
        self.error = mask(error)
        self.traceback = mask(traceback)
        super().__init__(self.error)
        self.origin = origin

    def hide_queries(self) -> None:
        """Leave out what Spark quotes of conditions: one by which a row is forgotten says of whom."""
        self.error = _QUERY.sub("", self.error)
        self.traceback = _QUERY.sub("", self.traceback)

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
    text = f"{type(error).__name__}: {error}"
    told = next((found for states, found in _SQLSTATES if states.search(text)), None)
    if told is None and any(map(_is_of_who_is_gone, _chain(error))):
        return "runtime"
    if origin != "write":
        return origin
    if type(error).__name__ == "PythonException":
        return "transform"
    if any(mark in text for mark in _READING):
        return "read"
    return told or origin


def _is_of_who_is_gone(error: BaseException) -> bool:
    """By what the error is. Its text may quote a value of the data, which could say anything of the cluster: its batch
    would fail for ever, and never be the batch's fault."""
    if type(error).__module__.partition(".")[0] in _FOREIGN and (
        type(error).__name__ in _GONE or str(error).startswith(_GONE_CLASS)
    ):
        return True
    ask = getattr(error, "getGrpcStatusCode", None)
    if any(kind.__name__ == "RpcError" for kind in type(error).__mro__):
        ask = getattr(error, "code", None)
    return callable(ask) and getattr(ask(), "name", None) == _UNAVAILABLE


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error, and those that it came of. PySpark hides the one of gRPC behind its own."""
    link: BaseException | None = error
    seen = set[int]()
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__ or link.__context__
