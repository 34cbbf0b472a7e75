"""A real Spark standalone cluster on loopback: a master, and workers of one core each."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

SECONDS = 90.0
_PACKAGE = "org.apache.spark.deploy"


class Daemon:
    """One of Spark's own servers; it says in its log where it listens.

    :param log: where its output goes.
    :param arguments: its class and what that takes.
    """

    def __init__(self, log: Path, *arguments: str) -> None:
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
        spark_class = shutil.which("spark-class", path=path)
        if spark_class is None:
            raise RuntimeError("spark-class of pyspark is neither beside this Python nor on PATH")
        self._log = log
        # The workers' executors run on this host, so they get this very Python.
        environment = {**os.environ, "PATH": path, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [spark_class, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
            )

    def said(self, pattern: str) -> str:
        """Wait for a line of the log, and return the pattern's group.

        :raises RuntimeError: if the server ends, or does not say it in time.
        """
        deadline, moment = time.monotonic() + SECONDS, threading.Event()
        while (found := re.search(pattern, self._log.read_text(errors="replace"))) is None:
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"no {pattern!r} in:\n{self._log.read_text(errors='replace')}")
            moment.wait(0.1)
        return found.group(1)

    def stop(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.wait(SECONDS)


@contextmanager
def standalone_cluster(folder: Path, *, workers: int = 2) -> Iterator[str]:
    """A cluster that runs while the context is open.

    :param folder: for its logs and the workers' files; made if missing.
    :return: Spark's master URL.
    :raises RuntimeError: if it does not start.
    """
    folder.mkdir(parents=True, exist_ok=True)
    host = ("--host", "127.0.0.1", "--webui-port", "0")
    with ExitStack() as stack:

        def start(name: str, kind: str, *arguments: str) -> Daemon:
            daemon = Daemon(folder / f"{name}.log", f"{_PACKAGE}.{kind.lower()}.{kind}", *host, *arguments)
            stack.callback(daemon.stop)
            return daemon

        address = start("master", "Master", "--port", "0").said(r"Starting Spark master at (spark://\S+)")
        started = []
        for number in range(workers):
            size = ("--cores", "1", "--memory", "1g", "--work-dir", str(folder / f"work-{number}"))
            started.append(start(f"worker-{number}", "Worker", *size, address))
        for worker in started:
            worker.said(r"(Successfully registered with master)")
        yield address


CLUSTER = bool(os.environ.get("BENCH_CLUSTER"))
"""Whether rows that heed it run on a standalone cluster, in place of ``local[cores]``."""

WHERE = ", standalone cluster" if CLUSTER else ""
"""For the description of such a row: figures of the two are never compared."""


@contextmanager
def spark_master(folder: Path) -> Iterator[str]:
    """Spark's master URL for a row.

    :param folder: for the cluster's files.
    """
    if not CLUSTER:
        yield f"local[{os.cpu_count()}]"
        return
    with standalone_cluster(folder) as master:
        yield master
