"""The vendor's own client of tunnels, a process of Java, which holds the server of the tests to the protocol."""

from __future__ import annotations

import json
import queue
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.environments import jars
from tests.support.tablestore import INSTANCE, KEY, SECRET, Table, endpoint

_SOURCE = Path(__file__).parent / "java" / "TunnelWorkers.java"
_SECONDS = 60


class TunnelWorkers:
    """Workers of one table.

    :param records: what they got, in the order in which they got it.
    """

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self.records: list[dict[str, Any]] = []
        self._process, self._log = process, log
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    def ask(self, *words: str) -> Any:
        """What the client answers; for a refusal its code."""
        assert self._process.stdin is not None
        print(*words, file=self._process.stdin, flush=True)
        while True:
            said = self._next(_SECONDS)
            if "record" not in said:
                return said.get("answer", said.get("refused"))

    def until(self, whether: Callable[[], bool]) -> None:
        """Wait for what the workers do."""
        deadline = time.monotonic() + _SECONDS
        while not whether():
            assert time.monotonic() < deadline, (self.records, self._log.read_text()[-3000:])
            try:
                self._next(0.1)
            except queue.Empty:
                continue

    def _next(self, seconds: float) -> dict[str, Any]:
        try:
            line = self._lines.get(timeout=seconds)
        except queue.Empty:
            assert self._process.poll() is None, self._log.read_text()[-3000:]
            raise
        said: dict[str, Any] = json.loads(line)
        if "record" in said:
            self.records.append(said["record"])
        return said

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)


@contextmanager
def tunnel_workers(table: Table, folder: Path) -> Iterator[TunnelWorkers]:
    """The client, with no worker at work; it ends with the block."""
    log, classes = folder / "workers.log", ":".join(map(str, jars("tablestore-client")))
    command = ["java", "-Xmx128m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", classes, str(_SOURCE)]
    with (
        log.open("w") as errors,
        subprocess.Popen(
            [*command, endpoint(), INSTANCE, KEY, SECRET, table.name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as process,
    ):
        try:
            yield TunnelWorkers(process, log)
        finally:
            process.kill()
