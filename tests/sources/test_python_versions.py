"""Python data sources are planned by whichever PySpark is there, old and new."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_provider_microbatch.sources.python.resident import Planner
from tests.environments import spark_environment, spark_versions

STREAMS = Path(__file__).resolve().parents[1] / "user_code"

pytestmark = pytest.mark.exchange  # environments of their own


@pytest.mark.parametrize("version", spark_versions())
@pytest.mark.parametrize(("reader", "end"), [("Numbers", 9), ("LimitedNumbers", 7), ("SimpleNumbers", 4)])
def test_a_reader_of_either_signature_and_a_simple_one(tmp_path: Path, version: str, reader: str, end: int) -> None:
    (tmp_path / "head").write_text("9")
    opening: dict[str, Any] = {
        "source": f"number_streams:{reader}",
        "options": {"path": str(tmp_path / "head")},
        "schema": None,
        "path": [str(STREAMS)],
    }
    planner = Planner(opening, python=str(spark_environment(version)))
    try:
        assert planner.ask("latest", start={"n": 2}, rows=5, bytes=None) == {"n": end}
    finally:
        planner.close()
