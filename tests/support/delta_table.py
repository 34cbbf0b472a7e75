"""What a reader of a Delta table finds at one version of it, looked at by a process of its own: ``python -m
tests.support.delta_table <folder>``. delta-rs dies in a process that was forked from one which has used it, as the
tests' tasks are."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.sinks import SinkContext
from airflow_provider_microbatch.sinks.delta import DeltaSink
from tests.sinks.stages import NOTHING_KNOWN

TOP = Path(__file__).resolve().parents[2]


def batches_of(folder: Path) -> dict[BatchKey, list[dict[str, Any]]]:
    """Rows by batch; also batches that are in without a row."""
    if not (folder / "_delta_log").is_dir():
        return {}
    command = [sys.executable, "-m", "tests.support.delta_table", str(folder)]
    told = subprocess.run(command, cwd=TOP, check=True, capture_output=True, text=True).stdout
    return {BatchKey.parse(key): rows for key, rows in json.loads(told).items()}


def _look(folder: Path) -> dict[str, list[dict[str, Any]]]:
    from deltalake import DeltaTable

    found: dict[str, list[dict[str, Any]]] = {}
    for row in DeltaTable(folder.as_uri()).to_pyarrow_table().to_pylist():
        found.setdefault(f"{row.pop('lane')}/{row.pop('batch_id')}", []).append(row)
    sink = DeltaSink(str(folder)).open(SinkContext())
    for lane in (path.name.removeprefix("lane=") for path in (folder / "_microbatch" / "batches").glob("lane=*")):
        for number in sink.batches(lane, NOTHING_KNOWN):
            found.setdefault(f"{lane}/{number}", [])
    return found


if __name__ == "__main__":
    print(json.dumps(_look(Path(sys.argv[1]))))
