"""The streaming loop that chaos lives through. Each pipeline has a DAG file of its own, which calls :func:`dag_of`."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

from airflow.sdk import DAG

from airflow_provider_microbatch.engines.spark_submit import SparkSubmitEngine
from airflow_provider_microbatch.execution.execution import Execution
from airflow_provider_microbatch.operators.micro_batch import MicroBatchOperator
from airflow_provider_microbatch.sensors.new_data import NewDataSensor
from tests.chaos.real.held import HeldPoints
from tests.chaos.setting import Setting

FILE = '''
"""{dag_id}: an airflow DAG."""

from pathlib import Path

from tests.chaos.real.dag import dag_of

dag = dag_of(Path({root!r}))
'''

CODE = """
from pathlib import Path

from pyspark.sql import functions as F


def transform(batch):
    told = Path({root!r}, "versions", str(batch.id))
    version = int(told.read_text()) if told.exists() else 0
    return batch.sources["orders"].withColumn("version", F.lit(version)).selectExpr("*", *{more})
"""
"""A replay tells by its version that it is one."""


def dag_of(root: Path) -> DAG:
    """The DAG of the pipeline in ``root``, named like the folder. Its process is prepared: points can be armed, and
    leases are as short as the setting says."""
    setting = Setting.load(root)
    HeldPoints(root).install(SparkSubmitEngine, setting.sink_class, setting.publish_steps)
    defaults = Execution.__init__.__kwdefaults__
    assert defaults is not None
    defaults["lease_seconds"] = setting.lease_seconds
    # Every death costs a retry; a run that ran out of them would wait for a person.
    retries = {"retries": 100_000, "retry_delay": timedelta(seconds=1)}
    with DAG(
        root.name, schedule="@continuous", start_date=datetime(2026, 1, 1), max_active_runs=1, default_args=retries
    ) as dag:
        sensor = NewDataSensor(task_id="new_data", pipeline=setting.pipeline(), deferrable=True, poke_interval=0.5)
        sensor >> MicroBatchOperator(task_id="micro_batch", pipeline=setting.pipeline(), conn_id="spark_default")
    return dag
