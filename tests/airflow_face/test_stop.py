"""A task that is told to stop: Airflow kills it five seconds later, and what it has to do is done before."""

from __future__ import annotations

import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from airflow_provider_microbatch.engines import processes
from airflow_provider_microbatch.operators.micro_batch import MicroBatchOperator
from airflow_provider_microbatch.operators.steps import SubmitMicroBatchOperator
from airflow_provider_microbatch.task_context.stoppable import StoppableEngine
from tests.execution.world import World


class Deaf:
    """A driver that does not end by itself."""

    pid = 4_000_000

    def __init__(self) -> None:
        self.killed = False

    def is_running(self) -> bool:
        return not self.killed

    def status(self) -> str:
        return psutil.STATUS_RUNNING

    def terminate(self) -> None:
        """It hears nothing."""

    def kill(self) -> None:
        self.killed = True


@pytest.mark.parametrize("kind", [MicroBatchOperator, SubmitMicroBatchOperator])
def test_its_spark_is_killed_within_four_seconds_though_it_does_not_hear(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Any
) -> None:
    driver, clock = Deaf(), SimpleNamespace(now=0.0)

    def sleep(seconds: float) -> None:
        clock.now += seconds

    monkeypatch.setattr(processes, "time", SimpleNamespace(monotonic=lambda: clock.now, sleep=sleep))
    monkeypatch.setattr(processes, "find", lambda tag: [] if driver.killed else [driver])
    given = {"key": "live/0"} if kind is SubmitMicroBatchOperator else {}
    operator = kind(task_id="micro_batch", pipeline=World(tmp_path).pipeline, **given)
    engine = operator._running = StoppableEngine(operator.engine())
    engine._started = {
        "engine": "spark-submit",
        "host": socket.gethostname(),
        "tag": processes.new_tag(),
        "application": "orders batch live/0 attempt 1",
        "master": "local[1]",
        "deploy_mode": "client",
        "namespace": None,
    }
    operator.on_kill()
    assert driver.killed
    assert engine.stopped
    assert 0 < clock.now < 4, "Airflow's five seconds, less what execute has to do then"
