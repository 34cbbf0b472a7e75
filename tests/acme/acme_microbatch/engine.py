"""An engine of a third party: a job is a plain Python process with a Spark of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.engines import packaging, processes
from airflow_provider_microbatch.engines.lookup import Wanted
from airflow_provider_microbatch.exceptions import EngineError, HandleError
from airflow_provider_microbatch.execution.engine import Code, EngineState, Handle
from airflow_provider_microbatch.runtime.job import Job

_GRACE_SECONDS = 2.0


class ProcessEngine:
    """Runs each job on this host.

    :param conf: Spark settings.
    """

    name = "acme-process"

    def __init__(self, *, conf: Mapping[str, Any] | None = None) -> None:
        self._conf = {key: str(value) for key, value in (conf or {}).items()}
        self._started: dict[str, subprocess.Popen[bytes]] = {}

    @classmethod
    def of_connection(cls, wanted: Wanted) -> ProcessEngine:
        return cls(conf=wanted.conf)

    def handle(self, *, pipeline: str, key: BatchKey, epoch: int) -> Handle:
        return {"engine": self.name, "tag": processes.new_tag(), "application": f"{pipeline} {key} attempt {epoch}"}

    def start(self, handle: Handle, job: Job, code: Code) -> None:
        shipment = packaging.pack(tag=handle["tag"], job=job, code_files=code.files, conf=self._conf, base=None)
        # Python imports from a zip itself, and from the folder of a file.
        paths = [str(path if path.suffix != ".py" else path.parent) for path in shipment.py_files]
        self._started[handle["tag"]] = subprocess.Popen(
            [sys.executable, str(shipment.application), str(shipment.job)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            stdin=subprocess.DEVNULL,
        )

    def result(self, handle: Handle) -> None:
        status = self._started[handle["tag"]].wait()
        packaging.unpack(handle["tag"])
        if status != 0:
            raise EngineError(f"{handle['application']} ended with exit status {status}.")

    def poll(self, handle: Handle) -> EngineState:
        process = self._started.get(_tag(handle))
        if process is not None and process.poll() is not None:
            return EngineState.SUCCEEDED if process.returncode == 0 else EngineState.FAILED
        return EngineState.RUNNING if processes.find(_tag(handle)) else EngineState.UNKNOWN

    def cancel(self, handle: Handle) -> bool:
        stopped = processes.end_all(_tag(handle), grace=_GRACE_SECONDS)
        packaging.unpack(_tag(handle))
        return stopped


def _tag(handle: Handle) -> str:
    if handle.get("engine") != ProcessEngine.name:
        raise HandleError(f"{handle.get('engine')!r:.100} is another engine; nothing was done.")
    return processes.check_tag(handle.get("tag"))
