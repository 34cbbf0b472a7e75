"""The real world: an Airflow with its scheduler, supervisors and triggerer, spark-submit, and kills at each of them."""

from __future__ import annotations

import contextlib
import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TypeVar

import psutil

from demo.local_airflow import LocalAirflow, LocalAirflowError
from tests.chaos.checks import check
from tests.chaos.engine import TOP
from tests.chaos.points import JANITOR
from tests.chaos.real import victims
from tests.chaos.real.dag import CODE, FILE
from tests.chaos.real.deck import ALL, BOTH, CLEANER, DRIVER, SCHEDULER, SUPERVISOR, TASK, TRIGGERER, Card, deal
from tests.chaos.real.held import arm, disarm, held_pid
from tests.chaos.real.watched import BEGUN, SPARK, WRITTEN, Watched
from tests.chaos.setting import Setting
from tests.chaos.signals import KILLS
from tests.chaos.tally import Tally
from tests.support.hooks import Diary
from tests.support.systems import DEFAULT
from tests.support.whose import stages_of

LEASE_SECONDS = 10.0
PATIENCE = 120.0
"""How long a moment, a janitor or an answer of Airflow is waited for."""
CLEARS = 0.2
"""After how many of the kills a run is cleared."""
REST = 600.0
"""How long the last batches may take."""

_SPARK = """\
spark.driver.memory 512m
spark.driver.extraJavaOptions -XX:+UseSerialGC -XX:TieredStopAtLevel=1
spark.ui.enabled false
spark.sql.shuffle.partitions 1
"""

_AIRFLOW = {
    # A death is noticed after seconds, not minutes. Some are announced too early then, on a busy machine: a task that
    # lives is taken for dead, and its next try runs beside it. That has to be lived through too.
    "SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "12",
    "SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "2",
    "WORKERS__MIN_HEARTBEAT_INTERVAL": "2",
    "SCHEDULER__SCHEDULER_HEARTBEAT_SEC": "2",
    "SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": "10",
    "SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "5",
    "SCHEDULER__TASK_QUEUED_TIMEOUT": "20",
    "SCHEDULER__TASK_QUEUED_TIMEOUT_CHECK_INTERVAL": "5",
    "TRIGGERER__JOB_HEARTBEAT_SEC": "2",
    "TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "8",
}

T = TypeVar("T")


