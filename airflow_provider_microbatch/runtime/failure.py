"""Finds where a batch failed, and the part of the traceback that helps a person to mend the batch."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from airflow_provider_microbatch.runtime.masking import mask
from airflow_provider_microbatch.runtime.reading import read_failure, without_token

TRACEBACK_LIMIT = 60_000
"""Characters of a traceback that are reported: its last ones, since the error stands at the end."""

_FOREIGN = ("pyspark", "py4j", "airflow_provider_microbatch")
_JVM = re.compile(r"\n+JVM stacktrace:\n[^\n]*(?:\n(?:\s+at |\s+\.\.\. |Caused by: )[^\n]*)*")
_STACK = re.compile(r"\n(?:\s+at |\s+\.\.\. |Caused by: )[^\n]*")
_CAUSE = re.compile(r"^Caused by: (?:[\w$]+\.)*([\w$]+)(: [^\n]+)?", re.MULTILINE)
_QUERY = re.compile(r"\n*== SQL[^\n]*==\n.*?\n[ \t]*\^+(?=\n|$)", re.DOTALL)
"""The part of an error in which Spark quotes a condition that it could not compute."""
_READING = ("FAILED_READ_FILE", "CANNOT_READ", "MALFORMED_RECORD", "PATH_NOT_FOUND")
_SQLSTATES = tuple(
    (re.compile(rf"\bSQLSTATE: (?:{states})\b"), origin)
    for states, origin in (
        # A value that cannot be computed with (a number out of range, a second row of a scalar subquery, a duplicate
        # key, a malformed record of csv), and errors that a query raises itself (raise_error, assert_true).
        (r"2[123]\w{3}|KD000|P0001", "data"),
        # A function of the user's that is not a Python function.
        ("39000", "transform"),
        # A missing privilege; a format, a setting or a catalog that this Spark lacks; a path that is in the way or
        # cannot be renamed. On another day, or on another cluster, the same rows can be written.
        ("42501|42K02|42K03|42K04|42616|42P08", "write"),
        # Spark's analysis: a duplicate column, a type that the format lacks, no column besides the partition columns.
        (r"42\w{3}|0A\w{3}|KD005", "result"),
    )
)
"""The origin of a failure by the SQLSTATE in Spark's error; the first match counts. An error without a match (I/O, a
full disk, memory, a lost executor, a bug in Spark) is not the batch's fault."""

_GONE = ("Py4JNetworkError", "RetriesExceeded")
_GONE_CLASS = "[INVALID_HANDLE.SESSION_"
_UNAVAILABLE = "UNAVAILABLE"
"""With the names above: how the loss of a driver or a server appears in any phase, as errors of PySpark and Py4J, as an
error class of Spark, and as a gRPC status."""


class BatchFailure(Exception):
    """A batch cannot go on.

    :param origin: whose fault the failure is: ``transform``; ``read`` (a source), ``data`` (a value that cannot be
        computed with), ``result`` (columns that cannot be written as they are), ``write`` (the stage) or ``runtime``
        (all else, including a lost cluster).
    :param error: one paragraph for a person.
    :param traceback: the traceback to look at; for a transform, the user's frames only.
    """

    def __init__(self, origin: str, error: str, traceback: str = "") -> None:
        # Mask the texts at their origin: they are logged by the driver, written to the stage, told to the task and
        # stored.
        self.error = mask(without_token(error))
        self.traceback = mask(without_token(traceback))
        super().__init__(self.error)
        self.origin = origin

    def hide_queries(self) -> None:
        """Leave out the conditions that Spark quotes: the condition of a forget request names the person to forget."""
        self.error = _QUERY.sub("", self.error)
        self.traceback = _QUERY.sub("", self.traceback)

    def explain(self, text: str) -> None:
        """Say more behind the error, and behind its traceback, of which a person may be shown one alone."""
        self.error = f"{self.error}\n{text}"
        self.traceback = self.traceback and f"{self.traceback.rstrip()}\n{text}"

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
        # An error of a reader on an executor comes with whichever action ran first, and names its source itself.
        text = _read_failure(error) or (f"{where}: {_describe(error)}" if where else _describe(error))
        found = _origin(error, origin)
        raise BatchFailure(found, text, trimmed_traceback(error)) from error


