"""A real Airflow beside a warm engine: for the rows that go through the scheduler."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.key import LIVE
from airflow_provider_microbatch.engines import server
from airflow_provider_microbatch.stores.location import open_store
from demo.local_airflow import LocalAirflow

DEFAULT_IDLE = 1.0
"""Airflow's own ``scheduler_idle_sleep_time``, in seconds."""

EVERY = 1.0
"""Seconds between two questions to the API server, which has the scheduler's processors to share."""


@dataclass(frozen=True, kw_only=True)
class Scheduled:
    """What a row needs of them.

    :param airflow: runs; its DAGs are paused.
    :param home: the folder with the DAGs' data, which DAG files know as ``BENCH_HOME``.
    """

    airflow: LocalAirflow
    home: Path

    def committed(self, name: str) -> int:
        """How many batches the checkpoint of ``name`` has."""
        return self.committed_in(f"{name}/checkpoint")

    def committed_in(self, checkpoint: str) -> int:
        """How many batches the checkpoint in this folder has."""
        newest = Checkpoint(open_store(str(self.home / checkpoint))).lane(LIVE).commit_log.latest_id()
        return 0 if newest is None else newest + 1

    def loop(self, dag_id: str, runs: int) -> float:
        """Let a ``@continuous`` DAG run for a while.

        :param runs: how many count; one more goes before, as the first also waits for the scheduler to see the DAG.
        :return: seconds from the end of a run to the end of the next one, on average.
        :raises RuntimeError: if a run fails.
        """
        since = datetime.now(UTC)
        ended: list[datetime] = []

        def enough() -> bool:
            query: dict[str, Any] = {"limit": runs + 10, "order_by": "-run_after", "run_after_gte": since.isoformat()}
            found = self.airflow.api("GET", f"dags/{dag_id}/dagRuns", **query)["dag_runs"]
            ended[:] = sorted(datetime.fromisoformat(run["end_date"]) for run in found if _has_ended(run))
            return len(ended) > runs

        def idle() -> bool:
            query: dict[str, Any] = {"state": ["running", "queued"], "limit": 1}
            return not self.airflow.api("GET", f"dags/{dag_id}/dagRuns/~/taskInstances", **query)["task_instances"]

        self.airflow.unpause(dag_id)
        try:
            self.airflow.wait_for(enough, timeout=30.0 * (runs + 2), what=f"{runs} runs of {dag_id}", every=EVERY)
        finally:
            self.airflow.pause(dag_id)
        # A task of this side would run into the measurement of the other.
        self.airflow.wait_for(idle, timeout=60.0, what=f"the last task of {dag_id}", every=EVERY)
        return (ended[runs] - ended[0]).total_seconds() / runs

    def run(self, dag_id: str) -> float:
        """Trigger a run and wait for it.

        :return: seconds from its start to its end.
        :raises RuntimeError: if it fails.
        """
        self.airflow.unpause(dag_id)
        path = f"dags/{dag_id}/dagRuns/{self.airflow.trigger(dag_id)}"
        found: dict[str, Any] = {}

        def ended() -> bool:
            found.update(self.airflow.api("GET", path))
            return _has_ended(found)

        self.airflow.wait_for(ended, timeout=1200.0, what=f"the run of {dag_id}", every=EVERY)
        started, end = (datetime.fromisoformat(found[name]) for name in ("start_date", "end_date"))
        return (end - started).total_seconds()


def _has_ended(run: Mapping[str, Any]) -> bool:
    if run["state"] == "failed":
        raise RuntimeError(f"run {run['dag_run_id']} of {run['dag_id']} failed")
    return bool(run["state"] == "success")


@contextmanager
def scheduled(dags: Mapping[str, str], *, idle: float = DEFAULT_IDLE) -> Iterator[Scheduled]:
    """Start both, and stop both.

    :param dags: DAG files by name. Each task parses its file, so a peer has one of its own without our imports.
    :param idle: ``scheduler_idle_sleep_time`` in seconds; the scheduler's other settings are Airflow's own.
    """
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        (home / "dags").mkdir()
        for name, text in dags.items():
            (home / "dags" / name).write_text(text)
        master = f"local[{os.cpu_count()}]"
        engine = home / "engine"
        try:
            server.start(engine, master=master)
            (connection,) = json.loads((engine / server.CONNECTION).read_text()).values()
            environment = {
                "BENCH_HOME": folder,
                "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": master}),
                "AIRFLOW_CONN_SPARK_CONNECT_DEFAULT": json.dumps(connection),
                "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": str(idle),
                # Airflow's own, where the demo's are made for someone who edits a DAG and watches.
                "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "300",
                "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "30",
            }
            with LocalAirflow(home=home / "airflow", dags=home / "dags", env=environment) as airflow:
                yield Scheduled(airflow=airflow, home=home)
        finally:
            server.stop(engine)
