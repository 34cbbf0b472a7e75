"""Rows are divided by a Spark Connect server as by any other Spark."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_microbatch.runtime.intake import Intake, TableColumn
from tests.runtime.test_refusing import LINES, Shop
from tests.support.connect_server import connect_server

pytestmark = [pytest.mark.spark, pytest.mark.slow]

RUN = """
import json, sys
from pyspark.sql import SparkSession
from airflow_provider_microbatch.runtime.app import run_job
from airflow_provider_microbatch.runtime.job import Job
spark = SparkSession.builder.remote(sys.argv[1]).getOrCreate()
print(json.dumps(run_job(spark, Job.from_json(sys.argv[2]))))
"""


def test_each_row_is_in_one_place_by_spark_connect(tmp_path: Path) -> None:
    shop = Shop(tmp_path, expect={"id < 100": "drop", "amount >= 0": "dead_letter"})
    shop.land(*LINES, '{"id": 40000, "amount": 1}')
    job = shop.job("only_some")
    assert job.checks is not None
    narrow = Intake(columns=(TableColumn(name="id", told="smallint", type="smallint"),))
    job = replace(job, checks=replace(job.checks, intakes={"": narrow}))
    with connect_server(tmp_path) as url:
        done = subprocess.run(
            [sys.executable, "-c", RUN, url, job.to_json()],
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert (result["numOutputRows"], result["numDeadLetters"], result["numDroppedRows"]) == (1, 5, 1)
    assert result["numUnparsedRows"] == {"orders": 2}
