"""Words of the scheduler tests: a shop whose orders land as files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
import pyarrow.dataset as ds

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.key import LIVE, BatchKey
from airflow_provider_microbatch.execution.summary import BatchSummary, summarize
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.stores.location import open_store
from demo.local_airflow import LocalAirflow
from tests.support.whose import stages_of

SECONDS = 180.0
"""What a batch may take on a busy machine, a retry included."""

TODAY = (datetime.now(tz=UTC) - timedelta(hours=12)).replace(minute=0, second=0, microsecond=0)
"""When the newest day of the daily DAGs began."""


@dataclass(frozen=True, kw_only=True)
class Shop:
    """:param home: what the DAGs know as ``MICROBATCH_HOME``.
    :param airflow: it runs.
    """

    home: Path
    airflow: LocalAirflow

    def land(self, folder: str, name: str, orders: Iterable[Mapping[str, Any]]) -> None:
        """One file, whole at once."""
        path = self.home / "landing" / folder / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(f".{path.name}")
        unfinished.write_text("".join(json.dumps(order) + "\n" for order in orders))
        unfinished.rename(path)

    def landed(self, folder: str) -> list[int]:
        """Ids of all orders that have landed there, sorted: other tests land some there too."""
        files = (self.home / "landing" / folder).glob("*.json")
        return sorted(json.loads(line)["id"] for path in files for line in path.read_text().splitlines())

    def connect(self, conn_id: str, conn_type: str, *, extra: Mapping[str, Any], **more: Any) -> None:
        """Have a connection of that name in Airflow, if there is none yet."""
        known = {one["connection_id"] for one in self.airflow.api("GET", "connections")["connections"]}
        if conn_id not in known:
            stored = {"connection_id": conn_id, "conn_type": conn_type, "extra": json.dumps(extra), **more}
            self.airflow.api("POST", "connections", stored)

    def checkpoint(self, name: str) -> Checkpoint:
        """A DAG's checkpoint."""
        return Checkpoint(open_store(str(self.home / "checkpoints" / name)))

    def batch(self, name: str, number: int) -> BatchSummary:
        """What the logs say of a batch."""
        return summarize(self.checkpoint(name), BatchKey(LIVE, number))

    def wait_for_commit(self, name: str, number: int) -> BatchSummary:
        """Wait until a batch is committed."""
        log = self.checkpoint(name).commit_log
        self.airflow.wait_for(
            lambda: log.get(number) is not None, timeout=SECONDS, what=f"the commit of batch {number} of {name}"
        )
        return self.batch(name, number)

    def ids(self, name: str) -> list[int]:
        """Ids in the table, sorted, as a reader of the whole table finds them."""
        table = self.home / "lake" / name
        if not (table / f"lane={LIVE}").exists():
            return []
        return sorted(ds.dataset(table, partitioning="hive").to_table(columns=["id"])["id"].to_pylist())

    def stages(self, name: str) -> list[tuple[BatchKey, int]]:
        """Stages that exist."""
        return stages_of(FileSink(str(self.home / "lake" / name)), self.checkpoint(name))

    def spark(self, name: str, number: int) -> psutil.Process | None:
        """The driver of a batch's newest attempt, a child of its task process."""
        attempt = self.checkpoint(name).attempts.latest(BatchKey(LIVE, number))
        if attempt is None:
            return None
        for process in self.airflow.processes():
            try:
                words = process.cmdline()
                # Before it, a launcher with the same arguments runs below a shell.
                driver = process.name() == "java" and "org.apache.spark.launcher.Main" not in words
                if driver and any(attempt.handle["tag"] in word for word in words):
                    return process
            except psutil.NoSuchProcess:
                continue
        return None

    def wait_for_spark(self, name: str, number: int) -> psutil.Process:
        """Wait until Spark runs a batch's newest attempt."""
        found = self.airflow.wait_for(
            lambda: self.spark(name, number), timeout=SECONDS, what=f"Spark for batch {number} of {name}"
        )
        assert found is not None
        return found


def order(number: int, amount: float = 5.0) -> dict[str, Any]:
    """An order."""
    return {"id": number, "customer": "Ada", "amount": amount, "ts": "2026-01-01T08:00:00Z"}
