"""The processes of the demo's Airflow: which task runs which Spark, and what is left over."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from dataclasses import dataclass

import psutil


@dataclass(frozen=True, kw_only=True)
class Victim:
    """Who was killed in the middle of a batch.

    :param what: of the batch, such as ``the task``.
    :param how: and what goes on.
    :param loses_host: whether the next attempt has to be made on another machine.
    """

    what: str
    how: str
    loses_host: bool = False


def java_among(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """The Java processes, which are Spark's drivers: Airflow itself has none."""
    return [process for process in processes if _name(process) == "java"]


def java_of(processes: Iterable[psutil.Process], tag: str) -> psutil.Process | None:
    """The Java process of one attempt, by the tag in the attempt's recorded handle; None if it does not run."""
    for process in java_among(processes):
        try:
            if any(tag in word for word in process.cmdline()):
                return process
        except psutil.Error:
            continue
    return None


def kill_driver(java: psutil.Process) -> Victim:
    """SIGKILL the driver alone."""
    java.kill()
    return Victim(what="the Spark", how=f"(SIGKILL to {java.pid}); its task runs on")


def kill_task_of(java: psutil.Process, processes: Iterable[psutil.Process]) -> Victim:
    """SIGKILL the task process that started ``java``, and nothing else: neither Java nor the task's supervisor.

    :param processes: those of the demo's Airflow; nothing beside them is ever killed.
    :raises LookupError: if Java's parent is none of them, or no Python process: the task has ended already.
    """
    task = java.parent()
    if task is None or task not in list(processes) or not _name(task).startswith(("python", "airflow")):
        raise LookupError(f"the parent of Java process {java.pid} is no task process but {task}")
    os.kill(task.pid, signal.SIGKILL)
    return Victim(what="the task", how=f"(SIGKILL to {task.pid}); its Spark ({java.pid}) runs on")


def describe(process: psutil.Process) -> str:
    """Process id and the beginning of the command line."""
    try:
        return f"{process.pid} {' '.join(process.cmdline())[:100]}"
    except psutil.Error:
        return f"{process.pid} (gone)"


def _name(process: psutil.Process) -> str:
    try:
        return str(process.name())
    except psutil.Error:
        return ""
