"""Stores in a database of the test's own."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_microbatch.stores import Store
from airflow_provider_microbatch.stores.location import open_store
from tests.support import sql

Connected = Callable[..., Store]


@pytest.fixture
def connected(tmp_path: Path) -> Connected:
    """A store in the test's own schema, by a connection of the test's own."""
    made = 0

    def connect(**changes: Any) -> Store:
        nonlocal made
        made += 1
        fields = json.loads(os.environ[f"AIRFLOW_CONN_{sql.postgres_connection().upper()}"])
        own = sql.make_connection(f"own_{tmp_path.name}_{made}", **{**fields, **changes})
        return open_store(sql.in_postgres(tmp_path).replace(sql.POSTGRES, own))

    return connect


@pytest.fixture
def server_port() -> int:
    port: int = sql.connect(sql.postgres_connection()).port or 0
    return port
