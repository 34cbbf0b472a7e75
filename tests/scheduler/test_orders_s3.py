"""``dags/orders_s3.py`` on a real scheduler, as ``make demo-s3`` runs it: landing, table and checkpoint in a bucket,
and a task is killed in the middle."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.airflow
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_what_has_landed_in_a_bucket_is_in_its_table_once_though_a_task_was_killed() -> None:
    command = [sys.executable, "-m", "demo", "--s3", "--batches", "3"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "WRONG" not in ended.stdout
    for claim in ("240 rows in the lake, 240 rows landed", "attempt 1 was killed", "no stage left in the bucket"):
        assert claim in ended.stdout
