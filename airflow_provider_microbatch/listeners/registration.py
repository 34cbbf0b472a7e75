"""Register the listener in those of Airflow's processes that may have one.

A process that parses DAG files must have no listener: in a process with a listener of any package, Airflow 3.3 refuses
every task with ``end_from_trigger=True``, also of other packages. The DAG processor and each task's process parse DAG
files. So the plugin offers the listener to scheduler and API server alone, a process that the scheduler forks forgets
the listener, and a task of ours registers the listener in its own process after its DAG file is parsed, when its work
begins.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from airflow_provider_microbatch.listeners import listener

MARKING_COMPONENTS = ("scheduler", "api-server")
"""``airflow <component>`` of the processes that put marks."""


def offered() -> list[Any]:
    """The listeners that the plugin gives to Airflow in this process."""
    component = sys.argv[1] if len(sys.argv) > 1 else ""
    if component not in MARKING_COMPONENTS:
        return []
    given: list[Any] = [listener]
    if component == "scheduler":
        # LocalExecutor forks the processes of its tasks off the scheduler.
        os.register_at_fork(after_in_child=lambda: _forget(given))
    return given


def listen() -> None:
    """Have the listener called when the task of this process ends. A second call does nothing."""
    from airflow.sdk.listener import get_listener_manager

    manager: Any = get_listener_manager()
    manager.add_listener(listener)


def _forget(given: list[Any]) -> None:
    given.clear()
    from airflow.listeners.listener import get_listener_manager

    if get_listener_manager.cache_info().currsize and get_listener_manager().pm.is_registered(listener):
        get_listener_manager().pm.unregister(listener)
