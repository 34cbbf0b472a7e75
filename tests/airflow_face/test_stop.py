"""A task that is told to stop: Airflow kills it five seconds later, and what it has to do is done before."""

from __future__ import annotations

import json
import os
import socket
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from airflow_provider_microbatch.checkpoint.key import LIVE, BatchKey
from airflow_provider_microbatch.engines import processes
from airflow_provider_microbatch.engines.spark_connect import SparkConnectEngine
from airflow_provider_microbatch.engines.spark_submit import SparkSubmitEngine
from airflow_provider_microbatch.exceptions import AttemptCanceledError, SinkError
from airflow_provider_microbatch.execution.engine import Code, Engine, Handle
from airflow_provider_microbatch.operators.micro_batch import MicroBatchOperator
from airflow_provider_microbatch.operators.steps import SubmitMicroBatchOperator
from airflow_provider_microbatch.runtime.job import Job
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.task_context import stoppable
from airflow_provider_microbatch.task_context.stoppable import StoppableEngine
from tests.execution.world import World, run_identity
from tests.support.inline_engine import InlineEngine


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


class Launching(InlineEngine):
    """Is told to stop while it launches: there is nobody to be ended then."""

    def __init__(self) -> None:
        super().__init__()
        self.stoppable = StoppableEngine(self)
        self.did = list[str]()

    def start(self, handle: Handle, job: Job, code: Code) -> None:
        self.stoppable.stop()
        self.did.append("launched")
        super().start(handle, job, code)

    def result(self, handle: Handle) -> None:
        self.did.append("waited")
        super().result(handle)

    def cancel(self, handle: Handle) -> bool:
        self.did.append("told to end")
        return super().cancel(handle)


def test_spark_that_was_launched_meanwhile_is_told_to_end_and_not_waited_for(tmp_path: Path) -> None:
    world, engine = World(tmp_path), Launching()
    world.land(1)
    with pytest.raises(AttemptCanceledError):
        world.execution.run(
            run=run_identity(0), engine=engine.stoppable, code=Code(), transform=None,
            should_stop=lambda: engine.stoppable.stopped,
        )  # fmt: skip
    assert engine.did == ["told to end", "launched", "told to end"]
    end = world.checkpoint.attempts.ended(KEY, 1)
    assert end is not None
    assert end.state == "canceled"


KEY = BatchKey(LIVE, 0)
TAG = "microbatch-5a2b7c9d-6f5e-4d38-9c6c-3f1a0b54e5a1"
HERE = {"host": socket.gethostname(), "tag": TAG, "application": "orders batch live/0 attempt 1"}


class Mute(InlineEngine):
    """Jobs run here; their handles lead to a server, or a cluster, that takes questions and answers none."""

    def __init__(self, engine: Engine, **handle: Any) -> None:
        super().__init__(after_stage=lambda job: self.told_to_stop())
        self.name = engine.name
        self.stoppable = StoppableEngine(self)
        self._engine = engine
        self._handle = {**HERE, "engine": engine.name, **handle}

    def handle(self, *, pipeline: str, key: BatchKey, epoch: int) -> Handle:
        return self._handle

    def cancel(self, handle: Handle) -> bool:
        return self._engine.cancel(handle)

    def told_to_stop(self) -> None:
        """As ``on_kill`` does while Spark is at work."""
        self.stoppable.stop()


@pytest.fixture
def warm(monkeypatch: pytest.MonkeyPatch) -> Iterator[Mute]:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        given = {"conn_type": "spark_connect", "host": "127.0.0.1", "port": port}
        monkeypatch.setenv("AIRFLOW_CONN_WARM", json.dumps(given))
        session: Mapping[str, Any] = {"user": "me", "session": str(uuid.uuid4()), "pid": os.getpid(), "started": 1.0}
        yield Mute(SparkConnectEngine(conn_id="warm"), url=f"sc://127.0.0.1:{port}", conn_id="warm", **session)
        processes.end_all(TAG, grace=0)


@pytest.fixture
def yarn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mute]:
    folder = tmp_path / "bin"
    folder.mkdir()
    # The tag is in its arguments, by which its process is found.
    (folder / "yarn").write_text("#!/bin/sh\nwhile :; do sleep 1; done\n")
    (folder / "yarn").chmod(0o700)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    # Its driver would be here, and is ended first: this host has none.
    cluster = {"master": "yarn", "deploy_mode": "cluster", "namespace": None, "host": "elsewhere"}
    yield Mute(SparkSubmitEngine(), **cluster)
    processes.end_all(TAG, grace=0)


def stop(world: World, engine: Mute, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task is told to stop, and its engine does not answer."""
    monkeypatch.setattr(stoppable, "CANCEL_SECONDS", 0.2)
    world.land(1)
    stopped = engine.stoppable
    with pytest.raises(AttemptCanceledError):
        world.execution.run(
            run=run_identity(1), engine=stopped, code=Code(), transform=None, should_stop=lambda: stopped.stopped
        )


@pytest.mark.parametrize("kind", ["warm", "yarn"])
def test_who_does_not_answer_is_not_waited_for_and_the_stop_is_on_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, request: pytest.FixtureRequest
) -> None:
    engine: Mute = request.getfixturevalue(kind)
    assert 0 < stoppable.CANCEL_SECONDS < 3.5, "Airflow's five seconds, less what execute has to do then"
    world, stopped, began = World(tmp_path), engine.stoppable, time.monotonic()
    stop(world, engine, monkeypatch)
    assert time.monotonic() - began < 20
    assert stopped._asked is not None
    assert stopped._asked.is_alive()
    # What it runs there learns by itself that it is over; its end is another's to record, who can ask again.
    assert list((world.lake / "_fenced").rglob("lane=live/batch_id=0.attempt=1"))
    assert world.checkpoint.leases.unfinished() == [(KEY, 1)]
    world.expire_leases()
    world.janitor(InlineEngine())
    end = world.checkpoint.attempts.ended(KEY, 1)
    assert end is not None
    assert end.state == "canceled", "a stopped attempt is none that died"
    assert not world.stages()


def test_nor_is_it_one_that_died_to_the_next_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warm: Mute
) -> None:
    """So no stop sets a batch aside, however many there are."""
    world = World(tmp_path, on_failure="set_aside", set_aside_after_dead=1)
    stop(world, warm, monkeypatch)
    world.expire_leases()
    assert world.run(1, try_number=2) is not None
    end = world.checkpoint.attempts.ended(KEY, 1)
    assert end is not None
    assert end.state == "canceled"
    assert "told to stop" in str(end.error)
    assert world.table() == {0: [1]}


def test_a_stop_is_on_record_though_the_storage_of_the_stages_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither can the stage be dropped there, nor Spark be told by a mark."""
    world = World(tmp_path, on_failure="set_aside", set_aside_after_dead=1)
    world.land(1)

    def away(*_: object, **__: object) -> bool:
        raise SinkError("its storage is away")

    def stop(job: Job) -> None:
        for name in ("drop_stage", "fence"):
            outage.setattr(FileSink, name, away)
        engine.stop()

    engine = StoppableEngine(InlineEngine(after_stage=stop))
    with monkeypatch.context() as outage, pytest.raises(AttemptCanceledError):
        world.execution.run(
            run=run_identity(1), engine=engine, code=Code(), transform=None, should_stop=lambda: engine.stopped
        )
    world.expire_leases()
    assert world.run(1, try_number=2) is not None
    end = world.checkpoint.attempts.ended(KEY, 1)
    assert end is not None
    assert end.state == "canceled"
    assert world.table() == {0: [1]}
