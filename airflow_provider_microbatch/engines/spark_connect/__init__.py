"""The engine that runs each attempt against a warm Spark Connect server.

An attempt does not run in the task's own process: PySpark's client takes two seconds to import, keeps the modules of
the user's code, and its threads outlive a cancel. A resident runner on this machine forks a process for the attempt, in
milliseconds; without a runner, the task starts a process. Either ends with the task, and can be killed alone.
"""

from __future__ import annotations

import logging
import shutil
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped,unused-ignore]

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.engines import packaging, processes
from airflow_provider_microbatch.engines.environment import check_versions
from airflow_provider_microbatch.engines.handles import ConnectHandle, readable
from airflow_provider_microbatch.engines.lookup import Wanted
from airflow_provider_microbatch.engines.spark_connect.launch import Launch, NobodyListensError, Server
from airflow_provider_microbatch.exceptions import EngineError, HandleError
from airflow_provider_microbatch.execution.engine import Code, EngineState, Handle
from airflow_provider_microbatch.runtime.job import Job

log = logging.getLogger(__name__)

NAME = "spark-connect"


class SparkConnectEngine:
    """Runs each job in a session of its own on a Spark Connect server.

    :param conn_id: Airflow connection of type ``spark_connect``.
    :param conf: Spark settings of the session.
    :param grace_seconds: seconds that a cancelled attempt's process may take to end by itself before it is killed.
    """

    name = NAME

    def __init__(
        self,
        *,
        conn_id: str = "spark_connect_default",
        conf: Mapping[str, Any] | None = None,
        grace_seconds: float = 5.0,
    ) -> None:
        self._conn_id = conn_id
        self._conf = {key: str(value) for key, value in (conf or {}).items()}
        self._grace = grace_seconds
        self._servers: dict[str, Server] = {}
        self._launches: dict[str, Launch] = {}

    @classmethod
    def of_connection(cls, wanted: Wanted) -> SparkConnectEngine:
        """The engine for a connection. Its server runs already, so arguments on how to start Spark are ignored."""
        ignored = sorted(name for name, value in wanted.arguments.items() if value)
        if ignored:
            log.warning(
                "connection %r is a running Spark Connect server: not used: %s", wanted.conn_id, ", ".join(ignored)
            )
        return cls(conn_id=wanted.conn_id, conf=wanted.conf, grace_seconds=processes.STOP_SECONDS)

    def check(self) -> None:
        """Look whether the server answers. Starts nothing.

        :raises EngineError: if the connection is missing, or the server is down.
        :raises EnvironmentMismatchError: if pyspark and pyspark-client differ.
        """
        check_versions()
        self._server(self._conn_id).check()

    def handle(self, *, pipeline: str, key: BatchKey, epoch: int) -> Handle:
        """Choose the handle, and make the process and the session of the attempt ready, so that an unusable server is
        found before the attempt is recorded.

        :raises EngineError: if the connection is missing, the server is down, or the server has another Spark version.
        :raises EnvironmentMismatchError: if pyspark and pyspark-client differ.
        """
        self.check()
        server = self._server(self._conn_id)
        tag = processes.new_tag()
        launch = Launch(server, tag)
        try:
            ready = launch.ask({"do": "open", "tag": tag, "conf": self._conf}, "ready")
            check_version(server.public_url, theirs=ready["server"], ours=ready["client"])
            made = {
                "engine": self.name,
                "host": socket.gethostname(),
                "url": server.public_url,
                "conn_id": self._conn_id,
                "user": server.user,
                "session": ready["session"],
                "session_is_own": True,
                "tag": tag,
                "pid": launch.hello.pid,
                "started": launch.hello.started,
                "application": f"{pipeline} batch {key} attempt {epoch}",
            }
            handle = readable(made, of=ConnectHandle, conn_id=self._conn_id)
        except BaseException:
            launch.close()
            raise
        self._launches[tag] = launch
        return handle

    def start(self, handle: Handle, job: Job, code: Code) -> None:
        launch = self._launches.get(handle["tag"])
        if launch is None:
            raise EngineError(f"{handle['application']} has no process: its handle was chosen by another one.")
        folder = packaging.folder_of(handle["tag"])
        if needed := (*job.requires.packages, *job.requires.jars):
            log.info("%s needs %s: the server has to have been started with them", handle["url"], ", ".join(needed))
        try:
            # A copy, because a deploy may change the bundle's folder while the attempt runs.
            folder.mkdir(mode=0o700)
            packaging.record_process(handle["tag"], pid=launch.hello.pid, started=launch.hello.started)
            files = [Path(shutil.copyfile(path, folder / Path(path).name)) for path in code.files]
            files += packaging.module_files(job.requires.modules, folder)
            if job.requires.modules:
                files.append(packaging.zip_runtime(folder))  # which the server may not have
            named = [str(path) for path in files]
            # Only this user can open the socket, and nothing that is sent through it is stored.
            launch.wire.send({"do": "run", "job": job.to_json(), "files": named, "secrets": dict(code.secrets)})
        except OSError as error:
            launch.close()
            packaging.unpack(handle["tag"])
            raise EngineError(f"{handle['application']} could not be started: {error}.") from error

    def result(self, handle: Handle) -> None:
        launch = self._launches.get(handle["tag"])
        if launch is None:
            raise EngineError(f"{handle['application']} was not started by this process, so it cannot be waited for.")
        try:
            while (message := launch.wire.receive()) is not None and "line" in message:
                log.info("%s", message["line"])
            if message is None:
                launch.error = "its process was ended"
            else:
                launch.answered = True
                launch.error = message.get("error")
        except OSError as error:
            launch.error = f"its process cannot be heard any more: {error}"
        finally:
            launch.close()
            packaging.unpack(handle["tag"])
        if launch.error is not None:
            raise EngineError(f"{handle['application']} failed on {handle['url']}: {launch.error}")

    def poll(self, handle: Handle) -> EngineState:
        """The state of an attempt, from its process on this host: a Spark Connect server does not say which operations
        run under a tag. When the process is gone, or is on another host, the state of its operations is unknown."""
        checked = ConnectHandle.of(handle, engine=self.name)
        launch = self._launches.get(checked.tag)
        if launch is not None and launch.ended:
            return EngineState.SUCCEEDED if launch.error is None else EngineState.FAILED
        return EngineState.RUNNING if self._process(checked) else EngineState.UNKNOWN

    def cancel(self, handle: Handle) -> bool:
        """End the attempt's process, if it is on this host, then its operations on the server, and its session: a
        process on another host, which cannot be ended from here, then starts no further operation.

        :raises HandleError: if ``handle`` is no handle of this engine, or names a server other than the one of its
            connection. Such a server is not contacted.
        :raises EngineError: if the server cannot be asked: it is then unknown which operations still run.
        """
        checked = ConnectHandle.of(handle, engine=self.name)
        launch = self._launches.get(checked.tag)
        if launch is not None and launch.ended and launch.error is None:
            return False
        process = self._process(checked)
        if process is not None and not processes.end(_family(process), grace=self._grace):
            raise EngineError(f"process {process.pid} of {checked.application} would not end.")
        if _is_here(checked):
            packaging.unpack(checked.tag)
        interrupted = self._interrupt(checked)
        if interrupted or process is not None:
            log.info("Stopped %s (%s): %s operations were running", checked.application, checked.tag, interrupted)
        return bool(interrupted) or process is not None

    def _process(self, handle: ConnectHandle) -> psutil.Process | None:
        """The attempt's process, if it is on this host and runs. By start time alone, a checkpoint could name any
        process of this user; so the process must carry the tag, or this user's own files must say that the process runs
        the attempt."""
        process = processes.running(pid=handle.pid, started=handle.started) if _is_here(handle) else None
        if process is None:
            return None
        launch = self._launches.get(handle.tag)
        own = launch is not None and launch.hello.pid == handle.pid
        if own or processes.carries(process, handle.tag):
            return process
        return process if packaging.is_recorded(handle.tag, pid=handle.pid, started=handle.started) else None

    def _interrupt(self, handle: ConnectHandle) -> int:
        server: Server | None = None
        try:
            server = self._server(handle.conn_id)
            why = f"connection {handle.conn_id!r} leads to {server.public_url} now"
        except EngineError as error:
            why = str(error)
        if server is None or server.public_url != handle.url:
            if Server.is_gone(handle.url) and _is_here(handle):
                return 0
            # The server is sent this process's credentials, so a checkpoint must not choose the server.
            raise HandleError(
                f"{handle.application} ran on {handle.url}, which was not acted on: {why}. What still runs there is "
                "fenced and cannot publish; end it there."
            )
        try:
            server.check()
        except NobodyListensError:
            if server.is_local and _is_here(handle):
                return 0
            raise
        known = self._launches.get(handle.tag)
        question = {"session": handle.session, "user": handle.user, "tag": handle.tag, "is_own": handle.session_is_own}
        question["sweep"] = known is None or not known.answered
        launch = Launch(server, f"{handle.tag}-cancel")
        try:
            return int(launch.ask({"do": "interrupt", **question}, "interrupted"))
        finally:
            launch.close()

    def _server(self, conn_id: str) -> Server:
        """The connection's server. It is resolved once: a signal handler that cancels must not talk to the task's
        supervisor, because the interrupted code may be talking to the supervisor."""
        if conn_id not in self._servers:
            self._servers[conn_id] = Server.of(conn_id)
        return self._servers[conn_id]


def check_version(url: str, *, theirs: str, ours: str) -> None:
    """:raises EngineError: if the server's Spark is of another minor version than the client's."""
    if theirs.split(".")[:2] != ours.split(".")[:2]:
        raise EngineError(
            f"the Spark Connect server {url} runs Spark {theirs}, but this environment has pyspark {ours}. Install the "
            f"server's version here (pip install 'pyspark=={theirs}' 'pyspark-client=={theirs}'), or use a server of "
            f"Spark {ours}."
        )


def _is_here(handle: ConnectHandle) -> bool:
    return handle.host == socket.gethostname()


def _family(process: psutil.Process) -> list[psutil.Process]:
    try:
        return [process, *process.children(recursive=True)]
    except psutil.Error:
        return [process]
