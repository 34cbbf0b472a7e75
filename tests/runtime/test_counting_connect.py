"""What a Spark Connect server has counted is known whichever frame a writer makes of the one that it is given."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_microbatch.runtime.job import Stage
from airflow_provider_microbatch.sinks.file import FileSink
from tests.runtime.jobs import land, make_job
from tests.runtime.test_refusing_connect import RUN
from tests.support.connect_server import connect_server

pytestmark = [pytest.mark.spark, pytest.mark.slow]

MARKED = {"format": "parquet", "constants": {"lane": "live", "batch_id": 0}}
WRITERS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "delta": ("write:write_marked", MARKED),
    "iceberg": ("write:write_marked", {**MARKED, "groups": {"id": ["identity", "id"]}}),
    "postgres": ("copy_lines:write", {"columns": [], "needed": [], "remove_nul": False, "delete_when": None}),
    "table": ("tables:write", {"format": "parquet", "table": "t", "schema": "note string, id bigint"}),
}

ATTEMPTS = 5
"""Spark's server waits 0.1 s for a count, which its listeners bring. On a busy machine a count comes too late now and
then, and is unknown; that of a frame which no writer named is unknown each time."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with connect_server(tmp_path_factory.mktemp("server")) as url:
        yield url


@pytest.mark.parametrize("kind", WRITERS)
def test_rows_that_a_writer_changes_are_counted(server: str, tmp_path: Path, kind: str) -> None:
    for attempt in range(ATTEMPTS):
        rows_in, rows_out = _counts(server, tmp_path / str(attempt), kind)
        assert {rows_in, rows_out} <= {3, None}
        if (rows_in, rows_out) == (3, 3):
            return
    pytest.fail(f"of {ATTEMPTS} attempts none has counted its 3 rows; the last one: {rows_in} in, {rows_out} out")


def _counts(server: str, tmp_path: Path, kind: str) -> tuple[int | None, int | None]:
    job = make_job(FileSink(str(tmp_path / "lake"), format="json"), "keep", [land(tmp_path / "landing")])
    writer, arguments = WRITERS[kind]
    path = str(tmp_path / "stage")
    stage = Stage(
        writer=f"airflow_provider_microbatch.runtime.{writer}", arguments={**arguments, "path": path}, report=path
    )
    done = subprocess.run(
        [sys.executable, "-c", RUN, server, replace(job, stages={"": stage}).to_json()],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    return result["numInputRows"]["orders"], result["numOutputRows"]
