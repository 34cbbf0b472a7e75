"""Which of Airflow's processes the listener is in, and by whom it is registered there.

Where DAG files are parsed there must be none: in a process with a listener of whatever package, Airflow 3.3 refuses
every task with ``end_from_trigger=True``, whosever it is. DAG files are parsed by the DAG processor and by each task's
process. So the plugin offers the listener to scheduler and API server alone, what the scheduler forks forgets it, and a
task of ours registers it with its own process when its DAG file is parsed and its work begins.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from airflow_provider_microbatch.listeners import listener

MARKING_COMPONENTS = ("scheduler", "api-server")
"""``airflow <component>`` of the processes that mark."""


def offered() -> list[Any]:
    """What the plugin gives to Airflow in this process."""
    component = sys.argv[1] if len(sys.argv) > 1 else ""
    if component not in MARKING_COMPONENTS:
        return []
    given: list[Any] = [listener]
    if component == "scheduler":
        # LocalExecutor forks the processes of its tasks off the scheduler.
        os.register_at_fork(after_in_child=lambda: _forget(given))
    return given


def listen() -> None:
    """Have the listener called when the task of this process ends. Said again, it does nothing."""
    from airflow.sdk.listener import get_listener_manager

    manager: Any = get_listener_manager()
    manager.add_listener(listener)


def _forget(given: list[Any]) -> None:
    given.clear()
    from airflow.listeners.listener import get_listener_manager

    if get_listener_manager.cache_info().currsize and get_listener_manager().pm.is_registered(listener):
        get_listener_manager().pm.unregister(listener)
