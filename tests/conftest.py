"""Every test session has an Airflow home of its own, and finds the spark-submit of the Python it runs in."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def _isolate() -> Path:
    """Runs before any test module is imported: Airflow reads its environment when it is first imported. With xdist
    every worker is a process, and a session, of its own."""
    home = Path(tempfile.mkdtemp(prefix="microbatch-airflow-"))
    (home / "dags").mkdir()
    for name in [name for name in os.environ if name.startswith(("AIRFLOW_", "SPARK_", "PYSPARK_"))]:
        del os.environ[name]
    os.environ |= {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(home / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        # A PyPI pyspark's spark-submit finds its home only through PATH.
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
    }
    return home


_HOME = _isolate()


def pytest_unconfigure() -> None:
    """The session's Airflow home goes with it."""
    shutil.rmtree(_HOME, ignore_errors=True)


@pytest.fixture(scope="session")
def airflow_home() -> Path:
    """The session's Airflow home; ``dags`` in it is the DAGs folder."""
    return _HOME
