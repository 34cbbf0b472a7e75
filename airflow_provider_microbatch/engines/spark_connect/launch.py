"""A Spark Connect server as a connection names it, and the process on this host that talks to it for one attempt."""

from __future__ import annotations

import getpass
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from airflow_provider_microbatch.engines.spark_connect.wire import Hello, Wire, call, default_folder
from airflow_provider_microbatch.exceptions import EngineError
from airflow_provider_microbatch.runtime.listening import PORT, refusal

SPARK_CONNECT = "spark_connect"
"""The connection type of Airflow's Spark provider."""

log = logging.getLogger(__name__)

ENGINE_DIR = "engine_dir"
"""Key in the connection's extra: the ``--dir`` of ``microbatch engine start``, if the folder is not the default one."""

_CHILD = "airflow_provider_microbatch.engines.spark_connect.child"
_PROBE_SECONDS = 5.0
_ANSWER_SECONDS = 120.0


class NobodyListensError(EngineError):
    """No process listens at the server's port."""


class Server:
    """A Spark Connect server as a connection names it.

    :param url: ``sc://host:port/;name=value…``, including parameters that may be secret.
    :param conn_id: the connection that names the server.
    :param user: the user who owns the sessions.
    :param folder: the folder in which a resident runner would listen.
    """

    def __init__(self, *, url: str, conn_id: str, user: str, folder: Path) -> None:
        self.url = url
        self.conn_id = conn_id
        self.user = user
        self.folder = folder
        address = urlsplit(url)
        self.host = address.hostname or "localhost"
        self.port = address.port or PORT
        # Without the parameters, because the token is one of them.
        self.public_url = f"sc://{address.netloc.rpartition('@')[2]}"

    @classmethod
    def of(cls, conn_id: str) -> Server:
        """:raises EngineError: if the connection does not exist, or names no host."""
        from airflow.providers.apache.spark.hooks.spark_connect import SparkConnectHook
        from airflow.sdk.exceptions import AirflowException

        try:
            connection = SparkConnectHook.get_connection(conn_id)
            if not connection.host:
                raise ValueError("it has no host")
            if connection.conn_type != SPARK_CONNECT:
                raise ValueError(f"it is of type {connection.conn_type!r}, not {SPARK_CONNECT!r}")
            hook: Any = SparkConnectHook(conn_id)
            hook.get_connection = lambda _: connection  # each lookup is a call to the API server
            url = hook.get_connection_url()
        except (AirflowException, ValueError) as error:
            raise EngineError(
                f"the connection {conn_id!r} cannot be used: {error}. Make it: airflow connections add {conn_id} "
                "--conn-type spark_connect --conn-host HOST --conn-port 15002"
            ) from error
        user = connection.login or getpass.getuser()
        if not connection.login:
            url = f"{url};user_id={user}"
        folder = connection.extra_dejson.get(ENGINE_DIR)
        return cls(url=url, conn_id=conn_id, user=user, folder=Path(folder) if folder else default_folder())

    @staticmethod
    def is_gone(public_url: str) -> bool:
        """Whether the server was on this host and no process listens on its port any more, so that none of its
        operations runs. The check only connects; it sends nothing."""
        server = Server(url=public_url, conn_id="", user="", folder=default_folder())
        try:
            if server.is_local:
                server.check()
        except NobodyListensError:
            return True
        except EngineError:
            return False
        return False

    @property
    def is_local(self) -> bool:
        """Whether the server is on this host, where a port without a listener means that nothing runs."""
        return self.host in ("localhost", "127.0.0.1", "::1", socket.gethostname())

    def check(self) -> None:
        """:raises EngineError: if the server does not answer, or another user of this machine would hear its token."""
        try:
            socket.create_connection((self.host, self.port), timeout=_PROBE_SECONDS).close()
        except OSError as error:
            kind = NobodyListensError if isinstance(error, ConnectionRefusedError) else EngineError
            raise kind(
                f"the Spark Connect server {self.public_url} of connection {self.conn_id!r} does not answer: {error}. "
                "Start it (on one machine: microbatch engine start, which keeps port and token), or mend the "
                "connection's host and port."
            ) from error
        if why := refusal(self.url):
            raise EngineError(
                f"the Spark Connect server {self.public_url} of connection {self.conn_id!r} is not spoken to: {why}"
            )


class Launch:
    """A process for one attempt, and the conversation with the process.

    ``answered`` is true when the process has said how the attempt ended; before, it has dropped what it cached.

    :raises EngineError: if the process ends at once.
    """

    def __init__(self, server: Server, tag: str) -> None:
        self.error: str | None = None
        self.ended = False
        self.answered = False
        self._server = server
        self._own: subprocess.Popen[bytes] | None = None
        runner = call(server.folder)
        if runner is not None:
            self.wire = runner
            self.hello = self._listen()
            if self.hello.fits(Hello.of_this_process()):
                return
            log.warning(
                "the resident runner in %s is of another version or Python (%s %s): not used. Start it again: "
                "microbatch engine stop; microbatch engine start",
                server.folder, self.hello.package, self.hello.version,
            )  # fmt: skip
            runner.close()
        ours, theirs = socket.socketpair()
        with theirs:
            self._own = subprocess.Popen(
                [sys.executable, "-m", _CHILD, tag, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self.wire = Wire(ours)
        self.hello = self._listen()

    def ask(self, question: Mapping[str, Any], answer: str) -> Any:
        """Send a question, and return the answer of the given name.

        :raises EngineError: with the error that the process sent instead.
        """
        server = self._server
        request = {**question, "url": server.url, "environment": dict(os.environ), "cwd": str(Path.cwd())}
        try:
            self.wire.send(request)
            message = self.wire.receive(seconds=_ANSWER_SECONDS)
        except OSError as error:
            raise EngineError(f"no answer for the server {server.public_url}: {error}.") from error
        if message is None or answer not in message:
            told = (message or {}).get("error", "its client ended without a word; see the log before")
            raise EngineError(
                f"the Spark Connect server {server.public_url} of connection {server.conn_id!r} cannot be used: {told}"
            )
        return message[answer]

    def close(self) -> None:
        """End the conversation, and with it the process."""
        self.ended = True
        self.wire.close()
        if self._own is not None:
            try:
                self._own.wait(timeout=_ANSWER_SECONDS)
            except subprocess.TimeoutExpired:
                self._own.kill()
                self._own.wait()

    def _listen(self) -> Hello:
        message = self.wire.receive(seconds=_ANSWER_SECONDS)
        if message is None:
            self.close()
            raise EngineError("the process of the attempt ended at once; what it said is in the log before this.")
        return Hello(**message)
