"""Handles that somebody else wrote into a checkpoint: nothing is removed, killed or asked because of them."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from airflow_provider_microbatch.engines import packaging, processes
from airflow_provider_microbatch.engines.lookup import find_engine
from airflow_provider_microbatch.engines.spark_connect import SparkConnectEngine
from airflow_provider_microbatch.engines.spark_submit import SparkSubmitEngine
from airflow_provider_microbatch.exceptions import HandleError
from airflow_provider_microbatch.execution.engine import EngineState

TAG = "microbatch-0b54e5a1-6f5e-4d38-9c6c-3f1a5a2b7c9d"
BAD_TAGS: list[Any] = [
    "",
    "/opt/airflow/dags",
    "../../opt/airflow/dags",
    ".",
    "python",
    "microbatch-",
    f"{TAG}/../../opt",
    f"{TAG}\n",
    f"x{TAG}",
    TAG.upper(),
    "microbatch-engine-0b54e5a1-6f5e-4d38-9c6c-3f1a5a2b7c9d",
    "microbatch-" + "a" * 1_000_000,
    None,
    7,
    [TAG],
    {"tag": TAG},
]


def submit(**changes: Any) -> dict[str, Any]:
    whole = {
        "engine": "spark-submit", "host": socket.gethostname(), "tag": TAG, "master": "local[1]",
        "deploy_mode": "client", "namespace": None, "application": "orders batch live/0 attempt 1",
    }  # fmt: skip
    return {**whole, **changes}


def connect(**changes: Any) -> dict[str, Any]:
    whole = {
        "engine": "spark-connect", "host": socket.gethostname(), "url": f"sc://localhost:{free_port()}",
        "conn_id": "warm", "user": "me", "session": TAG[11:], "tag": TAG, "pid": 4_000_000, "started": 1.0,
        "application": "orders batch live/0 attempt 1",
    }  # fmt: skip
    return {**whole, **changes}


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What an engine would do to the world: programs run, signals sent, connections made, folders removed."""
    done: list[str] = []

    def note(name: str) -> Any:
        def called(*arguments: Any, **_: Any) -> None:
            done.append(f"{name} {arguments}")
            raise AssertionError(done[-1])

        return called

    monkeypatch.setattr("shutil.rmtree", note("rmtree"))
    monkeypatch.setattr("subprocess.Popen", note("Popen"))
    monkeypatch.setattr("subprocess.run", note("run"))
    monkeypatch.setattr(socket, "create_connection", note("connect"))
    monkeypatch.setattr(psutil, "process_iter", note("process_iter"))
    for name in ("kill", "terminate", "send_signal"):
        monkeypatch.setattr(psutil.Process, name, note(name))
    yield done
    assert done == []


def refuses(engine: SparkSubmitEngine | SparkConnectEngine, handle: Any) -> None:
    for ask in (engine.poll, engine.cancel):
        with pytest.raises(HandleError, match=r"handle .*was not acted on") as refused:
            ask(handle)
        assert len(str(refused.value)) < 1000


@pytest.mark.parametrize("tag", BAD_TAGS, ids=lambda tag: repr(tag)[:40])
def test_a_tag_that_no_engine_chose_is_refused(tag: Any, watched: list[str]) -> None:
    refuses(SparkSubmitEngine(), submit(tag=tag))
    refuses(SparkConnectEngine(), connect(tag=tag))


@pytest.mark.parametrize(
    "change",
    [
        {"host": 7},
        {"host": ""},
        {"host": "a host"},
        {"host": "-oProxyCommand=x"},
        {"master": None},
        {"master": "; rm -rf /"},
        {"master": "yarn --kill"},
        {"deploy_mode": "cloud"},
        {"deploy_mode": ["client"]},
        {"namespace": "kube-system,app=x"},
        {"namespace": "../default"},
        {"namespace": 7},
        {"application": "x" * 10_000},
        {"application": "orders\nINFO - all is well"},
        {"application": None},
        {"engine": "spark-connect"},
    ],
    ids=str,
)
def test_a_field_that_spark_submit_never_wrote_is_refused(change: dict[str, Any], watched: list[str]) -> None:
    refuses(SparkSubmitEngine(), submit(**change))


@pytest.mark.parametrize(
    "change",
    [
        {"url": "sc://localhost:15002/;token=x"},
        {"url": "sc://user:password@db:5432"},
        {"url": "http://169.254.169.254"},
        {"url": "sc://"},
        {"url": None},
        {"conn_id": "a;b"},
        {"conn_id": None},
        {"conn_id": "x" * 300},
        {"user": "me\nINFO - all is well"},
        {"user": ""},
        {"user": "x" * 300},
        {"session": "../../etc"},
        {"pid": 0},
        {"pid": 1},
        {"pid": -1},
        {"pid": True},
        {"pid": 2**70},
        {"pid": "1"},
        {"started": "now"},
        {"started": float("nan")},
        {"started": float("inf")},
        {"host": None},
        {"engine": "spark-submit"},
    ],
    ids=str,
)
def test_a_field_that_spark_connect_never_wrote_is_refused(change: dict[str, Any], watched: list[str]) -> None:
    refuses(SparkConnectEngine(), connect(**change))


