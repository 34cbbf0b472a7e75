"""An inline engine that holds an attempt in the middle, so that a test can do something to its processes."""

from __future__ import annotations

import os
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

from airflow_provider_microbatch.exceptions import EngineError
from airflow_provider_microbatch.execution.engine import Code, Engine, Handle
from airflow_provider_microbatch.operators.micro_batch import MicroBatchOperator
from airflow_provider_microbatch.runtime.job import Job
from tests.support.inline_engine import InlineEngine, Rows, local


class GatedEngine(InlineEngine):
    """The attempts in ``held`` write half a stage, say in the file ``<folder>/attempt-<epoch>`` which process they are,
    and go on when there is a file ``<folder>/open``, or when they are cancelled.

    :param folder: where gate and signs of life are.
    :param held: attempts that wait at the gate.
    :param fails: attempts whose transform raises.
    """

    def __init__(self, folder: Path, *, held: Collection[int], fails: Collection[int]) -> None:
        super().__init__(transform=self._rows_or_error)
        self._folder = folder
        self._held = held
        self._fails = fails
        self._epoch = 0

    def start(self, handle: Handle, job: Job, code: Code) -> None:
        self._epoch = job.epoch
        half = local(job.stage.arguments["path"]) / "part-0.json"
        half.parent.mkdir(parents=True, exist_ok=True)
        half.write_text('{"id": ')
        sign = self._folder / f"attempt-{job.epoch}"
        sign.with_suffix(".tmp").write_text(str(os.getpid()))
        sign.with_suffix(".tmp").rename(sign)
        while job.epoch in self._held and not (self._folder / "open").exists():
            if handle["tag"] in self.cancelled:
                raise EngineError("the job was cancelled")
            time.sleep(0.05)
        super().start(handle, job, code)

    def _rows_or_error(self, sources: dict[str, Rows]) -> Rows:
        if self._epoch in self._fails:
            raise ValueError("no such column: total")
        return [row for rows in sources.values() for row in rows]


class GatedOperator(MicroBatchOperator):
    """A MicroBatchOperator on this engine, for DAG files of tests."""

    def __init__(self, *, folder: str, held: Collection[int] = (), fails: Collection[int] = (), **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.folder = folder
        self.held = held
        self.fails = fails

    def engine(self) -> Engine:
        return GatedEngine(Path(self.folder), held=self.held, fails=self.fails)
