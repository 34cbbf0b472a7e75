"""One world: a pipeline, task runs that are killed, retried, cleared and doubled, and data that lands meanwhile."""

from __future__ import annotations

import contextlib
import random
import signal
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import psutil

from airflow_provider_microbatch.engines import processes
from tests.chaos.checks import check
from tests.chaos.points import FIRST_RUN, JANITOR, REPLAY_RUN, SLEEPS, SPLIT_WISE_RUN
from tests.chaos.setting import Setting
from tests.chaos.signals import KILLS, record
from tests.chaos.tally import Tally
from tests.chaos.task import Task
from tests.support.systems import DEFAULT

ENGINE_POINTS = ("begin", "half", "before the manifest", "after the manifest")
VICTIMS = ("engine", "task", "both")
EXPECTED = {
    "AttemptFencedError",
    "ConcurrentPlanError",
    "EngineError",
    "PublishConflictError",
    "SinkError",
}
"""How a try may end when an engine was killed under it or another try was beside it."""
PATIENCE = 60.0
QUIET_TRIES = 6
LEASE_SECONDS = 0.5


class World:
    """:param root: an empty folder.
    :param seed: decides everything but the moments at which the kernel runs whom.
    :param system: what the pipeline lives in, by its name in :mod:`tests.support.systems`.
    """

    engine_points: ClassVar[Sequence[str]] = ENGINE_POINTS
    victims: ClassVar[Sequence[str]] = VICTIMS
    faults: ClassVar[Sequence[str]] = ("point", "point", "engine", "random", "sleep", "beside")
    moments: ClassVar[float] = 0.2
    """Within so many seconds of its start a process is killed at a random moment."""
    patience: ClassVar[float] = PATIENCE
    rest_seconds: ClassVar[float] = 5.0
    """How long an orphan of the engine may take to end by itself."""

    def __init__(self, root: Path, *, seed: str, system: str = DEFAULT) -> None:
        self.root = root
        self.seed = seed
        self.random = random.Random(seed)
        self.tally = Tally()
        self.landed = 0
        self.newest: dict[int, int] = {}
        self.attempts: Counter[int] = Counter()
        self.asleep: list[Task] = []
        self.awake: list[Task] = []
        self.doubled = False
        self.given_up = False
        self.setting = self.chosen(system)

    def chosen(self, system: str) -> Setting:
        """What lies in the world."""
        return Setting(
            root=str(self.root),
            system=system,
            sources=self.random.choice([("orders",), ("orders", "returns")]),
            format=self.random.choice(["v1", "v2"]),
            max_files=self.random.choice([None, 2]),
            archive=self.random.random() < 0.5,
            lease_seconds=LEASE_SECONDS,
        )

    def play(self, *, runs: int) -> Tally:
        """Live through ``runs`` task runs, let everything come to rest, and check."""
        self.setting.save()
        clears: Counter[int] = Counter()
        batches: dict[int, int] = {}
        version = 0
        for number in range(runs):
            self.land()
            # A run that has no retries left leaves its batch to the next one.
            batch = self.task_run(number, clear=clears[number], version=0, patient=self.random.random() < 0.7)
            if batch is not None:
                batches[number] = batch
            # In each world one run is cleared at least: what is drawn depends on how quick the machine is.
            is_last_chance = number == runs - 1 and not self.tally.counts["replays"]
            is_drawn = self.random.random() < 0.4 or is_last_chance
            cleared = self.to_be_cleared(batches) if batches and is_drawn else None
            if cleared is not None:
                # Now and then the run is cleared again while its replay is in the middle.
                for again in range(self.random.choice([0, 0, 1]), -1, -1):
                    clears[cleared] += 1
                    version += 1
                    self.tally.counts["replays"] += 1
                    replayed = self.task_run(cleared, clear=clears[cleared], version=version, patient=not again)
                    if replayed is not None:
                        self.newest[replayed] = version
            self.run_janitor()
        self.come_to_rest()
        self.land_last()
        for number in range(runs, runs + self.landed + 2):
            if self.task_run(number, clear=0, version=0, quiet=True) is None:
                break
        self.clean_up()
        # What an attempt seemed to be reading until the janitor gave it up is left to the sources' next commit.
        self.task_run(runs + self.landed + 2, clear=0, version=0, quiet=True)
        self.check()
        self.tally.counts["worlds"] += 1
        kills = self.root / KILLS
        self.tally.kills.update(kills.read_text().splitlines() if kills.exists() else [])
        self.tally.failures = [f"world {self.seed}: {failure}" for failure in self.tally.failures]
        return self.tally

    def to_be_cleared(self, batches: dict[int, int]) -> int | None:
        """One of the runs, or none. A zombie is most dangerous to a replay of its own run."""
        drowsy = sorted({int(task.order["number"]) for task in self.asleep} & batches.keys())
        return self.random.choice(drowsy or sorted(batches))

    def land_last(self) -> None:
        """What lands when everything has come to rest: nothing."""

    def check(self) -> None:
        """Count what is wrong in the end."""
        check(self.setting, landed=self.landed, newest=self.newest, tally=self.tally)

    def land(self) -> None:
        """One to three files, each renamed into place when it is whole."""
        for _ in range(self.random.randint(1, 3)):
            rows = range(self.landed, self.landed + self.random.randint(1, 4))
            self.landed = rows.stop
            self.setting.land(self.random.choice(self.setting.sources), rows)

    def task_run(
        self, number: int, *, clear: int, version: int, quiet: bool = False, patient: bool = True
    ) -> int | None:
        """Try until a try succeeds, as Airflow does; the batch it was at, None if there was nothing to do.

        :param patient: False: give up when the kills are over, whether or not it has succeeded.
        """
        faults = 0 if quiet else self.random.randint(0 if patient else 1, 4)
        self.doubled = bool(self.asleep or self.awake or self.engines())
        count, deadline = 0, time.monotonic() + self.patience
        while count < faults + QUIET_TRIES * patient and time.monotonic() < deadline:
            ended = self.one_try(number, clear=clear, version=version, faulty=count < faults)
            self.stir(quiet=quiet)
            for result in ended:
                if result["outcome"] == "committed":
                    # A cleared run does another batch than the one that was given up.
                    self.given_up = self.given_up and clear > 0
                    self.look_for_orphans(number)
                    return int(result["batch"])
                if result["outcome"] == "nothing" or self.is_refused(result):
                    return None
            # A batch that a dead run has held is not free before its lease has run out.
            waits = [result for result in ended if result.get("type") == "BatchInProgressError"]
            count += not waits
            time.sleep(0.1 if waits else 0.0)
        if patient:
            self.tally.blame("wrong states", 1, f"run {number} clear {clear} does not end")
        self.given_up = True
        self.tally.counts["runs given up"] += 1
        return None

    def is_refused(self, result: dict[str, Any]) -> bool:
        """Whether a clear was refused that would have been right when it was chosen."""
        return False

    def run_janitor(self) -> None:
        """Beside whatever is alive; most of them die at it. After a run that was given up there is something to do."""
        if self.given_up and self.random.random() < 0.8:
            self.wait_for_leases()
            for point in self.random.sample(JANITOR, 3):
                self.wait_for_janitor(point)
        elif self.random.random() < 0.5:
            self.wait_for_janitor(self.random.choice([None, *JANITOR]))

    def wait_for_janitor(self, point: str | None) -> None:
        self.tally.counts["janitors"] += 1
        report = self.root / f"janitor-{self.tally.counts['janitors']}.json"
        for result in self.wait(self.task({"root": str(self.root), "point": point}, report), expected=False):
            self.tally.blame("wrong states", len(result.get("failed", [])), f"a janitor failed: {result}")
            self.tally.counts["stages dropped by a janitor"] += result.get("dropped", 0)

    def one_try(self, number: int, *, clear: int, version: int, faulty: bool) -> list[dict[str, Any]]:
        """One try, or two at once; how those ended that were not killed."""
        order = {"root": str(self.root), "number": number, "clear": clear, "version": version}
        if not faulty:
            return self.wait(self.start(order), expected=bool(self.asleep or self.awake))
        kind = self.random.choice(self.faults)
        points = [*(REPLAY_RUN if clear else FIRST_RUN), *(SPLIT_WISE_RUN if self.setting.split_wise else ())]
        if kind == "point":
            return self.wait(self.start(order, point=self.random.choice(points)), expected=True)
        if kind == "engine":
            fault = {"point": self.random.choice(self.engine_points), "victim": self.random.choice(self.victims)}
            return self.wait(self.start(order, engine=fault), expected=True)
        if kind == "random":
            return self.kill_at_a_random_moment(order)
        if kind == "sleep":
            return self.fall_asleep(order)
        self.doubled = True
        first = self.start(order, point=self.random.choice([None, *points]))
        time.sleep(self.random.uniform(0, 0.1))
        second = self.start(order, point=self.random.choice([None, None, *points]))
        return [*self.wait(first, expected=True), *self.wait(second, expected=True)]

    def start(
        self,
        order: dict[str, Any],
        *,
        point: str | None = None,
        action: str = "kill",
        engine: dict[str, Any] | None = None,
    ) -> Task:
        self.tally.counts["tries"] += 1
        self.attempts[order["number"]] += 1
        # An orphan lives long enough to be in the way of the tries that follow.
        pace = self.random.uniform(0.2, 1.0) if engine else self.random.choice([0.0, 0.0, 0.1])
        fault = {"point": None, "victim": "engine", "pace": pace, **(engine or {})}
        full = {**order, "attempt": self.attempts[order["number"]], "point": point, "action": action, "engine": fault}
        return self.task(full, self.root / f"try-{self.tally.counts['tries']}.json")

    def task(self, order: dict[str, Any], report: Path) -> Task:
        """The process that does it."""
        return Task(order, report=report)

    def wait(self, process: Task, *, expected: bool) -> list[dict[str, Any]]:
        """How the process ended; nothing if it was killed.

        :param expected: whether it may end with one of the errors of a try that was disturbed.
        """
        if not process.wait(self.patience):
            process.signal(signal.SIGKILL)
            process.wait(self.patience)
            self.tally.blame("wrong states", 1, "a task process hung")
            return []
        result = process.result()
        if result is None:
            self.tally.blame("wrong states", not process.killed, "a task process ended without a word")
            return []
        if result["outcome"] == "broken":
            self.tally.blame("wrong states", 1, f"a task process broke down: {result['message'][-1500:]}")
        elif result["outcome"] == "error":
            waits = self.given_up and result["type"] == "BatchInProgressError"
            fine = waits or self.is_refused(result) or (expected and result["type"] in EXPECTED)
            self.tally.blame("wrong states", not fine, f"{result['type']}: {result['message'][:500]}")
        return [result]

    def kill_at_a_random_moment(self, order: dict[str, Any]) -> list[dict[str, Any]]:
        process = self.start(order)
        victim = self.random.choice(("task", "engine"))
        if self.random.random() < 0.3:
            self.land()
        time.sleep(self.random.uniform(0.0, self.moments))
        if victim == "task" and not process.ended:
            record(self.root, "task at a random moment")
            process.signal(signal.SIGKILL)
        elif victim == "engine":
            engines = self.engines()
            for engine in engines:
                with contextlib.suppress(psutil.NoSuchProcess):
                    engine.kill()
            if engines:
                record(self.root, "engine at a random moment")
        return self.wait(process, expected=True)

    def fall_asleep(self, order: dict[str, Any]) -> list[dict[str, Any]]:
        """A try that stops at a point, to wake up as a zombie beside a later one."""
        process = self.start(order, point=self.random.choice(SLEEPS), action="stop")
        while not process.ended:
            if process.asleep:
                self.tally.counts["zombies"] += 1
                self.asleep.append(process)
                self.doubled = True
                self.land()
                return []
            time.sleep(0.003)
        return self.wait(process, expected=True)

    def stir(self, *, quiet: bool) -> None:
        """Now and then a zombie wakes up, or is killed in its sleep."""
        if quiet or not self.asleep or self.random.random() < 0.75:
            return
        process = self.asleep.pop(self.random.randrange(len(self.asleep)))
        if self.random.random() < 0.3:
            record(self.root, "zombie asleep")
            process.signal(signal.SIGKILL)
        process.signal(signal.SIGCONT)
        self.awake.append(process)
        if self.random.random() < 0.5:
            self.wait_for_zombies()

    def wait_for_zombies(self) -> None:
        while self.awake:
            self.wait(self.awake.pop(), expected=True)

    def come_to_rest(self) -> None:
        while self.asleep:
            self.awake.append(self.asleep.pop())
            self.awake[-1].signal(signal.SIGCONT)
        self.wait_for_zombies()
        deadline = time.monotonic() + self.rest_seconds
        while self.engines() and time.monotonic() < deadline:
            time.sleep(0.02)
        left = self.engines()
        self.tally.blame("processes left", len(left), f"{[process.pid for process in left]}")
        processes.end(left, grace=1.0)

    def wait_for_leases(self) -> None:
        """Until nothing that was killed counts as alive; what sleeps goes on sleeping."""
        leases = self.setting.checkpoint().leases
        deadline = time.monotonic() + self.patience
        while any(leases.remaining_seconds(*one) > 0 for one in leases.unfinished()) and time.monotonic() < deadline:
            time.sleep(0.05)

    def clean_up(self) -> None:
        """When all leases have run out, one run of the janitor puts everything in order, though some died before."""
        self.wait_for_leases()
        for point in self.random.sample(JANITOR, 2):
            self.wait_for_janitor(point)
        self.wait_for_janitor(None)

    def engines(self) -> list[psutil.Process]:
        """Engine processes of this world."""
        return processes.carrying(f"{self.root}/jobs/")

    def look_for_orphans(self, number: int) -> None:
        """A run that ended well has stopped whatever its earlier tries had left. Where two were alive at once, one may
        have launched after the other had looked for it: that is left to a janitor."""
        if self.doubled:
            return
        left = self.engines()
        self.tally.blame("processes left", len(left), f"run {number} ended and {len(left)} of its engines go on")
