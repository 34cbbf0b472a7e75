"""A busy disk does not stop the local Airflow: none of its connections waits for it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from demo.local_airflow import LocalAirflow

pytestmark = [pytest.mark.airflow]

_ASK = """
import asyncio, json, pathlib
from sqlalchemy import text
from airflow import settings

PRAGMAS = ("synchronous", "busy_timeout", "journal_mode")

async def asynchronous():
    async with settings.AsyncSession() as session:
        return [(await session.execute(text(f"PRAGMA {name}"))).scalar() for name in PRAGMAS]

with settings.engine.connect() as connection:
    synchronous = [connection.execute(text(f"PRAGMA {name}")).scalar() for name in PRAGMAS]
pathlib.Path("answer").write_text(json.dumps([synchronous, asyncio.run(asynchronous())]))
"""


def test_neither_kind_of_connection_waits_for_the_disk(tmp_path: Path) -> None:
    airflow = LocalAirflow(home=tmp_path, dags=tmp_path)
    # From a folder where this repository is not found by itself, as Airflow's processes may be started.
    done = subprocess.run(
        [sys.executable, "-c", _ASK], env=airflow.env, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    of_sync, of_async = json.loads((tmp_path / "answer").read_text())
    assert of_sync == [0, 60_000, "wal"], "synchronous off, a minute's patience, readers beside the writer"
    assert of_async[:2] == [0, 60_000]
