"""What a reader of a Delta table finds at one version of it, looked at by a process of its own: ``python -m
tests.support.delta_table <table>``. delta-rs dies in a process that was forked from one which has used it, as the
tests' tasks are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.sinks import SinkContext
from airflow_provider_microbatch.sinks.delta import DeltaSink
from airflow_provider_microbatch.sinks.delta.merged.opened import OpenMerged
from airflow_provider_microbatch.sinks.merge import Merge
from tests.sinks.stages import NOTHING_KNOWN
from tests.support.merged_changes import Batches, changes_of, until_nobody_replaces

TOP = Path(__file__).resolve().parents[2]


def batches_of(table: str, *, merged: bool = False) -> dict[BatchKey, list[dict[str, Any]]]:
    """Rows by batch; also batches that are in without a row.

    :param table: a folder, or an address in a bucket.
    :param merged: whether the rows are changes, of which the table has the newest.
    """
    if table.startswith("/") and not (Path(table) / "_delta_log").is_dir():
        return {}
    command = [sys.executable, "-m", "tests.support.delta_table", table, *(["merged"] if merged else [])]
    told = subprocess.run(command, cwd=TOP, check=True, capture_output=True, text=True).stdout
    return {BatchKey.parse(key): rows for key, rows in json.loads(told).items()}


def _look(table: str) -> dict[str, list[dict[str, Any]]]:
    from deltalake import DeltaTable
    from deltalake.exceptions import TableNotFoundError

    found: dict[str, list[dict[str, Any]]] = {}
    try:
        rows = DeltaTable(Path(table).as_uri() if table.startswith("/") else table).to_pyarrow_table().to_pylist()
    except TableNotFoundError:
        return {}
    for row in rows:
        found.setdefault(f"{row.pop('lane')}/{row.pop('batch_id')}", []).append(row)
    sink = DeltaSink(table, packages=[]).open(SinkContext())
    for lane in sink.lanes(NOTHING_KNOWN) or ():
        for number in sink.batches(lane, NOTHING_KNOWN):
            found.setdefault(f"{lane}/{number}", [])
    return found


def _look_at_changes(table: str) -> Batches:
    sink = DeltaSink(table, packages=[], merge=Merge(keys=("id",), sequence_by=("version",))).open(SinkContext())
    assert isinstance(sink, OpenMerged)
    history, snapshot = sink._history, sink._log.open()
    if snapshot is None:
        return {}
    return changes_of(history, history.batches(snapshot.number), snapshot.table.to_pyarrow_table().to_pylist())


if __name__ == "__main__":
    table = sys.argv[1]
    is_merged = "merged" in sys.argv[2:]
    print(json.dumps(until_nobody_replaces(lambda: _look_at_changes(table)) if is_merged else _look(table)), flush=True)
    os._exit(0)  # the threads by which Arrow has read a table abort, now and then, a process that ends by itself
