"""``dags/orders_s3.py`` as ``make demo-s3`` runs it: what docker-compose.yaml starts for Celery workers, each service
on a machine that shares no disk with another, with the packages of the image; and a worker is killed whose driver lives
on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from demo.machines import MachineError, check

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.airflow
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_what_has_landed_in_a_bucket_is_in_its_table_once_though_a_worker_was_lost() -> None:
    try:
        check()
    except MachineError as error:
        pytest.skip(str(error))
    command = [sys.executable, "-m", "demo", "--s3", "--batches", "2"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "WRONG" not in ended.stdout
    for claim in (
        "killed the worker of batch 1 mid-run",
        "120 rows in the lake, 120 rows landed",
        "attempt 1 was killed",
        "no stage left in the bucket",
        "objects of landing, table and checkpoint, none among",
        "2 logs of tasks in the bucket",
        "no process left",
    ):
        assert claim in ended.stdout
