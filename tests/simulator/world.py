"""The world: one seed, one clock, one disk, one cluster, brokers, one Airflow, pipelines, and all who work on them."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from airflow_provider_microbatch.stores import Store
from tests.simulator.airflow import Airflow
from tests.simulator.broker import Broker
from tests.simulator.disk import Disk, DiskStore
from tests.simulator.engine import Cluster
from tests.simulator.processes import Process, Processes
from tests.simulator.shared_disk import SharedDisk
from tests.simulator.stateful import StatefulFiles
from tests.simulator.subject import Options, Subject
from tests.simulator.systems import SYSTEMS
from tests.support.system import System

if TYPE_CHECKING:
    from tests.simulator.promises_of_stages import Owners

BEGINS_MS = 4_000_000_000_000
"""Later than any time that the real file system gives what the sink renames: to the janitor, all of it is old."""

MACHINES = 3


class Broken(AssertionError):
    """A promise was broken.

    :param promise: which, in a few words; a shrunk world breaks the same.
    """

    def __init__(self, promise: str, how: str) -> None:
        super().__init__(f"{promise}: {how}")
        self.promise = promise


class World:
    """:param root: an empty folder.
    :param seed: decides everything.
    :param system: what pipelines live in.
    """

    def __init__(self, root: Path, *, seed: str, system: str) -> None:
        self.root = root
        self.seed = seed
        self.random = random.Random(seed)
        self.make_system: Callable[[Path], System] = SYSTEMS[system]
        self.now_ms = BEGINS_MS
        self.skews = [0] * (MACHINES + 1)
        self.processes = Processes(lambda: self.now_ms)
        keeps_folders = self.random.random() < 0.5
        self.keeps_state = self.make_system is StatefulFiles
        """Whether batches keep state, in folders that tasks and engine share."""
        shared = SharedDisk(root / "disk", keeps_folders=keeps_folders) if self.keeps_state else None
        self.disk = shared or Disk(keeps_folders=keeps_folders)
        self.cluster = Cluster(self)
        self.broker = Broker(self)
        self.airflow = Airflow(self)
        self.subjects: dict[str, Subject] = {}
        self.rows = 0
        self.moves = 0
        """So often has a checkpoint been sent to another place."""
        self.touched = False
        """Whether somebody changed a file, or a table, since the promises were last looked at."""
        self.full: str | None = None
        """The folder that takes nothing, as a disk that is full."""
        self.hooks_fail = False
        self.deaf_hooks: set[str] = set()
        """Hooks that fail for good whenever they are told of an end."""
        self.recorded: set[Any] = set()
        """Tags of all jobs that were ever on record."""
        self.told: dict[Any, list[str]] = {}
        self.owners: dict[str, Owners] = {}
        """By pipeline: whose stages there were."""
        self.lost_answer: str | None = None
        self.story: list[str] = []
        self.counts: Counter[str] = Counter()
        self._locks: dict[int, tuple[Process | None, Any]] = {}
        interval = self.random.random() < 0.2 and self.make_system(root).has_clock
        self.runs_at_once = self.random.choice([1, 1, 2, 3])
        options = Options(
            limit=self.random.choice([None, None, 1, 2]),
            cleans=self.random.random() < 0.4,
            on_failure=self.random.choice(["fail", "set_aside"]),
            retained=self.random.choice([None, None, 2, 3]),
            plan="interval" if interval else "live",
            on_overlap=self.random.choice(["skip", "replay"]),
            lookback=self.random.choice([None, 700.0, 1500.0]) if interval else None,
            slots=self.random.choice([1, 1, 1, 3]),
        )
        if not interval:
            # An interval is over when the clock of the machine says so; what may differ is the user's to allow for.
            self.skews = [self.random.choice([0, 0, -40_000, 40_000]) for _ in self.skews]
        sources = self.random.choice([("orders",), ("orders", "returns")])
        self.add(Subject(self, "sales", sources=sources, options=options, format=self.random.choice(["v1", "v2"])))

    @property
    def system(self) -> System:
        """The first pipeline's."""
        return next(iter(self.subjects.values())).system

    def system_of(self, pipeline: str) -> System:
        """What the pipeline lives in."""
        return self.subjects[pipeline].system

    def add(self, subject: Subject) -> Subject:
        self.subjects[subject.name] = subject
        return subject

    def any_machine(self) -> int:
        """Where the next process runs."""
        return self.random.randrange(MACHINES)

    def machine_ms(self) -> int:
        """The time as the machine of the running process has it."""
        current = self.processes.current
        return self.now_ms + (0 if current is None else self.skews[current.machine])

    def machine_seconds(self) -> float:
        """The same, as :func:`time.time`."""
        return self.machine_ms() / 1000

    def machine_ns(self) -> int:
        """The same, as :func:`time.time_ns`."""
        return self.machine_ms() * 1_000_000

    def uuid(self) -> UUID:
        """The next one of the world."""
        return UUID(int=self.random.getrandbits(128))

    def point(self, what: str) -> None:
        """An operation of the running process comes next."""
        self.processes.point(what)

    def say(self, line: str) -> None:
        """A line of the story."""
        self.story.append(f"{(self.now_ms - BEGINS_MS) / 1000:8.1f} s  {line}")

    def answer_lost(self) -> str | None:
        """If the running process gets no answer to this change of the disk: ``done`` or ``not done``; else None."""
        lost = self.lost_answer
        if lost is None or self.processes.current is None:
            return None
        self.lost_answer = None
        self.say(f"{self.processes.current.name} gets no answer to: {self.processes.current.at} ({lost})")
        return lost

    def open_store(self, location: str) -> Store:
        """As the package's own, for the world's disk."""
        return DiskStore(self, location.removeprefix("/disk/") + "/")

    def flock(self, file: Any, operation: int) -> None:
        """A lock of a file is its holder's until the file is closed, or the holder is dead. Who tries for it without
        waiting would try again: here it gets the lock when it is free, as nobody's patience ends in a world."""
        current = self.processes.current
        inode = os.fstat(file.fileno() if hasattr(file, "fileno") else file).st_ino

        def is_free() -> bool:
            holder, held = self._locks.get(inode, (None, None))
            return holder is None or holder.gone or held.closed

        if current is not None and not is_free():
            self.processes.wait("lock of a file", is_free)
        self._locks[inode] = (current, file)
