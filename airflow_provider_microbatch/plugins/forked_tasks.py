"""Import the modules of our tasks once, in a scheduler whose LocalExecutor forks the processes of tasks off itself.

Without this each process imports some hundred modules anew when its DAG file is parsed: a sixth of a warm batch of a
second. As with Airflow's own modules, another version of the package takes effect at the scheduler's next start.
"""

from __future__ import annotations

import contextlib
import importlib
import sys

_PACKAGE = "airflow_provider_microbatch"
_MODULES = (
    "operators.drain",
    "operators.steps",
    "sensors.new_data",
    "engines.spark_connect",
    "engines.spark_submit",
    "sources.file",
    "sources.file.open",
    "sinks.file",
    "sinks.file.posix",
    "sinks.table",
)


def load() -> None:
    """Import the modules, in a scheduler that forks tasks; elsewhere do nothing."""
    if sys.argv[1:2] != ["scheduler"] or not _forks_tasks():
        return
    for name in _MODULES:
        # A module that cannot be imported here fails in the task that needs it, and that task says why.
        with contextlib.suppress(Exception):
            importlib.import_module(f"{_PACKAGE}.{name}")


def _forks_tasks() -> bool:
    from airflow.configuration import conf

    return "LocalExecutor" in conf.get("core", "executor", fallback="")