def trimmed_traceback(error: BaseException) -> str:
    """The traceback as Python prints it, without frames of this package, PySpark and Py4J."""
    story = traceback.TracebackException.from_exception(error)
    link: traceback.TracebackException | None = story
    while link is not None:
        link.stack = traceback.StackSummary.from_list([frame for frame in link.stack if not _foreign(frame.filename)])
        # Py4J's error inside PySpark repeats the same text in a hundred lines.
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    return _without_jvm("".join(story.format()))


def _foreign(filename: str) -> bool:
    return any(part in _FOREIGN or part.startswith("py4j-") for part in Path(filename).parts) or filename.endswith(
        "runtime.zip"
    )


def _without_jvm(text: str) -> str:
    """The text without the server's Java stack, which Spark Connect appends to its messages."""
    return _JVM.sub("", text)


def _describe(error: BaseException) -> str:
    text = _STACK.sub("", _without_jvm(str(error))).strip()
    told = f"{type(error).__name__}: {text}" if text else type(error).__name__
    cause = cause_of(error)
    return told if cause is None or cause in told else f"{cause} ({told})"


def cause_of(error: BaseException) -> str | None:
    """The first cause that the Java stack of an error names, as its class and the first line of its message; None if
    the stack names none. Spark's own message may say no more than that a task has failed."""
    found = _CAUSE.findall(_stack_of(error) or str(error))
    if not found or found[-1][0] == "PythonException":  # whose traceback is Spark's message already
        return None
    name, message = found[-1]
    return f"{name}{message}".rstrip()


def _stack_of(error: BaseException) -> str:
    """The Java stack of an error of Spark's; empty if it has none. With Spark Connect the error has it whether or not
    its message repeats it."""
    ask = getattr(error, "getStackTrace", None)
    stack = ask() if callable(ask) else None
    return stack if isinstance(stack, str) else ""


def _origin(error: BaseException, origin: str) -> str:
    """The origin that an error has. Spark is lazy: an error in a file or in a function of the user's may surface only
    during the write."""
    text = f"{type(error).__name__}: {error}"
    told = next((found for states, found in _SQLSTATES if states.search(text)), None)
    if told is None and any(map(_is_of_who_is_gone, _chain(error))):
        return "runtime"
    if _read_failure(error) is not None:
        return "read"
    if origin != "write":
        return origin
    if type(error).__name__ == "PythonException":
        return "transform"
    if any(mark in text for mark in _READING):
        return "read"
    return told or origin


def _read_failure(error: BaseException) -> str | None:
    """What a reader on an executor says, be the error one that the transform has raised from Spark's."""
    texts = (text for link in _chain(error) for text in (str(link), _stack_of(link)))
    return next(filter(None, map(read_failure, texts)), None)


def _is_of_who_is_gone(error: BaseException) -> bool:
    """Whether the error means that the driver or the server went away, by the error's type. The text alone cannot tell:
    it may quote a value of the data that mentions a lost cluster, and that batch would fail for ever without ever being
    at fault."""
    if type(error).__module__.partition(".")[0] in _FOREIGN and (
        type(error).__name__ in _GONE or str(error).startswith(_GONE_CLASS)
    ):
        return True
    ask = getattr(error, "getGrpcStatusCode", None)
    if any(kind.__name__ == "RpcError" for kind in type(error).__mro__):
        ask = getattr(error, "code", None)
    return callable(ask) and getattr(ask(), "name", None) == _UNAVAILABLE


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error and the errors that caused it. PySpark hides gRPC's error behind its own."""
    link: BaseException | None = error
    seen = set[int]()
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__ or link.__context__
