"""Planner processes that stay alive: starting one with PySpark takes a second, asking a running one some milliseconds.

One planner of a data source serves all callers in this process, one after the other. The planner ends when it has not
been held for a while, at once if the user's code is at a question that nobody holds it for any more, and at the latest
with this process. No question is waited for without end: all who ask later wait behind it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import airflow_provider_microbatch
from airflow_provider_microbatch.exceptions import SourceError

IDLE_SECONDS = 120.0
"""The time for which a planner waits for a caller: a sensor looks again before that."""

ANSWER_SECONDS = 3600.0
"""The time for an answer: longer than any reader takes to say where its stream stands, for which it may have to read.
One without a timeout, whose server has lost its request, would never give one."""

_STOP_SECONDS = 1.0
"""The time for the user's code to finish before it is killed: a task that is told to stop has five seconds."""

_ROOT = Path(airflow_provider_microbatch.__file__).parent.parent
_MODULE = "airflow_provider_microbatch.runtime.planner"


class Planner:
    """A process that plans for one data source.

    :param opening: the first message to the process, as JSON values.
    :param python: the interpreter of the process.
    """

    def __init__(self, opening: Mapping[str, Any], *, python: str = sys.executable) -> None:
        self._opening = opening
        self._python = python
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._given_up = False

    @property
    def pid(self) -> int | None:
        """Id of the process; None if it has not been started, or has ended."""
        return None if self._process is None or self._process.poll() is not None else self._process.pid

    def ask(self, do: str, **question: Any) -> Any:
        """Return the answer to one question. A planner process that has ended is started again.

        :raises SourceError: with the error of the user's code, or if the process cannot be asked.
        """
        with self._lock:
            try:
                told = self._exchange({"do": do, **question})
            except BaseException as error:
                # After an interruption between question and answer, the next question would get the answer to this one.
                self._end()
                if isinstance(error, (OSError, ValueError, subprocess.TimeoutExpired)):
                    raise SourceError(f"the process that plans cannot be asked for {do}: {error}") from error
                raise
        if "error" in told:
            raised = SourceError(f"{do} raised {told['error']}")
            raised.add_note(told["traceback"])
            raise raised
        return told["answer"]

    @property
    def is_asked(self) -> bool:
        """Whether an answer is being waited for."""
        return self._lock.locked()

    def give_up(self) -> None:
        """End the process whatever it is at, as nobody wants the answer. Whoever waits for it, or to ask the next
        question, gets an error, at once."""
        self._given_up = True
        process = self._process
        if process is not None:
            process.kill()

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self._end()

    def _exchange(self, question: Mapping[str, Any]) -> Mapping[str, Any]:
        self._check_wanted()
        process = self._running()
        self._check_wanted()  # who has given it up since may have seen no process to end
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{json.dumps(question)}\n")
        process.stdin.flush()
        if not wait([process.stdout], ANSWER_SECONDS):  # type: ignore[list-item]  # anything with fileno(), as it says
            raise TimeoutError(f"the reader gave no answer for {ANSWER_SECONDS / 60:.0f} minutes, and was ended")
        line = process.stdout.readline()
        if not line.endswith("\n"):
            status = process.wait(_STOP_SECONDS)
            raise OSError(f"it ended with status {status}; what it printed stands in this process's log")
        told: dict[str, Any] = json.loads(line)
        return told

    def _check_wanted(self) -> None:
        if self._given_up:
            raise OSError("nobody waits for the answer any more")

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None or self._process.poll() is not None:
            # In addition to the present path: PySpark may be in another environment.
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
                    continue  # the process has gone, and the unsent line with it
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class Residents:
    """The planners of this process, by their opening messages.

    :param idle_seconds: how long a planner stays that no caller holds.
    """

    def __init__(self, *, idle_seconds: float = IDLE_SECONDS) -> None:
        self._idle_seconds = idle_seconds
        self._lock = threading.Lock()
        self._planners: dict[str, Planner] = {}
        self._holders: dict[str, int] = {}
        self._timers: dict[str, threading.Timer] = {}

    def hold(self, opening: Mapping[str, Any]) -> tuple[Planner, Callable[[], None]]:
        """Return the planner, and a function that releases it; the function must be called once."""
        # A fork inherits its parent's planners, and must not interfere with their conversations.
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
            if self._holders[key] or key in self._timers:
                return
            planner = self._planners[key]
            if planner.is_asked:
                # By a cancelled look, in a thread that nothing else ends: it would keep all later ones waiting.
                planner.give_up()
                del self._planners[key], self._holders[key]
                return
            timer = self._timers[key] = threading.Timer(self._idle_seconds, self._drop, [key])
            timer.daemon = True
            timer.start()

    def _drop(self, key: str) -> None:
        with self._lock:
            if self._timers.pop(key, None) is None or self._holders.get(key):
                return  # a caller has come in between
            planner = self._planners.pop(key)
            del self._holders[key]
        planner.close()


RESIDENTS = Residents()
