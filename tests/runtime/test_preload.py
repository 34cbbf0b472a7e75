"""Spark's classes are loaded while Python imports PySpark; where that cannot be, nothing else is different."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from airflow_provider_microbatch.runtime.preload import preload

PORT, SECRET = "PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET"

IN_A_DRIVER = """
import os
from pyspark.java_gateway import launch_gateway
from airflow_provider_microbatch.runtime.preload import preload

gateway = launch_gateway()
classes = gateway.jvm.java.lang.management.ManagementFactory.getClassLoadingMXBean()
before = classes.getLoadedClassCount()
parameters = gateway.java_parameters
os.environ |= {"PYSPARK_GATEWAY_PORT": str(parameters.port), "PYSPARK_GATEWAY_SECRET": parameters.auth_token}
preload().join()
print(classes.getLoadedClassCount() - before)
from pyspark.sql import SparkSession
print(SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate().range(7).count())
"""


def test_where_no_java_waits_nothing_is_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PORT, raising=False)
    assert preload() is None
    monkeypatch.setenv(PORT, "1")
    monkeypatch.delenv(SECRET, raising=False)
    assert preload() is None


@pytest.mark.parametrize("listens", [True, False])
def test_a_java_that_does_not_answer_is_left_alone(listens: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv(PORT, str(server.getsockname()[1]))
        monkeypatch.setenv(SECRET, "secret")
        if not listens:
            server.close()
        thread = preload()
        assert thread is not None
        if listens:
            server.accept()[0].close()
        thread.join(timeout=30)
    assert not thread.is_alive()


@pytest.mark.spark
def test_the_javas_classes_are_there_when_it_ends_and_spark_starts_as_ever() -> None:
    done = subprocess.run([sys.executable, "-c", IN_A_DRIVER], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    loaded, rows = done.stdout.split()[-2:]
    assert int(loaded) > 1_000
    assert rows == "7"
