"""One real Airflow for all tests here: scheduler, DAG processor, triggerer, API server, and spark-submit."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from demo.local_airflow import LocalAirflow
from tests.environments import spark_classes
from tests.scheduler.shop import TODAY, Shop
from tests.support.postgres import Postgres, postgres

ROOT = Path(__file__).resolve().parents[2]

_SPARK = """\
spark.driver.memory 512m
spark.driver.extraJavaOptions -XX:+UseSerialGC -XX:TieredStopAtLevel=1
spark.ui.enabled false
spark.sql.shuffle.partitions 1
"""

_INLINE = '''
"""The transform beside its task. Files in MICROBATCH_HOME tell it to fail, or to wait."""

import os
from airflow.sdk import DAG, task
from airflow_provider_microbatch import FileSink, FileSource, Pipeline

HOME = os.environ["MICROBATCH_HOME"]
pipeline = Pipeline(
    "inline",
    checkpoint=f"{HOME}/checkpoints/inline",
    sources={"orders": FileSource(f"{HOME}/landing/inline", schema="id long, amount double")},
    sink=FileSink(f"{HOME}/lake/inline"),
)

with DAG("inline", schedule=None, max_active_runs=1):

    @task.micro_batch(pipeline=pipeline)
    def micro_batch(batch):
        import os
        import time
        from pathlib import Path

        home = Path(os.environ["MICROBATCH_HOME"])
        if (home / "inline_fails").exists():
            raise ValueError("no such column: total")
        while (home / "inline_waits").exists():
            time.sleep(0.2)
        return batch.sources["orders"].where("amount > 1")

    micro_batch()
'''


@pytest.fixture(scope="package")
def database_server() -> Iterator[Postgres]:
    """Where each Airflow has its database."""
    with postgres() as server:
        yield server


# An Airflow that nobody asks for anything takes a third of a core: it ends with the last test of this folder.
@pytest.fixture(scope="package")
def shop(tmp_path_factory: pytest.TempPathFactory, database_server: Postgres) -> Iterator[Shop]:
    """Airflow with the DAGs that ship, as they are but for two whose next run could come in the middle of a test; and
    with the tests' own."""
    home = tmp_path_factory.mktemp("shop")
    shutil.copytree(ROOT / "dags", home / "dags", ignore=shutil.ignore_patterns("__pycache__"))
    for name, schedule in {"orders_steps": "@hourly", "orders_kafka": "*/10 * * * *"}.items():
        file = home / "dags" / f"{name}.py"
        text = file.read_text()
        assert f'schedule="{schedule}"' in text
        file.write_text(text.replace(f'schedule="{schedule}"', 'schedule="@yearly"'))
    (home / "dags" / "inline.py").write_text(_INLINE)
    shutil.copy(ROOT / "tests" / "scheduler" / "backfill_dags.py", home / "dags" / "backfills.py")
    shutil.copy(ROOT / "tests" / "scheduler" / "drain_dags.py", home / "dags" / "drains.py")
    shutil.copy(ROOT / "tests" / "scheduler" / "continuous_dags.py", home / "dags" / "continuous.py")
    shutil.copy(ROOT / "tests" / "scheduler" / "job_dags.py", home / "dags" / "jobs_graph.py")
    shutil.copy(ROOT / "tests" / "scheduler" / "offline_dags.py", home / "dags" / "offline.py")
    (home / "spark").mkdir()
    (home / "spark" / "spark-defaults.conf").write_text(_SPARK)
    env = {
        "MICROBATCH_HOME": str(home),
        "MICROBATCH_HOUR": str(TODAY.hour),
        "SPARK_CONF_DIR": str(home / "spark"),
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps(
            {"conn_type": "spark", "host": "local[1]", "extra": {"class-archive": str(spark_classes())}}
        ),
        "AIRFLOW_CONN_LAKE": json.dumps(
            {"conn_type": "iceberg", "extra": {"type": "sql", "uri": f"sqlite:///{home / 'catalog.db'}"}}
        ),
        "AIRFLOW_CONN_CHECKPOINTS": json.dumps(
            {"conn_type": "postgres", "host": "127.0.0.1", "port": database_server.port, "login": "postgres",
             "schema": "checkpoints"}
        ),
    }  # fmt: skip
    database_server.database("checkpoints")
    airflow = LocalAirflow(
        home=home / "airflow", dags=home / "dags", env=env, database=database_server.database("shop")
    )
    with airflow:
        yield Shop(home=home, airflow=airflow)
    assert airflow.processes() == []