class RealWorld:
    """:param root: an empty folder.
    :param seed: decides which kills there are, in which order; the moments are the kernel's.
    :param system: what pipelines live in, by its name in :mod:`tests.support.systems`.
    :param pipelines: how many run at once; while one waits, another can be hit.
    :param airflow: one that runs already and goes on afterwards; None: one of this world's own.
    :param database: of its own one, as :class:`LocalAirflow` takes it.
    :param patience: how long a card's moment is waited for before the next one is dealt, in seconds.
    """

    def __init__(
        self,
        root: Path,
        *,
        seed: str,
        system: str = DEFAULT,
        pipelines: int = 2,
        airflow: LocalAirflow | None = None,
        database: str | None = None,
        patience: float = PATIENCE,
    ) -> None:
        self.root = root
        self.seed = seed
        self._system = system
        self.random = random.Random(seed)
        self.tally = Tally()
        self._patience = patience
        self._own = LocalAirflow(
            home=root / "airflow", dags=root / "dags", env=self._environment(), parallelism=3, database=database
        )
        self.airflow = airflow or self._own
        self.watched = [self._pipeline(f"chaos_{number}") for number in range(pipelines)]
        self._landing = True
        self._tended = 0.0

    def play(
        self,
        *,
        kills: int,
        cards: Iterable[Card] | None = None,
        seconds: float = float("inf"),
        say: Callable[[str], None] = print,
    ) -> Tally:
        """Live through so many kills, let everything come to rest, and check.

        :param cards: what to kill; None: what the seed deals.
        :param seconds: deal no more cards after so many.
        :param say: takes a line a kill.
        """
        began = time.monotonic()
        with self._readers(), self._own if self.airflow is self._own else nullcontext():
            for watched in self.watched:
                watched.land(3)
                self._insist(partial(self.airflow.unpause, watched.dag_id))
            for card in cards or deal(self.random):
                if self.killed >= kills - self._last_kills or time.monotonic() - began > seconds:
                    break
                label = self.strike(card)
                if label is not None:
                    self.note(label)
                    say(f"[{time.monotonic() - began:6.0f} s] kill {self.killed}: {label}")
                if self.random.random() < CLEARS:
                    self.clear(self.random.choice(self.watched))
            self.finish(say)
        left = self._own.processes()
        self.tally.blame("processes left", len(left), f"{left}")
        for watched in self.watched:
            check(watched.setting, landed=watched.landed, newest=watched.newest, tally=self.tally)
        self.tally.counts["real worlds"] += 1
        self.tally.failures = [f"real world {self.seed}: {failure}" for failure in self.tally.failures]
        return self.tally

    @property
    def killed(self) -> int:
        return self.tally.real.total()

    @property
    def _last_kills(self) -> int:
        """Those of :meth:`finish`: a task and a janitor for each pipeline."""
        return 2 * len(self.watched)

    def note(self, label: str) -> None:
        self.tally.real[label] += 1

    # One kill

    def strike(self, card: Card) -> str | None:
        """Wait for the card's moment and kill; None if it did not come or there was nobody to kill."""
        watched = self.random.choice(self.watched)
        if card.victim == CLEANER:
            return self._kill_janitor(watched, card)
        if card.point is not None:
            return self._kill_at_point(card)
        if card.moment is not None:
            found = self.until(lambda: self._at(card.moment), seconds=self._patience, every=0.02)
            return self._kill(card.victim, found, f"{card.moment}") if found is not None else None
        self.until(lambda: False, seconds=card.delay or 0)
        return self._kill(card.victim, watched, None)

    def _kill_at_point(self, card: Card) -> str | None:
        assert card.point is not None
        for watched in self.watched:
            arm(watched.root, card.point)
        if card.replay:
            self.clear(self.random.choice(self.watched))
        try:
            found = self.until(self._held, seconds=self._patience, every=0.02)
            return self._kill(card.victim, found, card.point) if found is not None else None
        finally:
            for watched in self.watched:
                disarm(watched.root)

    def _held(self) -> Watched | None:
        return next((watched for watched in self.watched if held_pid(watched.root) is not None), None)

    def _at(self, moment: str | None) -> Watched | None:
        for watched in self.random.sample(self.watched, len(self.watched)):
            attempt = watched.attempt()
            if attempt is None or watched.moment() != moment:
                continue
            return watched
        return None

    def _kill(self, victim: str, watched: Watched, when: str | None) -> str | None:
        """Kill, and say who and when. The moment of a random kill is looked up when the victim is dead."""
        if victim in (SCHEDULER, TRIGGERER):
            self.airflow.kill_component(victim)
            label = f"{victim} at {when or 'a random moment: ' + watched.moment()}"
            self.until(lambda: False, seconds=self.random.choice([0, 0, 3, 12]), mend=False)
            return label
        doomed = self._doomed(victim, watched)
        for process in doomed:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(doomed, timeout=5)
        return f"{victim} at {when or 'a random moment: ' + watched.moment()}" if doomed else None

    def _doomed(self, victim: str, watched: Watched) -> list[psutil.Process]:
        spark, held = watched.spark(), held_pid(watched.root)
        task = self._task(spark, held)
        found: dict[str, psutil.Process | None] = {
            TASK: task,
            SUPERVISOR: victims.supervisor_of(task) if task is not None else None,
            DRIVER: spark,
        }
        wanted = {BOTH: (SUPERVISOR, TASK), ALL: (SUPERVISOR, TASK, DRIVER)}.get(victim, (victim,))
        doomed = [found[name] for name in wanted]
        return [process for process in doomed if process is not None] if None not in doomed else []

    def _task(self, spark: psutil.Process | None, held: int | None) -> psutil.Process | None:
        everyone = victims.tasks(self.airflow)
        wanted = held if held is not None else spark.ppid() if spark is not None and spark.is_running() else None
        chosen = [process for process in everyone if wanted in (None, process.pid)]
        return self.random.choice(chosen) if chosen else None

    def _kill_janitor(self, watched: Watched, card: Card) -> str | None:
        """At a point it dies by itself, if it gets there; else at a random moment."""
        process = self._start_janitor(watched, card.point)
        if card.point is None:
            self.until(lambda: process.poll() is not None, seconds=self.random.uniform(0.3, 2.0))
            alive = process.poll() is None
            process.kill()
            process.wait()
            return f"janitor at a random moment: {watched.moment()}" if alive else None
        return self._janitor_died(process, watched)

    def _start_janitor(self, watched: Watched, point: str | None) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tests.chaos.janitor", str(watched.root), *([point] if point else [])]
        return subprocess.Popen(
            command,
            cwd=TOP,
            env={**self.airflow.env, "AIRFLOW__MICROBATCH__TRUSTED_MODULES": Diary.__module__},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def _janitor_died(self, process: subprocess.Popen[str], watched: Watched) -> str | None:
        """Let a janitor run to its end, or to its point; what killed it. Else it must not fail."""
        kills = watched.root / KILLS
        before = len(kills.read_text().splitlines()) if kills.exists() else 0
        output, _ = process.communicate(timeout=PATIENCE)
        after = kills.read_text().splitlines() if kills.exists() else []
        if len(after) > before:
            return after[-1]
        self.tally.blame("wrong states", process.returncode != 0, f"a janitor of {watched.dag_id}: {output[-2000:]}")
        return None

    def clear(self, watched: Watched) -> None:
        """Have a finished run make its batch again, as a person does in the grid."""
        committed = watched.committed()
        batch = self.random.choice(sorted(committed)) if committed else None
        if batch is None or self._insist(partial(self._is_running, watched, committed[batch])):
            return
        watched.renew(batch)
        self._insist(partial(self.airflow.clear, watched.dag_id, committed[batch]))
        self.tally.counts["replays"] += 1

    def _is_running(self, watched: Watched, run_id: str) -> bool:
        return self.airflow.run_state(watched.dag_id, run_id) != "success"

    # The end

    def finish(self, say: Callable[[str], None]) -> None:
        """A last task of each pipeline is killed and nobody tries again; the janitors clean up, some of them die at it;
        then all that has landed is let through, and one more janitor each finds its pipeline in order or puts it so."""
        for watched in self.watched:
            victim = self.until(partial(self._mid_run, watched), seconds=REST)
            if victim is None:
                self.tally.blame("wrong states", 1, f"{watched.dag_id} makes no batches: {watched.moment()}")
                continue
            self._insist(partial(self.airflow.pause, watched.dag_id))
            label = self._kill(TASK, watched, None)
            if label is not None:
                self.note(f"{label.replace('a random moment: ', '')}, no retry")
        self._landing = False
        say("waiting until what was killed is gone and its leases have run out")
        self.until(lambda: not any(self._alive(watched) for watched in self.watched), seconds=REST)
        for watched in self.watched:
            label = self._janitor_died(self._start_janitor(watched, self.random.choice(JANITOR)), watched)
            if label is not None:
                self.note(label)
            self._clean(watched)
        say("letting all through")
        for watched in self.watched:
            self._insist(partial(self.airflow.unpause, watched.dag_id))
        through = self.until(lambda: all(watched.is_through() for watched in self.watched), seconds=REST)
        for watched in [] if through else self.watched:
            self.tally.blame("wrong states", 1, f"{watched.dag_id} is not through: {self._standing(watched)}")
        for watched in self.watched:
            self._insist(partial(self.airflow.pause, watched.dag_id))
        self.until(lambda: not any(self._alive(watched) for watched in self.watched), seconds=REST)
        for watched in self.watched:
            self._clean(watched)
            failed = self._insist(partial(self._failed_runs, watched))
            self.tally.blame("wrong states", len(failed), f"DAG runs failed: {failed}")

    def _standing(self, watched: Watched) -> str:
        """Where a pipeline stands, and what Airflow says of its newest run."""
        path = f"dags/{watched.dag_id}/dagRuns"
        answer = self._insist(partial(self.airflow.api, "GET", path, order_by="-run_after", limit=1))
        told = watched.moment()
        for run in answer["dag_runs"]:
            instances = self._insist(partial(self.airflow.task_instances, watched.dag_id, run["dag_run_id"]))
            states = {task: (instance["state"], instance["try_number"]) for task, instance in instances.items()}
            told += f"; run {run['dag_run_id']} is {run['state']}, its tasks {states}"
        return told

    def _failed_runs(self, watched: Watched) -> list[str]:
        answer = self.airflow.api("GET", f"dags/{watched.dag_id}/dagRuns", state="failed", limit=100)
        return [run["dag_run_id"] for run in answer["dag_runs"]]

    def _mid_run(self, watched: Watched) -> bool:
        return watched.moment() in (SPARK, BEGUN, WRITTEN) and watched.spark() is not None

    def _alive(self, watched: Watched) -> bool:
        """Whether an attempt without an end has a process, or a lease that runs."""
        checkpoint = watched.setting.checkpoint()
        if watched.spark() is not None or victims.tasks(self.airflow):
            return True
        return any(checkpoint.leases.remaining_seconds(key, epoch) > 0 for key, epoch in checkpoint.leases.unfinished())

    def _clean(self, watched: Watched) -> None:
        """One run of the janitor leaves no stage."""
        died = self._janitor_died(self._start_janitor(watched, None), watched)
        assert died is None, "nobody has told it to"
        left = stages_of(watched.setting.pipeline().sink, watched.setting.checkpoint())
        self.tally.blame("stages orphaned", len(left), f"{watched.dag_id}: {left} after a janitor's run")

    # Meanwhile

    def until(self, condition: Callable[[], T], *, seconds: float, every: float = 0.1, mend: bool = True) -> T | None:
        """Ask until the answer is true, None after ``seconds``. Data lands meanwhile, and what is dead is restarted.

        :param mend: whether dead components are started again.
        """
        deadline = time.monotonic() + seconds
        while True:
            self._tend(mend=mend)
            answer = condition()
            if answer:
                return answer
            if time.monotonic() > deadline:
                return None
            time.sleep(every)

    def _insist(self, call: Callable[[], T]) -> T:
        """An answer of the REST API, though a component is dead or the machine is busy.

        :raises LocalAirflowError: if there is none.
        """
        deadline = time.monotonic() + PATIENCE
        while True:
            self._tend(mend=True)
            try:
                return call()
            except (LocalAirflowError, OSError):
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.5)

    def _tend(self, *, mend: bool) -> None:
        if time.monotonic() - self._tended < 1.0:
            return
        self._tended = time.monotonic()
        if self._landing:
            self.random.choice(self.watched).land(self.random.randint(1, 4))
        for name in self.airflow.dead_components() if mend else []:
            self.airflow.start_component(name)
        for process in victims.stray_workers(self.airflow):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    @contextmanager
    def _readers(self) -> Iterator[None]:
        """A reader for each table, which must see each batch once at every read."""
        readers = []
        for watched in self.watched:
            (watched.root / "lake").mkdir()
            command = [sys.executable, "-S", "-m", "tests.chaos.reader", str(watched.root / "lake"), "0.3"]
            readers.append(
                subprocess.Popen(command, cwd=TOP, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            )
        try:
            yield
        except BaseException:
            for reader in readers:
                reader.kill()
            raise
        finally:
            for watched, reader in zip(self.watched, readers, strict=True):
                (watched.root / "lake" / "_stop").touch()
                output, errors = reader.communicate()
                self.tally.blame("wrong states", reader.returncode != 0, f"the reader of {watched.dag_id}: {errors}")
                self.tally.counts["reads of a whole table"] += int(output.split()[-1]) if reader.returncode == 0 else 0

    def _pipeline(self, name: str) -> Watched:
        setting = Setting(root=str(self.root / name), system=self._system, lease_seconds=LEASE_SECONDS)
        Path(setting.root).mkdir()
        setting.save()
        code = self.airflow.dags / setting.code
        code.parent.mkdir(parents=True, exist_ok=True)
        code.write_text(CODE.format(root=setting.root, more=setting.columns_in_sql))
        (self.airflow.dags / f"{name}.py").write_text(FILE.format(dag_id=name, root=setting.root))
        return Watched(setting=setting)

    def _environment(self) -> dict[str, str]:
        (self.root / "spark").mkdir()
        (self.root / "spark" / "spark-defaults.conf").write_text(_SPARK)
        return {
            **{f"AIRFLOW__{name}": value for name, value in _AIRFLOW.items()},
            "SPARK_CONF_DIR": str(self.root / "spark"),
            "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": "local[1]"}),
        }
