"""A checkpoint moves from a folder to PostgreSQL, and its DAG goes on: a real scheduler, spark-submit and command."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from airflow_provider_microbatch import connections
from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.stores.location import open_store
from tests.scheduler.shop import SECONDS, Shop, order
from tests.support import sql

pytestmark = [pytest.mark.airflow, pytest.mark.spark]

DAG = "moving"
ADDRESS = "sql://checkpoints/microbatch/moving"
_FILE = """
import os
from airflow.sdk import DAG
from airflow_provider_microbatch import FileSink, FileSource, Pipeline
from airflow_provider_microbatch.operators.micro_batch import MicroBatchOperator

HOME = os.environ["MICROBATCH_HOME"]
pipeline = Pipeline(
    "moving",
    checkpoint={checkpoint},
    sources={{"orders": FileSource(f"{{HOME}}/landing/moving", schema="id long, amount double")}},
    sink=FileSink(f"{{HOME}}/lake/moving"),
)

with DAG("moving", schedule=None, max_active_runs=1):
    MicroBatchOperator(task_id="micro_batch", pipeline=pipeline, retries=0)
"""
IN_A_FOLDER = _FILE.format(checkpoint='f"{HOME}/checkpoints/moving"')
IN_POSTGRES = _FILE.format(checkpoint=repr(ADDRESS))


def microbatch(shop: Shop, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command, as somebody types it where Airflow is."""
    words = [sys.executable, "-m", "airflow_provider_microbatch.cli.main", *arguments]
    return subprocess.run(words, env={**os.environ, **shop.airflow.env}, capture_output=True, text=True, check=False)


def test_three_batches_in_a_folder_then_the_checkpoint_moves_and_the_dag_goes_on(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_CHECKPOINTS", shop.airflow.env["AIRFLOW_CONN_CHECKPOINTS"])
    connections.find_by(sql.connect)
    file, folder = shop.home / "dags" / "moving.py", str(shop.home / "checkpoints" / "moving")
    file.write_text(IN_A_FOLDER)

    def run(number: int, expected: str = "success") -> str:
        shop.land(DAG, f"{number}", [order(number)])
        run_id = shop.airflow.trigger(DAG)
        assert shop.airflow.wait_for_run(DAG, run_id, timeout=SECONDS) == expected
        return run_id

    shop.airflow.unpause(DAG, timeout=SECONDS)
    for number in range(3):
        run(number)
    assert shop.ids(DAG) == [0, 1, 2]

    moved = microbatch(shop, "copy", folder, ADDRESS)
    assert moved.returncode == 0, moved.stderr
    assert ADDRESS in moved.stdout

    # The DAG file still names the old place: the run fails, and says where the checkpoint is.
    failed = run(3, "failed")
    assert f"has moved to {ADDRESS}" in shop.airflow.task_log(DAG, failed, "micro_batch")
    refused = microbatch(shop, "show", folder, "2")
    assert refused.returncode == 2
    assert f"has moved to {ADDRESS}" in refused.stderr
    assert shop.ids(DAG) == [0, 1, 2]

    file.write_text(IN_POSTGRES)
    last = run(4)
    shop.airflow.pause(DAG)
    assert shop.ids(DAG) == [0, 1, 2, 3, 4], "nothing is lost or doubled: what landed meanwhile is in the next batch"
    new = Checkpoint(open_store(ADDRESS))
    assert new.commit_log.latest_id() == 3
    entry = new.offset_log.get(3)
    assert entry is not None
    assert entry.run is not None
    assert entry.run.run_id == last
    checked = microbatch(shop, "check", ADDRESS)
    assert checked.returncode == 0, checked.stdout + checked.stderr
