"""What the Spark Connect engine and ``microbatch engine`` refuse, without a server."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.cli.main import main
from airflow_provider_microbatch.engines import server
from airflow_provider_microbatch.engines.spark_connect import SparkConnectEngine, check_version, wire
from airflow_provider_microbatch.engines.spark_connect.wire import Hello, Wire, call, is_own
from airflow_provider_microbatch.exceptions import EngineError
from tests.support.waiting import wait_until

ENGINE_TAG = "microbatch-engine-0b54e5a1-6f5e-4d38-9c6c-3f1a5a2b7c9d"
TAG = "microbatch-0b54e5a1-6f5e-4d38-9c6c-3f1a5a2b7c9d"
KEY = BatchKey("live", 0)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def connection(monkeypatch: pytest.MonkeyPatch, **changes: object) -> None:
    given = {"conn_type": "spark_connect", "host": "localhost", "port": free_port(), **changes}
    monkeypatch.setenv("AIRFLOW_CONN_WARM", json.dumps(given))


def test_a_server_that_is_down_is_named_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    connection(monkeypatch, password="secret-77")
    with pytest.raises(EngineError, match=r"'warm' does not answer.*microbatch engine start") as error:
        SparkConnectEngine(conn_id="warm").handle(pipeline="orders", key=KEY, epoch=1)
    assert "secret-77" not in str(error.value)


def test_a_missing_connection_is_named_with_the_command_that_makes_it() -> None:
    with pytest.raises(EngineError, match="airflow connections add nobody --conn-type spark_connect"):
        SparkConnectEngine(conn_id="nobody").handle(pipeline="orders", key=KEY, epoch=1)


def test_another_spark_version_is_told_with_the_way_out() -> None:
    check_version("sc://s:1", theirs="4.1.0", ours="4.1.3")
    with pytest.raises(EngineError, match=r"runs Spark 4\.0\.1.*pyspark 4\.1\.3.*'pyspark-client==4\.0\.1'"):
        check_version("sc://s:1", theirs="4.0.1", ours="4.1.3")


def test_nothing_runs_on_a_local_server_that_has_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    connection(monkeypatch)
    engine = SparkConnectEngine(conn_id="warm")
    url = f"sc://localhost:{free_port()}"
    handle = {
        "engine": "spark-connect", "host": socket.gethostname(), "url": url, "conn_id": "warm", "user": "me",
        "session": str(uuid.uuid4()), "tag": TAG, "pid": os.getpid(), "started": 1.0,
        "application": "orders batch live/0 attempt 1",
    }  # fmt: skip
    # The pid is in use again, by this very process, which started later.
    assert engine.cancel(handle) is False
    # Of another host's server nobody knows.
    with pytest.raises(EngineError, match="does not answer"):
        engine.cancel({**handle, "host": "elsewhere", "url": engine._server("warm").public_url})


def test_a_runner_in_a_folder_that_others_may_write_is_not_trusted(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "runner.sock"))
        listener.listen()
        found = call(tmp_path)
        assert found is not None
        found.close()
        tmp_path.chmod(0o770)
        assert call(tmp_path) is None


def test_a_folder_behind_a_link_and_a_process_of_another_user_are_not_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, link = tmp_path / "engine", tmp_path / "link"
    folder.mkdir(mode=0o700)
    link.symlink_to(folder)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "runner.sock"))
        listener.listen()
        assert call(link) is None
        found = call(folder)
        assert found is not None
        found.close()
        accepted, _ = listener.accept()
        with accepted:
            assert is_own(accepted)
            monkeypatch.setattr(os, "getuid", lambda: 65_000)
            assert not is_own(accepted)
        monkeypatch.undo()
        # Whoever took the socket's name first in a folder that is private.
        monkeypatch.setattr(wire, "is_own", lambda end: False)
        assert call(folder) is None
    monkeypatch.undo()
    assert main(["engine", "start", "--dir", str(link)]) == 2
    assert "this user's alone" in capsys.readouterr().err


OF_ANOTHER_USER = """
import os, sys
from pathlib import Path
from airflow_provider_microbatch.engines.spark_connect import runner
runner.load = lambda: None
os.getuid = lambda: 65_000
runner.serve(Path(sys.argv[1]))
"""


def test_a_runner_hangs_up_on_another_user(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", OF_ANOTHER_USER, str(tmp_path)], start_new_session=True)
    try:
        with socket.socket(socket.AF_UNIX) as end:
            wait_until(lambda: end.connect_ex(str(tmp_path / "runner.sock")) == 0)
            end.settimeout(30)
            assert end.recv(1) == b""
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def engine_before(folder: Path) -> int:
    """What an engine leaves that has gone. :return: its port."""
    port = free_port()
    (folder / server.CONNECTION).write_text(json.dumps({server.CONN_ID: {"port": port, "password": "secret-77"}}))
    folder.chmod(0o700)
    return port


def test_port_and_token_stay_unless_the_port_is_taken(tmp_path: Path) -> None:
    port = engine_before(tmp_path)
    assert server.stop(tmp_path) is False
    assert server._address(tmp_path) == (port, "secret-77")
    with socket.create_server(("127.0.0.1", port)):
        other, token = server._address(tmp_path)
    assert other != port
    assert len(token) > 30, "who listened there may have heard the one before"
    assert server._address(tmp_path)[1] != "secret-77", "that start failed, and the listener has gone"
    for broken in ("{", "[]", "{}", json.dumps({server.CONN_ID: {"port": 10**9, "password": ""}})):
        (tmp_path / server.CONNECTION).write_text(broken)
        assert len(server._address(tmp_path)[1]) > 30


def test_a_port_at_which_another_user_would_hear_too_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    port = engine_before(tmp_path)
    monkeypatch.setattr(server, "stranger_at", lambda asked: 54_321 if asked == port else None)
    other, token = server._address(tmp_path)
    assert (other == port, token == "secret-77") == (False, False)


def test_a_start_sends_its_token_to_no_stranger_who_took_the_port_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = (Wire(end) for end in socket.socketpair())
    monkeypatch.setattr("airflow_provider_microbatch.runtime.listening.stranger_at", lambda _: 54_321)
    monkeypatch.setattr(server, "call", lambda _: ours)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        theirs.send({"pid": None})
        theirs.send({"ready": {"server": "4.1.3"}})
        with pytest.raises(EngineError, match=rf"user 54321 listens at port {port}"):
            server._wait(tmp_path, None, None, url=f"sc://localhost:{port}/;token=t")  # type: ignore[arg-type]
    assert theirs.receive() is None


def test_a_start_says_when_the_address_had_to_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    port = engine_before(tmp_path)
    running = server.Running(
        tag=ENGINE_TAG, url="sc://localhost:1", master="local", spark="4.1.3", server_pid=1, runner_pid=1, started=1.0
    )

    def start(folder: Path, **_: object) -> tuple[server.Running, bool]:
        number, token = server._address(folder)
        made = {server.CONN_ID: {"port": number, "password": token}}
        (folder / server.CONNECTION).write_text(json.dumps(made))
        return running, True

    monkeypatch.setattr(server, "start", start)
    monkeypatch.setattr(server, "status", lambda _: server.Status(running=running))
    assert main(["engine", "start", "--dir", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    assert "still right, where it was imported" in told
    assert f"airflow connections import --overwrite {tmp_path / server.CONNECTION}" in told, "it may never have been"
    with socket.create_server(("127.0.0.1", port)):
        assert main(["engine", "start", "--dir", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    assert "has to be imported again" in told
    assert "airflow connections import --overwrite" in told
    (tmp_path / server.CONNECTION).unlink()
    assert main(["engine", "start", "--dir", str(tmp_path)]) == 0
    assert "imported again" not in capsys.readouterr().out


def test_a_start_is_on_record_before_it_starts_anything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(BaseException):
        """The process is gone."""

    def spawn(command: list[str], *_: object) -> None:
        assert any(json.loads((tmp_path / "engine.json").read_text())["tag"] in part for part in command)
        raise Killed

    tmp_path.chmod(0o700)
    monkeypatch.setattr(server, "_spawn", spawn)
    with pytest.raises(Killed):
        server.start(tmp_path)
    assert server.status(tmp_path).running is None


@pytest.mark.parametrize("tag", ["", "python", "microbatch-engine-", None, 7])
def test_a_record_that_names_other_processes_ends_none(
    tmp_path: Path, tag: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o700)
    monkeypatch.setattr("airflow_provider_microbatch.engines.processes.end_all", lambda *_, **__: pytest.fail("ended"))
    (tmp_path / "engine.json").write_text(json.dumps({"tag": tag}))
    assert server.stop(tmp_path) is False


def test_a_runner_of_another_version_or_python_does_not_fit() -> None:
    ours = Hello.of_this_process()
    assert Hello(**ours.to_dict()).fits(ours)
    assert dataclasses.replace(ours, pid=1, started=1.0).fits(ours)
    for changed in ({"version": "0"}, {"python": "/other 3.12.0"}, {"package": "/other"}):
        assert not dataclasses.replace(ours, **changed).fits(ours)


def test_messages_longer_than_a_packet_and_the_end_of_a_conversation() -> None:
    left, right = (Wire(end) for end in socket.socketpair())
    left.send({"text": "ü" * 15_000})
    left.send({"text": "\n"})
    assert right.receive() == {"text": "ü" * 15_000}
    assert right.receive() == {"text": "\n"}
    with pytest.raises(TimeoutError):
        right.receive(seconds=0.01)
    left.close()
    assert right.receive() is None


def test_a_stale_record_is_no_engine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "engine"
    assert main(["engine", "stop", "--dir", str(folder)]) == 0
    assert "no engine runs" in capsys.readouterr().out
    folder.mkdir(mode=0o700)
    record = {
        "tag": ENGINE_TAG, "url": "sc://localhost:1", "master": "local", "spark": "4.1.3",
        "server_pid": os.getpid(), "runner_pid": os.getpid(), "started": 1.0,
    }  # fmt: skip
    (folder / "engine.json").write_text(json.dumps(record))
    assert server.status(folder).running is None
    assert main(["engine", "status", "--dir", str(folder)]) == 1
    assert server.stop(folder) is False
    assert not (folder / "engine.json").exists()


def test_a_folder_of_everybody_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tmp_path.chmod(0o755)
    assert main(["engine", "start", "--dir", str(tmp_path)]) == 2
    assert "chmod 700" in capsys.readouterr().err
    assert main(["engine", "start", "--dir", str(tmp_path / ("long" * 30))]) == 2
    assert "too long" in capsys.readouterr().err
