"""Iceberg tables of the tests' own, in a catalog of SQLite, and what a reader of one finds, looked at by a process of
its own: ``python -m tests.support.iceberg_table <folder> <type of its merge, or 0>``."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.connections import Connection
from airflow_provider_microbatch.sinks import SinkContext
from airflow_provider_microbatch.sinks.iceberg import IcebergSink
from airflow_provider_microbatch.sinks.iceberg.opened import OpenIceberg
from tests.support.merged_changes import Batches, changes_of, history_of, until_nobody_replaces

TOP = Path(__file__).resolve().parents[2]
CONN_ID = "iceberg_of_tests"
NAMESPACE = "shop"


def catalog_file(folder: Path) -> Path:
    """Of the catalog that tables in a folder are in; beside it, for it is no part of what a sink may touch there."""
    return folder.with_name(f"{folder.name}-catalog.db")


def connection_of(folder: Path, *, uri: str | None = None) -> Connection:
    """Of that catalog, or of one that is a server."""
    in_sqlite = {"type": "sql", "uri": f"sqlite:///{catalog_file(folder)}", "catalog_name": "tests"}
    return Connection(conn_id=CONN_ID, conn_type="iceberg", extra=in_sqlite if uri is None else {"uri": uri})


def sink_in(folder: Path, name: str = "orders", *, namespace: str = NAMESPACE, **given: Any) -> IcebergSink:
    """Of a table in a folder."""
    return IcebergSink(CONN_ID, f"{namespace}.{name}", path=str(folder / name), **given)


def opened_in(folder: Path, name: str = "orders", **given: Any) -> OpenIceberg:
    """The same, opened."""
    found = sink_in(folder, name, **given).open(SinkContext(connect=lambda _: connection_of(folder)))
    assert isinstance(found, OpenIceberg)
    return found


def batches_of(folder: Path, *, scd_type: int = 0, apart: bool = True) -> dict[BatchKey, list[dict[str, Any]]]:
    """Rows of the table by batch; also batches that are in without a row.

    :param scd_type: whether the rows are changes, of which the table has the newest (1) or all versions (2).
    :param apart: False: look in this process, from which nobody is forked.
    """
    if not catalog_file(folder).exists():
        return {}
    if apart:
        command = [sys.executable, "-m", "tests.support.iceberg_table", str(folder), str(scd_type)]
        told = subprocess.run(command, cwd=TOP, check=True, stdout=subprocess.PIPE, text=True).stdout
        found = json.loads(told)
    else:
        found = look(folder, scd_type)
    return {BatchKey.parse(key): rows for key, rows in found.items()}


def look(folder: Path, scd_type: int) -> Batches:
    """The same, by names of batches."""
    return until_nobody_replaces(lambda: _look_at_changes(folder, scd_type)) if scd_type else _look(folder)


def _look(folder: Path) -> dict[str, list[dict[str, Any]]]:
    log = opened_in(folder)._log
    look = log.look()
    if look is None:
        return {}
    record = log.record(look)
    found: dict[str, list[dict[str, Any]]] = {
        f"{lane}/{id}": [] for lane in log.ledger.lanes(record) for id in log.ledger.ids(record, lane)
    }
    for row in look.table.scan().to_arrow().to_pylist():
        found.setdefault(f"{row.pop('lane')}/{row.pop('batch_id')}", []).append(row)
    return found


def _look_at_changes(folder: Path, scd_type: int) -> Batches:
    log = opened_in(folder)._log
    look = log.look()
    if look is None:
        return {}
    batches = log.ledger.batches(log.record(look))
    shown = look.table.scan().to_arrow().to_pylist()
    return changes_of(history_of(log.root), batches.items(), shown, scd_type=scd_type)


if __name__ == "__main__":
    print(json.dumps(look(Path(sys.argv[1]), int(sys.argv[2]))))
