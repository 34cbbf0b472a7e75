"""What a reader of a Delta table finds at one version of it, looked at by a process of its own: ``python -m
tests.support.delta_table <table> <type of its merge, or 0>``. delta-rs dies in a process that was forked from one which
has used it, as the tests' tasks are."""

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
from tests.sinks.stages import NOTHING_KNOWN
from tests.support.merged_changes import MERGES, Batches, changes_of, until_nobody_replaces

TOP = Path(__file__).resolve().parents[2]


def batches_of(table: str, *, scd_type: int = 0, apart: bool = True) -> dict[BatchKey, list[dict[str, Any]]]:
    """Rows by batch; also batches that are in without a row.

    :param table: a folder, or an address in a bucket.
    :param scd_type: whether the rows are changes, of which the table has the newest (1) or all versions (2).
    :param apart: False: look in this process, from which nobody is forked.
    """
    if table.startswith("/") and not (Path(table) / "_delta_log").is_dir():
        return {}
    if apart:
        command = [sys.executable, "-m", "tests.support.delta_table", table, str(scd_type)]
        told = subprocess.run(command, cwd=TOP, check=True, stdout=subprocess.PIPE, text=True).stdout
        found = json.loads(told)
    else:
        found = look(table, scd_type)
    return {BatchKey.parse(key): rows for key, rows in found.items()}


def look(table: str, scd_type: int) -> Batches:
    """The same, by names of batches."""
    return until_nobody_replaces(lambda: _look_at_changes(table, scd_type)) if scd_type else _look(table)


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


def _look_at_changes(table: str, scd_type: int) -> Batches:
    sink = DeltaSink(table, packages=[], merge=MERGES[scd_type]).open(SinkContext())
    assert isinstance(sink, OpenMerged)
    history, snapshot = sink._history, sink._log.open()
    if snapshot is None:
        return {}
    shown = snapshot.table.to_pyarrow_table().to_pylist()
    return changes_of(history, history.batches(snapshot.number), shown, scd_type=scd_type)


if __name__ == "__main__":
    print(json.dumps(look(sys.argv[1], int(sys.argv[2]))), flush=True)
    os._exit(0)  # the threads by which Arrow has read a table abort, now and then, a process that ends by itself
