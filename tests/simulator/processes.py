"""Processes that take turns: one baton, handed on before every operation on anything that outlives a process.

A process is a greenlet (a thread of one is another). It parks before each operation; whoever holds the baton decides
who goes on. To kill a process is to never hand it the baton again; what it held open is freed, nothing is cleaned up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import greenlet

RUNS, FROZEN, DEAD, ENDED = "runs", "frozen", "dead", "ended"

Body = Callable[[], object]


class WorldOverError(BaseException):
    """The world has ended: thrown into what is parked still, so that its greenlets can be freed."""


@dataclass(eq=False)
class Process:
    """:param name: for people.
    :param machine: number of the machine that it runs on.
    :param on_end: told when the body has ended by itself, not when it is killed.
    """

    name: str
    machine: int
    on_end: Callable[[Process], None] = lambda process: None
    state: str = RUNS
    threads: list[Thread] = field(default_factory=list)
    result: object = None
    error: BaseException | None = None

    @property
    def gone(self) -> bool:
        """Dead or ended."""
        return self.state in (DEAD, ENDED)

    @property
    def at(self) -> str:
        """The operation before which its main thread is parked."""
        return self.threads[0].at if self.threads else "its end"


@dataclass(eq=False)
class Thread:
    """One thread of a process.

    :param at: the operation before which it is parked.
    :param until: what it waits for; None: nothing.
    :param deadline_ms: when it stops waiting; None: never.
    """

    process: Process
    name: str
    run: greenlet.greenlet
    at: str = "its beginning"
    until: Callable[[], bool] | None = None
    deadline_ms: int | None = None
    ended: bool = False


class Processes:
    """All processes of a world.

    :param now_ms: the world's time.
    """

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._hub = greenlet.getcurrent()
        self._running: Thread | None = None
        self._over = False
        self._parked: list[Thread] = []
        self._living: list[Process] = []
        self._broken_down: list[Process] = []
        self.operations = 0

    def spawn(
        self, name: str, body: Body, *, machine: int = 0, on_end: Callable[[Process], None] = lambda process: None
    ) -> Process:
        """A new process, parked at its beginning."""
        process = Process(name=name, machine=machine, on_end=on_end)

        def main() -> None:
            try:
                process.result = body()
            except WorldOverError:
                return
            except BaseException as error:  # judged by who reads the process's error
                process.error = error
                self._broken_down.append(process)
            process.state = ENDED

        self._thread(process, "main", main)
        self._living.append(process)
        return process

    def start_thread(self, name: str, body: Body) -> Thread:
        """A further thread of the running process; it ends with the process."""
        assert self._running is not None, "no process runs"

        def main() -> None:
            try:
                body()
            except WorldOverError:
                return

        return self._thread(self._running.process, name, main)

    def _thread(self, process: Process, name: str, main: Callable[[], None]) -> Thread:
        thread = Thread(process=process, name=name, run=greenlet.greenlet(main, parent=self._hub))
        process.threads.append(thread)
        self._parked.append(thread)
        return thread

    @property
    def current(self) -> Process | None:
        """The process that holds the baton; None: the world itself."""
        return None if self._running is None else self._running.process

    def ready(self, process: Process) -> list[Thread]:
        """Threads of the process that can go on."""
        if process.state != RUNS:
            return []
        return [thread for thread in process.threads if not thread.ended and self._can_go_on(thread)]

    def _can_go_on(self, thread: Thread) -> bool:
        if thread.until is None or thread.until():
            return True
        return thread.deadline_ms is not None and self._now_ms() >= thread.deadline_ms

    def living(self) -> list[Process]:
        """Processes that are neither dead nor ended."""
        self._living = [process for process in self._living if process.state in (RUNS, FROZEN)]
        return list(self._living)

    def broken_down(self) -> list[Process]:
        """Processes whose body has raised."""
        return self._broken_down

    def deadlines(self) -> list[int]:
        """When those that wait for the time go on."""
        waiting = [thread for process in self._living if process.state == RUNS for thread in process.threads]
        return [thread.deadline_ms for thread in waiting if thread.deadline_ms is not None and not thread.ended]

    def go_on(self, thread: Thread) -> None:
        """Hand the baton to the thread until it parks again, or ends."""
        process = thread.process
        self._running, before = thread, self._running
        try:
            thread.run.switch()
        finally:
            self._running = before
        if thread.run.dead:
            thread.ended = True
            self._parked.remove(thread)
            if process.state == ENDED:
                process.on_end(process)

    def point(self, what: str) -> None:
        """Called by a process before an operation: it parks here. The world itself passes."""
        thread = self._running
        if self._over:
            raise WorldOverError
        if thread is None:
            return
        thread.at = what
        self._hub.switch()
        thread.until = thread.deadline_ms = None
        if self._over:
            raise WorldOverError
        self.operations += 1

    def wait(self, what: str, until: Callable[[], bool], *, seconds: float | None = None) -> bool:
        """Park until something is true; False if the time was over first."""
        thread = self._running
        assert thread is not None, f"the world itself would wait for {what}"
        thread.until = until
        thread.deadline_ms = None if seconds is None else self._now_ms() + round(seconds * 1000)
        self.point(what)
        return until()

    def kill(self, process: Process) -> None:
        """The process is gone, as by SIGKILL."""
        if not process.gone:
            process.state = DEAD

    def end(self) -> None:
        """Free what is parked."""
        self._over = True
        for thread in list(self._parked):
            # A greenlet is true between its first switch and its end; one that never began holds nothing.
            while thread.run:
                thread.run.throw(WorldOverError)


class Threading:
    """What the package uses of :mod:`threading`, for threads that take turns.

    :param of: the processes of the world that is played now.
    """

    def __init__(self, of: Callable[[], Processes]) -> None:
        self._of = of

    def Event(self) -> _Event:
        return _Event(self._of())

    def Thread(self, *, target: Body, name: str = "", daemon: bool = False, args: Any = ()) -> _Thread:
        return _Thread(self._of(), lambda: target(*args), name)


class _Event:
    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._is_set = False

    def set(self) -> None:
        self._is_set = True

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, timeout: float | None = None) -> bool:
        return self._processes.wait("time to pass", self.is_set, seconds=timeout)


class _Thread:
    def __init__(self, processes: Processes, body: Body, name: str) -> None:
        self._processes = processes
        self._body = body
        self._name = name
        self._thread: Thread | None = None

    def start(self) -> None:
        self._thread = self._processes.start_thread(self._name, self._body)

    def is_alive(self) -> bool:
        return self._thread is not None and not self._thread.ended

    def join(self, timeout: float | None = None) -> None:
        self._processes.wait(f"the end of {self._name}", lambda: not self.is_alive(), seconds=timeout)
