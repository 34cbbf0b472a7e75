"""A small Airflow: runs, tries, retries, clears. It notices deaths late, and calls its listeners twice or never."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from uuid import UUID

from airflow_provider_microbatch.checkpoint.entries import RunIdentity
from airflow_provider_microbatch.checkpoint.marks import Mark
from airflow_provider_microbatch.exceptions import (
    BatchInProgressError,
    BatchPurgedError,
    BatchSetAsideError,
    MicroBatchError,
    NothingInIntervalError,
)
from airflow_provider_microbatch.execution.engine import Code, Engine
from airflow_provider_microbatch.execution.settle import settle
from airflow_provider_microbatch.listeners.marking import write_mark
from airflow_provider_microbatch.sources.intervals import Interval
from airflow_provider_microbatch.task_context.stoppable import StoppableEngine
from tests.simulator.engine import SimulatedEngine
from tests.simulator.processes import Process
from tests.simulator.subject import Subject

if TYPE_CHECKING:
    from tests.simulator.world import World

QUEUED, RUNNING, RETRY, SUCCESS, SKIPPED, FAILED = "queued", "running", "up for retry", "success", "skipped", "failed"
OVER = (SUCCESS, SKIPPED, FAILED)
RETRIES = 3


@dataclass(eq=False)
class DagRun:
    """A run, and the task instance that makes its batch.

    :param interval: its data interval, of interval pipelines and backfills.
    :param first_try: of its task, since it was cleared last.
    :param created_ms: when it was made.
    :param started_ms: when it began; a clear of a run that was over begins it anew.
    :param wanted: the code's version when the run was last cleared: what it publishes must not be older.
    :param retries: left before the run has failed.
    """

    subject: Subject
    run_id: str
    interval: Interval | None = None
    state: str = QUEUED
    clear_number: int = 0
    try_number: int = 0
    ti_id: str = ""
    first_try: int = 1
    created_ms: int = 0
    started_ms: int = 0
    wanted: int = 0
    retries: int = RETRIES
    process: Process | None = None
    engine: StoppableEngine | None = None
    error: str = ""
    scheduler: int = 0
    """Whose run it is, of several Airflows that have the DAG: they know nothing of each other's."""
    slot: int = -1
    """Its place among the instances of a drain; -1: there is one task."""
    aside: bool = False
    """Whether its batch was set aside: it has failed until it is cleared."""
    ended_elsewhere: bool = False
    """Whether its last try ended while another checkpoint was in the place of the pipeline's own."""

    @property
    def name(self) -> str:
        other = f" of Airflow {self.scheduler}" if self.scheduler else ""
        return f"{self.run_id}{f'[{self.slot}]' if self.slot >= 0 else ''}{other} of {self.subject.name}"

    def identity(self) -> RunIdentity:
        return RunIdentity(
            dag_id=self.subject.name,
            run_id=self.run_id,
            task_id="micro_batch",
            map_index=self.slot,
            ti_id=self.ti_id,
            try_number=self.try_number,
            clear_number=self.clear_number,
            first_try=self.first_try,
            run_started=_iso(self.started_ms),
            run_after=_iso(self.created_ms),
        )


