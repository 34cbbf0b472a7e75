"""The DAG processor imports operators again and again, and a worker that finds nothing new should not load Spark."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import airflow_provider_microbatch

HEAVY = ("pyspark", "pandas", "pyarrow", "numpy", "grpc", "py4j", "duckdb")

REPORT = "import sys, json; {}; print(json.dumps([name for name in sys.modules if '.' not in name]))"

FACE = (
    "from airflow_provider_microbatch.operators.micro_batch import MicroBatchOperator",
    "from airflow_provider_microbatch.sensors.new_data import NewDataSensor",
    "from airflow_provider_microbatch.triggers.new_data import NewDataTrigger",
    "from airflow_provider_microbatch.decorators.micro_batch import micro_batch_task",
    "from airflow_provider_microbatch.plugins.microbatch import MicroBatchPlugin",
)
WITHOUT_AIRFLOW = (
    "import airflow_provider_microbatch",
    "from airflow_provider_microbatch.get_provider_info import get_provider_info; get_provider_info()",
    "from airflow_provider_microbatch import FileSink, FileSource, Pipeline",
    "from airflow_provider_microbatch.execution.execution import Execution",
    "from airflow_provider_microbatch.cli.main import main",
)


def loaded_after(*statements: str) -> set[str]:
    """Top-level modules that are loaded after statements ran in a fresh Python: what one loads, all load."""
    told = REPORT.format("; ".join(statements))
    run = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return set(json.loads(run.stdout.splitlines()[-1]))


@pytest.mark.slow
def test_importing_the_face_loads_no_spark() -> None:
    loaded = loaded_after(*FACE)
    assert "airflow" in loaded
    assert not loaded & set(HEAVY)


def test_every_name_of_the_package_is_there_and_loads_no_spark_and_no_airflow() -> None:
    names = {*airflow_provider_microbatch.__all__} - {"__version__"}
    assert {"Catalog", "JobStatusHook", "Pipeline", "Sink", "Source"} <= names
    loaded = loaded_after(f"from airflow_provider_microbatch import {', '.join(sorted(names))}")
    assert not loaded & {*HEAVY, "airflow"}


def test_what_needs_no_airflow_loads_none_and_no_spark() -> None:
    assert not loaded_after(*WITHOUT_AIRFLOW) & {*HEAVY, "airflow"}


def test_provider_discovery_loads_only_the_info() -> None:
    # Airflow calls it in every process, early.
    ours = "airflow_provider_microbatch"
    statement = (
        f"from {ours}.get_provider_info import get_provider_info; get_provider_info(); "
        f"assert {{n for n in sys.modules if n.startswith('{ours}.')}} == {{'{ours}.get_provider_info'}}"
    )
    loaded_after(statement)