@pytest.mark.parametrize("missing", sorted(set(submit()) | set(connect())))
def test_a_handle_without_one_of_its_fields_is_refused(missing: str, watched: list[str]) -> None:
    for engine, whole in ((SparkSubmitEngine(), submit()), (SparkConnectEngine(), connect())):
        cut = {name: value for name, value in whole.items() if name != missing}
        # Handles of older versions have no namespace where there is none.
        if cut != whole and missing != "namespace":
            refuses(engine, cut)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["janitor", "os:system", "", "spark-submit\n", "../spark_submit", "__init__"])
def test_an_engine_that_nobody_registered_is_no_engine(name: str) -> None:
    loaded = set(sys.modules)
    assert find_engine(name) is None
    assert set(sys.modules) == loaded


@pytest.mark.parametrize("tag", BAD_TAGS, ids=lambda tag: repr(tag)[:40])
def test_a_tag_matches_no_process_and_no_folder_unless_it_is_one(tag: Any, watched: list[str]) -> None:
    if isinstance(tag, str) and tag.startswith("microbatch-engine-"):
        return  # that of a warm server; its own command looks for it
    for ask in (processes.find, packaging.folder_of, packaging.unpack):
        with pytest.raises(HandleError):
            ask(tag)  # type: ignore[operator]


@pytest.fixture
def stranger() -> Iterator[psutil.Process]:
    """A process of the same user that is no attempt's."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        try:
            yield psutil.Process(process.pid)
        finally:
            process.kill()


def test_another_process_with_its_true_start_time_is_not_the_attempts(
    stranger: psutil.Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = connect(pid=stranger.pid, started=stranger.create_time())
    warm = {"conn_type": "spark_connect", "host": "localhost", "port": int(handle["url"].rpartition(":")[2])}
    monkeypatch.setenv("AIRFLOW_CONN_WARM", json.dumps(warm))
    engine = SparkConnectEngine()
    assert engine.poll(handle) is EngineState.UNKNOWN
    assert engine.cancel(handle) is False
    assert stranger.is_running()
    assert stranger.status() != psutil.STATUS_ZOMBIE


def test_a_process_is_the_attempts_if_its_private_folder_says_so(stranger: psutil.Process) -> None:
    tag = f"microbatch-{uuid.uuid4()}"
    handle = connect(tag=tag, pid=stranger.pid, started=stranger.create_time())
    folder = packaging.folder_of(tag)
    folder.mkdir(mode=0o700)
    try:
        packaging.record_process(tag, pid=stranger.pid, started=stranger.create_time())
        assert SparkConnectEngine().poll(handle) is EngineState.RUNNING
        folder.chmod(0o777)
        assert SparkConnectEngine().poll(handle) is EngineState.UNKNOWN, "anybody could have written there"
    finally:
        packaging.unpack(tag)


def test_a_link_in_place_of_an_attempts_folder_is_not_followed(tmp_path: Path) -> None:
    tag = f"microbatch-{uuid.uuid4()}"
    precious = tmp_path / "dags"
    precious.mkdir()
    (precious / "orders.py").write_text("dag")
    folder = packaging.folder_of(tag)
    folder.symlink_to(precious)
    try:
        packaging.unpack(tag)
        assert (precious / "orders.py").exists()
    finally:
        folder.unlink()


@pytest.mark.parametrize(
    "connection",
    [
        {"conn_type": "spark_connect", "host": "spark.example.com", "port": 15002, "password": "token-77"},
        {"conn_type": "postgres", "host": "localhost", "password": "token-77"},
        None,
    ],
    ids=["leads elsewhere", "of another type", "missing"],
)
def test_a_server_that_the_connection_does_not_name_is_not_spoken_to(
    connection: dict[str, Any] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.settimeout(0.2)
        port = listener.getsockname()[1]
        if connection is not None:
            monkeypatch.setenv("AIRFLOW_CONN_WARM", json.dumps({"port": port, **connection}))
        monkeypatch.setattr("airflow_provider_microbatch.engines.spark_connect.Launch", _never)
        with pytest.raises(HandleError, match=r"'warm'") as refused:
            SparkConnectEngine().cancel(connect(url=f"sc://localhost:{port}", pid=os.getpid()))
        assert "token-77" not in str(refused.value)


def _never(*arguments: object) -> None:
    raise AssertionError(f"a process was made to speak to a stranger's server: {arguments}")
