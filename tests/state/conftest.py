"""A real spark-submit by way of a real Airflow connection."""

from __future__ import annotations

import json

import pytest


@pytest.fixture(autouse=True)
def spark_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "local[1]"}))
