"""`microbatch engine start` that is interrupted."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_provider_microbatch.cli.main import main
from airflow_provider_microbatch.engines import processes, server
from tests.support.waiting import wait_until

pytestmark = pytest.mark.spark

AT_A_TERMINAL = """
import signal, sys
from airflow_provider_microbatch.cli.main import main
signal.signal(signal.SIGINT, signal.default_int_handler)  # who starts the tests in the background has it ignored
sys.exit(main())
"""


@pytest.mark.parametrize("signal_", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_start_leaves_nothing_for_ever_and_the_next_one_keeps_the_address(
    tmp_path: Path, signal_: signal.Signals, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "e"
    folder.mkdir(mode=0o700)
    port, token = server._address(folder)
    # As an engine has left it that ran here, and was stopped.
    before = {"conn_type": "spark_connect", "host": "localhost", "port": port, "password": token}
    before["extra"] = json.dumps({"engine_dir": str(folder)})
    (folder / server.CONNECTION).write_text(json.dumps({server.CONN_ID: before}, indent=1) + "\n")
    command = [sys.executable, "-c", AT_A_TERMINAL, "engine", "start", "--dir", str(folder)]
    record = folder / "engine.json"
    with subprocess.Popen(command) as starting:
        wait_until(lambda: record.exists() or starting.poll() is not None)
        tag = json.loads(record.read_text())["tag"]
        wait_until(lambda: len(processes.find(tag)) > 1)
        starting.send_signal(signal_)
    try:
        assert bool(processes.find(tag)) == (signal_ is signal.SIGKILL)
        assert server.status(folder).running is None
        assert main(["engine", "stop", "--dir", str(folder)]) == 0
        assert not processes.find(tag)
        if signal_ is not signal.SIGKILL:
            return
        assert main(["engine", "start", "--dir", str(folder), "--master", "local[1]"]) == 0
        assert json.loads((folder / server.CONNECTION).read_text()) == {server.CONN_ID: before}
        given = [int(port) for port in Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()]
        assert not given[0] <= port <= given[1], "anybody's connection may take it while the engine is stopped"
        told = capsys.readouterr().out
        assert "airflow connections import" in told
        assert "still right" in told
    finally:
        main(["engine", "stop", "--dir", str(folder)])
        processes.end_all(tag, grace=1)