class Airflow:
    """:param world: the world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.runs: list[DagRun] = []
        self._numbers = 0
        self._twins: set[tuple[str, str]] = set()
        self.clears: Counter[tuple[str, str]] = Counter()
        """How often a pipeline's run of a name was cleared, of whichever Airflow."""
        self.ended: list[tuple[Subject, RunIdentity, BaseException | None]] = []
        """Tries that have ended, for listeners that are called late or twice."""
        self.begun: dict[tuple[str, Interval], int] = {}
        """When the first try of a run of the pipeline's data interval began."""
        self.had: dict[tuple[str, Interval], int] = {}
        """When such a run was over first, and had not failed."""
        self.passed: set[tuple[str, Interval]] = set()
        """Data intervals for which no run is made: the DAG was paused then."""

    def active(self, subject: Subject) -> list[DagRun]:
        """Runs that are not over."""
        return [run for run in self.runs if run.subject is subject and run.state not in OVER]

    def new_run(self, subject: Subject, *, interval: Interval | None = None) -> DagRun:
        """One more run; of its slots, if it has several, the first."""
        self._numbers += 1
        return self._made(subject, f"run-{self._numbers}", interval=interval)

    def _made(self, subject: Subject, run_id: str, *, interval: Interval | None) -> DagRun:
        slots = subject.options.slots
        # A run with a data interval has one batch, which slot 0 makes.
        numbers = [-1] if slots == 1 else [0] if interval is not None else range(slots)
        now = self._world.now_ms
        made = [DagRun(subject, run_id, interval=interval, slot=n, created_ms=now, started_ms=now) for n in numbers]
        self.runs += made
        return made[0]

    def new_run_elsewhere(self, run: DagRun) -> DagRun:
        """Another Airflow has the DAG too, and a run that is called as this one."""
        self._twins.add((run.subject.name, run.run_id))
        made = self._made(run.subject, run.run_id, interval=run.interval)
        for one in self.runs[self.runs.index(made) :]:
            one.scheduler = run.scheduler + 1
        return made

    def has_twin(self, run: DagRun) -> bool:
        """Whether another Airflow has, or had, a run of the same name."""
        return (run.subject.name, run.run_id) in self._twins

    def slots_of(self, run: DagRun) -> list[DagRun]:
        """All task instances of the run, in their order."""
        return [
            one
            for one in self.runs
            if one.subject is run.subject and one.run_id == run.run_id and one.scheduler == run.scheduler
        ]

    def may_begin(self, run: DagRun) -> bool:
        """Whether a task instance that waits is next: one of a run at a time, and in order."""
        others = [one for one in self.slots_of(run) if one is not run]
        return not any(one.state == RUNNING or (one.state == QUEUED and one.slot < run.slot) for one in others)

    def skips(self, run: DagRun) -> bool:
        """Whether a slot before has failed, or waits for its retry: its batch comes first."""
        failed = any(one.slot < run.slot and one.state in (RETRY, FAILED) for one in self.slots_of(run))
        if failed:
            run.state = SKIPPED
        return failed

    def begin_task(self, run: DagRun) -> None:
        """A task instance of the run, whose id tells when it was made; no two are of one millisecond."""
        self._world.now_ms += 1
        run.ti_id = _uuid7(self._world.now_ms, self._world.random.getrandbits(74))

    def make_again(self, run: DagRun) -> DagRun:
        """A user deletes the run, and makes one of the same name."""
        for one in self.slots_of(run):
            self.stop(one)
            self.runs.remove(one)
            one.process = None
        made = self._made(run.subject, run.run_id, interval=run.interval)
        for one in self.runs[self.runs.index(made) :]:
            one.scheduler = run.scheduler
        return made

    def begin_try(self, run: DagRun) -> Process:
        """The next try of a run's task: a process."""
        world, subject = self._world, run.subject
        run.try_number += 1
        if run.interval is not None:
            self.begun.setdefault((subject.name, run.interval), world.now_ms)
        self.begin_task(run)
        run.state = RUNNING
        engine = run.engine = StoppableEngine(SimulatedEngine(world.cluster, world))
        identity, version = run.identity(), subject.version
        listens = world.random.random() < 0.8

        def body() -> str:
            error: BaseException | None = None
            outcome = FAILED
            try:
                work = subject.execution() if run.interval is None else subject.work(run.interval)
                summary = work.run(
                    run=identity,
                    engine=engine,
                    code=Code(transform="jobs/orders.py:transform", code_hash=str(version)),
                    transform=None,
                    should_stop=lambda: engine.stopped,
                )
                outcome = SKIPPED if summary is None else SUCCESS
            except (BatchInProgressError, BatchPurgedError, NothingInIntervalError) as nothing:
                outcome, run.error = SKIPPED, str(nothing)
            except BatchSetAsideError as alarm:
                error, run.error, run.aside = alarm, str(alarm), True
            except MicroBatchError as failed:
                error, run.error = failed, f"{type(failed).__name__}: {failed}"
                outcome = RETRY
            self.ended.append((subject, identity, error))
            if listens and outcome != SKIPPED:
                self.listen(subject, identity, error)
            return outcome

        def on_end(process: Process) -> None:
            if run.process is not process:
                return  # Airflow knows a later try, and takes no word of this one
            outcome = process.result if process.error is None else RETRY
            if outcome == RETRY:
                run.retries -= 1
                outcome = RETRY if run.retries > 0 else FAILED
            run.state, run.ended_elsewhere = str(outcome), subject.kept is not None
            if run.interval is not None and run.state in (SUCCESS, SKIPPED):
                self.had.setdefault((subject.name, run.interval), world.now_ms)
            self._world.say(f"{run.name} try {run.try_number} ends: {run.state} {run.error[:200]}")

        name = f"{run.name} try {run.try_number}" + (f" clear {run.clear_number}" if run.clear_number else "")
        run.error = ""
        run.process = world.processes.spawn(name, body, machine=world.any_machine(), on_end=on_end)
        return run.process

    def listen(self, subject: Subject, identity: RunIdentity, error: BaseException | None) -> None:
        """What the listener does in the task's process. It never raises."""
        try:
            settle(subject.execution(), ti_id=str(identity.ti_id), error=error, engine_of=self.engine_of)
        except (MicroBatchError, OSError) as failed:
            self._world.say(f"the listener of {identity.run_id} could not: {failed}")

    def engine_of(self, name: str) -> Engine | None:
        """The engine, as any process finds it."""
        return SimulatedEngine(self._world.cluster, self._world) if name == SimulatedEngine.name else None

    def mark(self, subject: Subject, identity: RunIdentity, *, status: str, whole_run: bool) -> None:
        """What scheduler and API server write down of a task, or of a run."""
        mark = Mark(
            dag_id=identity.dag_id,
            run_id=identity.run_id,
            task_id=None if whole_run else identity.task_id,
            ti_id=None if whole_run else identity.ti_id,
            try_number=None if whole_run else identity.try_number,
            status=status,
            reason="Airflow saw it",
            marked_ms=self._world.machine_ms(),
        )
        try:
            write_mark(subject.pipeline().checkpoint, mark)
        except MicroBatchError as failed:
            self._world.say(f"no mark: {failed}")

    def stop(self, run: DagRun) -> None:
        """SIGTERM: ``on_kill`` in the task's process, whose ``execute`` goes on."""
        engine = run.engine
        if run.process is None or run.process.gone or engine is None:
            return

        def body() -> None:
            try:
                engine.stop()
            except MicroBatchError as failed:
                self._world.say(f"on_kill could not: {failed}")

        self._world.processes.spawn(f"on_kill of {run.name}", body, machine=run.process.machine)

    def notice(self, run: DagRun) -> None:
        """No heartbeat: the try is taken for dead, whether it is or not."""
        run.retries -= 1
        run.process = None
        run.state = RETRY if run.retries > 0 else FAILED

    def clear(self, run: DagRun, *, resets_run: bool = True, all_slots: bool = False) -> None:
        """A user wants it again.

        :param resets_run: False: by REST with ``reset_dag_runs=false``, which leaves the clear number.
        :param all_slots: the run's other task instances too.
        """
        run.subject.version += 1
        self.clears[run.subject.name, run.run_id] += 1
        slots = self.slots_of(run)
        if resets_run:
            is_over = all(one.state in OVER for one in slots)
            for one in slots:
                one.clear_number += 1
                if is_over:
                    one.started_ms = self._world.now_ms
        for one in slots if all_slots else [run]:
            self._clear_task(one)

    def _clear_task(self, run: DagRun) -> None:
        run.wanted = run.subject.version
        run.first_try = run.try_number + 1
        run.aside = False
        run.retries = RETRIES
        self.stop(run)
        run.process = None
        run.state = QUEUED


def _iso(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, tz=UTC).isoformat()


def _uuid7(ms: int, chance: int) -> str:
    """As Airflow makes the ids of task instances: the time first."""
    low = (0b10 << 62) | (chance & ((1 << 62) - 1))
    return str(UUID(int=(ms << 80) | (7 << 76) | ((chance >> 62) << 64) | low))
