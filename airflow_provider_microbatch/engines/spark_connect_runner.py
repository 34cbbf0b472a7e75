"""The resident runner: a process that has PySpark's client loaded, and forks a child for each attempt.

Loading it takes about two seconds, a fork a few milliseconds. The runner itself opens no channel and starts no thread,
so that its forks are sound, and runs no user code, so that attempts share nothing.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import socket
import sys
import time
import traceback
from pathlib import Path

from airflow_provider_microbatch.engines.spark_connect_child import converse, load
from airflow_provider_microbatch.engines.spark_connect_wire import RUNNER_SOCKET, SESSION_SECONDS, Wire

_ID_BYTES = 36


class Sessions:
    """Which sessions the children have used lately: each child writes the id of its session into a pipe."""

    def __init__(self) -> None:
        self._used: dict[str, float] = {}
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)

    def note(self, session: str) -> None:
        """Called by a child."""
        os.write(self._write, session.encode())

    def count(self) -> int:
        """How many were used in the last :data:`SESSION_SECONDS`."""
        now = time.monotonic()
        with contextlib.suppress(BlockingIOError):
            while found := os.read(self._read, _ID_BYTES):
                self._used[found.decode()] = now
        self._used = {session: at for session, at in self._used.items() if now - at < SESSION_SECONDS}
        return len(self._used)


def serve(folder: Path) -> None:
    """Listen in ``folder`` for ever."""
    # The kernel then takes the children away by itself.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    load()
    path = folder / RUNNER_SOCKET
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # In place of one that a killed runner left: bind refuses a name that is taken.
    path.unlink(missing_ok=True)
    listener.bind(str(path))
    listener.listen(64)
    sessions = Sessions()
    # What lives now is never looked at by the collector again, so that children share these pages.
    gc.collect()
    gc.freeze()
    while True:
        connection, _ = listener.accept()
        count = sessions.count()
        if os.fork() == 0:
            listener.close()
            _child(connection, sessions, count)
        connection.close()


def _child(connection: socket.socket, sessions: Sessions, count: int) -> None:
    status = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        import numpy

        numpy.random.seed()  # two attempts would draw the same numbers
        status = converse(Wire(connection), sessions=count, note=sessions.note)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


if __name__ == "__main__":
    # The second argument is the engine's tag, by which whoever stops it finds this process and its children.
    serve(Path(sys.argv[1]))
