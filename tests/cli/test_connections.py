"""Connections that the ``microbatch`` command finds: as the ``airflow`` command does, also those in the database."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_provider_microbatch.connections import Connection, type_of

pytestmark = [pytest.mark.airflow, pytest.mark.slow]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Of an Airflow with a database of its own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW_", "_AIRFLOW"))}
    home = {"AIRFLOW_HOME": str(tmp_path / "airflow"), "AIRFLOW__CORE__LOAD_EXAMPLES": "False"}
    return {**kept, **home, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def run(environment: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", *words]
    return subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )


ADDS_A_CONNECTION = """
import sys
from airflow.models.connection import Connection
from airflow.models.team import Team
from airflow.utils.session import create_session
with create_session() as session:
    for table in Connection.__table__, Team.__table__:
        table.create(session.connection())
    session.add(Connection(conn_id="lite", conn_type="sqlite", host=sys.argv[1]))
"""
"""Into the table that is asked for it, beside the one that it refers to: all of them take half a minute."""


def test_one_that_is_in_airflows_database_is_found(environment: dict[str, str], tmp_path: Path) -> None:
    given = [sys.executable, "-c", ADDS_A_CONNECTION, str(tmp_path / "checkpoints.db")]
    subprocess.run(given, env=environment, check=True)
    log = run(environment, "airflow_provider_microbatch.cli.main", "log", "sql://lite/main/orders")
    assert "sql://lite/main/orders is not a checkpoint" in log.stderr, log.stderr


def test_a_type_that_airflow_did_not_know_is_told_from_a_wrong_one() -> None:
    assert type_of(Connection(conn_id="db", conn_type="mysql")) == "'mysql'"
    assert "--conn-json" in type_of(Connection(conn_id="db", conn_type="generic"))
