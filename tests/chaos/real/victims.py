"""Which process is which below a local Airflow."""

from __future__ import annotations

import contextlib
import os

import psutil

from demo.local_airflow import LocalAirflow

_WORKER = "airflow worker -- "
_SUPERVISOR = f"{_WORKER}LocalExecutor"
_IDLE = "<idle>"


def tasks(airflow: LocalAirflow) -> list[psutil.Process]:
    """Task processes. Airflow gives them a title; their supervisors are the executor's workers."""
    return [
        process
        for process in airflow.processes()
        if (title := _title(process)).startswith(_WORKER) and not title.startswith(_SUPERVISOR)
    ]


def supervisor_of(task: psutil.Process) -> psutil.Process | None:
    """The supervisor of a task process; None if it has died before."""
    with contextlib.suppress(psutil.Error):
        parent = task.parent()
        if parent is not None and _title(parent).startswith(_SUPERVISOR):
            return parent
    return None


def stray_workers(airflow: LocalAirflow) -> list[psutil.Process]:
    """Executor workers of dead schedulers that have nothing to do; nobody would ever end them."""
    found = []
    for process in airflow.processes():
        with contextlib.suppress(psutil.Error):
            title = _title(process)
            # A worker leads no session: the session is that of the scheduler that has forked it.
            orphaned = process.ppid() != os.getsid(process.pid)
            if title.startswith(_SUPERVISOR) and title.rstrip().endswith(_IDLE) and orphaned:
                found.append(process)
    return found


def _title(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""
