"""A real spark-submit by way of a real Airflow connection."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.state.stateful import SessionEngine
from tests.support.local_spark import local_spark


@pytest.fixture(autouse=True)
def spark_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "local[1]"}))


@pytest.fixture(scope="module")
def engine() -> Iterator[SessionEngine]:
    """Runs jobs in a session of this process."""
    with local_spark() as session:
        yield SessionEngine(session)
