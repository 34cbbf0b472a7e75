"""The resident runner: a process that has loaded PySpark's client, and forks a child for each attempt.

Loading the client takes about two seconds, a fork a few milliseconds. The runner itself opens no channel and starts no
thread, so that its forks are sound, and runs no user code, so that attempts share nothing.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
import traceback
from pathlib import Path

from airflow_provider_microbatch.engines.spark_connect.child import converse, load
from airflow_provider_microbatch.engines.spark_connect.wire import RUNNER_SOCKET, Wire, is_own


def serve(folder: Path) -> None:
    """Listen for ever on the socket in ``folder``."""
    # The kernel then reaps the children by itself.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    load()
    path = folder / RUNNER_SOCKET
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # A killed runner leaves its socket, and bind refuses a name that exists.
    path.unlink(missing_ok=True)
    listener.bind(str(path))
    listener.listen(64)
    # The collector never looks again at objects that live now, so that children share their memory pages.
    gc.collect()
    gc.freeze()
    while True:
        connection, _ = listener.accept()
        if not is_own(connection):
            connection.close()
            continue
        if os.fork() == 0:
            listener.close()
            _child(connection)
        connection.close()


def _child(connection: socket.socket) -> None:
    status = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        import numpy

        numpy.random.seed()  # otherwise two attempts would draw the same numbers
        status = converse(Wire(connection))
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


if __name__ == "__main__":
    # The second argument is the engine's tag, by which `engine stop` finds this process and its children.
    serve(Path(sys.argv[1]))
