"""What a reader of a Delta table finds at one version of it, looked at by a process of its own: ``python -m
tests.support.delta_table <table>``. delta-rs dies in a process that was forked from one which has used it, as the
tests' tasks are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.sinks import SinkContext
from airflow_provider_microbatch.sinks.delta import DeltaSink
from airflow_provider_microbatch.sinks.delta.merged.opened import OpenMerged
from airflow_provider_microbatch.sinks.merge import Merge
from tests.sinks.stages import NOTHING_KNOWN

TOP = Path(__file__).resolve().parents[2]
_LOOKS = 500


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


def _look_at_changes(table: str) -> dict[str, list[dict[str, Any]]]:
    """The changes of the batches that one version names; it shows the newest of them."""
    from pyarrow import parquet

    sink = DeltaSink(table, packages=[], merge=Merge(keys=("id",), sequence_by=("version",))).open(SinkContext())
    assert isinstance(sink, OpenMerged)
    history, snapshot = sink._history, sink._log.open()
    found: dict[str, list[dict[str, Any]]] = {}
    if snapshot is None:
        return found
    for key, number in history.batches(snapshot):
        files = [parquet.read_table(history.home.source(path)) for path in history.files_of(key, number)]
        found[str(key)] = [row for file in files for row in file.select(["id", "version"]).to_pylist()]
    shown = snapshot.table.to_pyarrow_table().to_pylist()
    told = sorted((row["id"], row["version"]) for rows in found.values() for row in rows)
    there = sorted((row["id"], row["version"]) for row in shown)
    assert there == told, f"the table shows {there}, and its batches have {told}"
    return found


def _until_nobody_replaces(table: str) -> dict[str, list[dict[str, Any]]]:
    for _ in range(_LOOKS):
        with suppress(FileNotFoundError):  # a replay has removed what it has replaced
            return _look_at_changes(table)
        time.sleep(0.01)
    return _look_at_changes(table)


if __name__ == "__main__":
    print(json.dumps((_until_nobody_replaces if "merged" in sys.argv[2:] else _look)(sys.argv[1])), flush=True)
    os._exit(0)  # the threads by which Arrow has read a table abort, now and then, a process that ends by itself
