"""A server of the tests' own as a process: it says where it listens, and ends with its standard input, which is with
the process that started it, however that dies."""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

TOP = Path(__file__).parents[2]


def serve(server: Any) -> None:
    """Print the port of an HTTP server, and serve until standard input ends."""
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_address[1], flush=True)
    sys.stdin.read()


def started(module: str) -> str:
    """Start a module of the tests that calls :func:`serve`; its port. It is stopped when this process ends, if not
    before."""
    return started_by([sys.executable, "-m", module], told=str.strip)


def started_by(
    command: Sequence[str], *, told: Callable[[str], str], environment: Mapping[str, str] | None = None
) -> str:
    """Start a server that ends with its standard input; what it says of where it listens.

    :param told: what a line of its output says of that; an empty text if nothing.
    :param environment: beside this process's own.
    """
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=TOP,
        env={**os.environ, **(environment or {})},
        text=True,
    )
    assert process.stdout is not None
    found = next(filter(None, map(told, process.stdout)), "")
    assert found, f"{' '.join(command)} did not start"

    def stop() -> None:
        process.kill()
        process.wait()

    only_here(stop)
    return found


def only_here(stop: Callable[[], object]) -> None:
    """Have ``stop`` called when this process ends, and not when a fork of it does."""
    starter = os.getpid()
    atexit.register(lambda: stop() if os.getpid() == starter else None)
