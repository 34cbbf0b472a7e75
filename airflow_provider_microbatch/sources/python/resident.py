"""Planners that stay: a process with PySpark costs a second to start, a question to one that runs some milliseconds.

One planner of a data source serves all who ask in this process, one after the other. It ends when nobody has held it
for a while, and with this process in any case.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import airflow_provider_microbatch
from airflow_provider_microbatch.exceptions import SourceError

IDLE_SECONDS = 120.0
"""So long a planner waits for somebody: a sensor looks again before."""

_STOP_SECONDS = 1.0
"""A task that is told to stop has five: what is at the user's code still is killed then."""

_ROOT = Path(airflow_provider_microbatch.__file__).parent.parent
_MODULE = "airflow_provider_microbatch.runtime.planner"


class Planner:
    """A process that plans for one data source.

    :param opening: what it is told first, as JSON values.
    :param python: its interpreter.
    """

    def __init__(self, opening: Mapping[str, Any], *, python: str = sys.executable) -> None:
        self._opening = opening
        self._python = python
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None

    @property
    def pid(self) -> int | None:
        """Of the process; None if there is none yet, or none any more."""
        return None if self._process is None or self._process.poll() is not None else self._process.pid

    def ask(self, do: str, **question: Any) -> Any:
        """The answer to one question. A planner that has ended is started again.

        :raises SourceError: with what the user's code raised, or if the process cannot be asked.
        """
        with self._lock:
            try:
                told = self._exchange({"do": do, **question})
            except BaseException as error:
                # Interrupted between question and answer: the answer would be taken for that of the next question.
                self._end()
                if isinstance(error, (OSError, ValueError, subprocess.TimeoutExpired)):
                    raise SourceError(f"the process that plans cannot be asked for {do}: {error}") from error
                raise
        if "error" in told:
            raised = SourceError(f"{do} raised {told['error']}")
            raised.add_note(told["traceback"])
            raise raised
        return told["answer"]

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self._end()

    def _exchange(self, question: Mapping[str, Any]) -> Mapping[str, Any]:
        process = self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{json.dumps(question)}\n")
        process.stdin.flush()
        line = process.stdout.readline()
        if not line.endswith("\n"):
            status = process.wait(_STOP_SECONDS)
            raise OSError(f"it ended with status {status}; what it printed stands in this process's log")
        told: dict[str, Any] = json.loads(line)
        return told

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None or self._process.poll() is not None:
            # Beside what is on the path already: PySpark may be another environment's.
            path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH", "")]))
            self._process = subprocess.Popen(
                [self._python, "-m", _MODULE],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                encoding="utf-8",
                env={**os.environ, "PYTHONPATH": path},
            )
            assert self._process.stdin is not None
            self._process.stdin.write(f"{json.dumps(self._opening)}\n")
        return self._process

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                try:
                    stream.close()
                except OSError:
                    continue  # it has gone, and the line that it was not told with it
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class Residents:
    """The planners of this process, by what they plan for.

    :param idle_seconds: how long one stays that nobody holds.
    """

    def __init__(self, *, idle_seconds: float = IDLE_SECONDS) -> None:
        self._idle_seconds = idle_seconds
        self._lock = threading.Lock()
        self._planners: dict[str, Planner] = {}
        self._holders: dict[str, int] = {}
        self._timers: dict[str, threading.Timer] = {}

    def hold(self, opening: Mapping[str, Any]) -> tuple[Planner, Callable[[], None]]:
        """The planner, and what lets it go again; to be called once."""
        # A fork has its parent's planners, and must not speak into their conversations.
        key = f"{os.getpid()} {json.dumps(opening, sort_keys=True)}"
        with self._lock:
            timer = self._timers.pop(key, None)
            if timer is not None:
                timer.cancel()
            planner = self._planners.setdefault(key, Planner(opening))
            self._holders[key] = self._holders.get(key, 0) + 1
        return planner, lambda: self._let_go(key)

    def _let_go(self, key: str) -> None:
        with self._lock:
            self._holders[key] -= 1
            if not self._holders[key] and key not in self._timers:
                timer = self._timers[key] = threading.Timer(self._idle_seconds, self._drop, [key])
                timer.daemon = True
                timer.start()

    def _drop(self, key: str) -> None:
        with self._lock:
            if self._timers.pop(key, None) is None or self._holders.get(key):
                return  # somebody came in between
            planner = self._planners.pop(key)
            del self._holders[key]
        planner.close()


RESIDENTS = Residents()
