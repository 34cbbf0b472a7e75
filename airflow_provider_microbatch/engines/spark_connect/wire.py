"""The messages between a task and the process that runs its attempt: one JSON object a line, over a Unix socket.

The process sends the first message: :class:`Hello`. Then the task asks for one of

- ``{"do": "open", …}``: open a session; answered by ``{"ready": …}``. Then ``{"do": "run", …}``: answered by any
  number of ``{"line": text}`` and one ``{"done": true}``.
- ``{"do": "interrupt", …}``: end an attempt's operations and session; answered by ``{"interrupted": n}``.

Any of these may be answered by ``{"error": text}`` instead. The connection belongs to one attempt: when the connection
breaks, the attempt is over.
"""

from __future__ import annotations

import json
import os
import platform
import socket
import struct
import sys
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped,unused-ignore]

import airflow_provider_microbatch
from airflow_provider_microbatch.settings import is_private

RUNNER_SOCKET = "runner.sock"
"""Name of the socket at which a resident runner listens, in the engine's folder."""

SESSION_SECONDS = 600.0
"""Seconds without use after which the local server closes a session, such as that of a client that was killed."""

_CHUNK = 65536


def default_folder() -> Path:
    """The default folder of the engine: the same for a user's shell and for this user's Airflow worker."""
    return Path(tempfile.gettempdir(), f"microbatch-engine-{os.getuid()}")


@dataclass(frozen=True, kw_only=True)
class Hello:
    """The first message: it identifies the process that answers.

    :param python: the process's Python: the environment's folder and the version.
    :param package: folder of this package, as the process has loaded it.
    :param version: version of this package.
    :param pid: id of the process.
    :param started: when the process started, seconds since the epoch: pids are used again.
    """

    python: str
    package: str
    version: str
    pid: int
    started: float

    @classmethod
    def of_this_process(cls) -> Hello:
        """The hello message of this process."""
        return cls(
            python=f"{sys.prefix} {platform.python_version()}",
            package=str(Path(airflow_provider_microbatch.__file__).parent),
            version=airflow_provider_microbatch.__version__,
            pid=os.getpid(),
            started=psutil.Process().create_time(),
        )

    def fits(self, other: Hello) -> bool:
        """Whether one process may run the other's jobs: the same code under the same Python."""
        return (self.python, self.package, self.version) == (other.python, other.package, other.version)

    def to_dict(self) -> dict[str, Any]:
        """The message as JSON values."""
        return asdict(self)


class Wire:
    """One end of a conversation. Any thread may send; only one may receive.

    :param end: a connected stream socket; closed together with this object.
    """

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._rest = b""
        self._sending = threading.Lock()

    def send(self, message: Mapping[str, Any]) -> None:
        """:raises OSError: if the other end has gone."""
        with self._sending:
            self._socket.sendall(json.dumps(message).encode() + b"\n")

    def receive(self, *, seconds: float | None = None) -> dict[str, Any] | None:
        """The next message; None when the other end has gone.

        :param seconds: how long to wait for the message; None waits for ever.
        :raises TimeoutError: if no message came in time.
        """
        self._socket.settimeout(seconds)
        try:
            while b"\n" not in self._rest:
                chunk = self._socket.recv(_CHUNK)
                if not chunk:
                    return None
                self._rest += chunk
        except ConnectionError:
            return None
        finally:
            self._socket.settimeout(None)
        line, _, self._rest = self._rest.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message

    def close(self) -> None:
        """End the conversation: the other end receives None."""
        self._socket.close()


def is_own(end: socket.socket) -> bool:
    """Whether the other end of a Unix socket is a process of this user, as the kernel says."""
    if not hasattr(socket, "SO_PEERCRED"):
        return True  # the mode of the folder must suffice
    _, uid, _ = struct.unpack("3i", end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return bool(uid == os.getuid())


def call(folder: Path) -> Wire | None:
    """Connect to the resident runner of the engine in ``folder``; None if there is no runner that this user may trust:
    a message to the runner may hold a token."""
    if not is_private(folder):
        return None
    end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        end.connect(str(folder / RUNNER_SOCKET))
    except OSError:
        end.close()
        return None
    if not is_own(end):
        end.close()
        return None
    return Wire(end)
