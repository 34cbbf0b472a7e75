"""P10: importing the operator, beside importing SparkSubmitOperator. The DAG processor pays this again and again."""

from __future__ import annotations

import tempfile

from benchmarks.harness import Row, paired, python_seconds

RUNS = 9
SOURCE = """
import importlib, sys, time
started = time.perf_counter()
importlib.import_module(sys.argv[1])
print(time.perf_counter() - started)
"""


def measure() -> Row:
    """The row of the table."""
    row = Row(name="P10", what="import of MicroBatchOperator / import of SparkSubmitOperator", reach=1.1)
    with tempfile.TemporaryDirectory() as home:

        def seconds(module: str) -> float:
            return python_seconds(SOURCE, module, AIRFLOW_HOME=home)

        return paired(
            row,
            ours=lambda: seconds("airflow_provider_microbatch.operators.micro_batch"),
            peer=lambda: seconds("airflow.providers.apache.spark.operators.spark_submit"),
            runs=RUNS,
        )
