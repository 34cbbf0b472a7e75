"""The error message of a spark-submit that failed, for people: its cause first, then its last lines."""

from __future__ import annotations

import re
import signal

from airflow_provider_microbatch.engines.yarn import Failure
from airflow_provider_microbatch.exceptions import EngineError, SparkKilledError

_OUTPUT = "Last spark-submit output:\n"
_CODES = re.compile(r"(?:Error code|Kubernetes spark exit code) is: (-?\d+)")
"""Exit codes in the hook's message. On Kubernetes the driver's code follows that of spark-submit, which may be 0."""
_EXCEPTION = re.compile(
    r'^\s*(?:Caused by: |Exception in thread "[^"]*" )?((?:[\w$]+\.)*[A-Z][\w$]*(?:Exception|Error)\b.*)$', re.MULTILINE
)
_AFTER_THE_END = "HeartbeatReceiver"
"""Marks the exception of an executor whose heartbeat finds the driver ended: it follows from the end, and may be
printed before the end's cause."""
_CONTAINER = re.compile(r"exitCode: (-?\d+)")
_FROM_OUTSIDE = range(-108, -99)
"""YARN's codes of containers that it has ended: beyond their memory, preempted, on a node that is lost."""
_SHELL = 128
"""A shell adds 128 to the number of the signal that ended its command, and so does a JVM that was told to end."""


def submit_error(application: str, error: Exception, *, stopped: bool) -> EngineError:
    """The engine error for the hook's ``error``.

    :param application: name of the application.
    :param stopped: whether the task was told to stop, and its Spark with it.
    :return: an error that begins with signal, exit code or first exception; a :class:`SparkKilledError` if a signal
        ended the application that this process has not sent.
    """
    before, found, tail = str(error).partition(_OUTPUT)
    if stopped:
        return EngineError(f"{application} was stopped: the task was told to end")
    codes = [int(code) for code in _CODES.findall(before)]
    if not codes:
        return EngineError(f"{application} failed: {error}")
    number = next((code for code in reversed(codes) if code), 0)
    ending = f" Its last lines:\n{tail}" if found else ""
    name = _signal_of(number)
    if name is not None:
        hint = ", as `kill -9` does, and the kernel when memory runs out" if name == "SIGKILL" else ""
        return SparkKilledError(
            f"{application} failed: its Spark was killed by signal {signal.Signals[name].value} ({name}){hint}.{ending}"
        )
    told = (found[1].strip() for found in _EXCEPTION.finditer(tail))
    first = next((text for text in told if _AFTER_THE_END not in text), None)
    cause = f": {first}" if first else ""
    return EngineError(f"{application} failed: spark-submit ended with exit code {number}{cause}.{ending}")


def yarn_error(application: str, failure: Failure) -> EngineError:
    """The error of an application that failed on YARN. What of it spark-submit prints the hook does not keep, or it is
    far above what a driver prints whose cluster is gone.

    :param application: name of the application.
    :param failure: as YARN tells it.
    :return: a :class:`SparkKilledError` if YARN, or a signal, ended it.
    """
    codes = [int(code) for code in _CONTAINER.findall(failure.diagnostics)]
    killed = failure.was_killed or any(code in _FROM_OUTSIDE or _signal_of(code) for code in codes)
    kind, what = (SparkKilledError, "was ended") if killed else (EngineError, "failed")
    return kind(
        f"{application} failed: its application {failure.application} {what} on YARN: {failure.diagnostics}\n"
        f"Its log: yarn logs -applicationId {failure.application}"
    )


def _signal_of(code: int) -> str | None:
    number = -code if code < 0 else code - _SHELL
    return signal.Signals(number).name if number in set(signal.Signals) else None
