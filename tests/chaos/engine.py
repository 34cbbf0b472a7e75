"""An engine whose jobs are processes of their own, found and cancelled by a tag in their command line, as Spark's are.

A SIGKILL of the task process leaves the job as an orphan that goes on writing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.engines import processes
from airflow_provider_microbatch.exceptions import EngineError
from airflow_provider_microbatch.execution.engine import Code, EngineState, Handle
from airflow_provider_microbatch.runtime.job import Job

TOP = Path(__file__).resolve().parents[2]


class ProcessEngine:
    """:param root: the world's folder; job files go to ``jobs`` in it.
    :param version: what the transform adds to each row.
    :param fault: ``point``, ``victim`` and ``pace`` of :mod:`tests.chaos.engine_process`.
    """

    name = "process"

    def __init__(self, root: Path, *, version: int, fault: dict[str, Any]) -> None:
        self._root = root
        self._version = version
        self._fault = fault
        self._started: dict[str, subprocess.Popen[bytes]] = {}

    def handle(self, *, pipeline: str, key: BatchKey, epoch: int) -> Handle:
        return {"engine": self.name, "tag": processes.new_tag()}

    def start(self, handle: Handle, job: Job, code: Code) -> None:
        tag = handle["tag"]
        plan = {
            "job": job.to_json(),
            "version": self._version,
            "task": os.getpid(),
            "root": str(self._root),
            **self._fault,
        }
        path = self._root / "jobs" / f"{tag}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(plan))
        # What is not JSON is written by a package.
        bare = [] if any(stage.arguments.get("format") == "parquet" for stage in job.stages.values()) else ["-S"]
        self._started[tag] = subprocess.Popen(
            [sys.executable, *bare, "-m", "tests.chaos.engine_process", str(path)],
            cwd=TOP,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def result(self, handle: Handle) -> None:
        code = self._started[handle["tag"]].wait()
        if code != 0:
            raise EngineError(f"the engine's process ended with {code}")

    def poll(self, handle: Handle) -> EngineState:
        return EngineState.RUNNING if processes.find(handle["tag"]) else EngineState.UNKNOWN

    def cancel(self, handle: Handle) -> bool:
        started = self._started.get(handle["tag"])
        stopped = processes.end_all(handle["tag"], grace=1.0)
        if started is not None:
            started.wait()
        return stopped
