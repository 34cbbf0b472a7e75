"""Moves of a DAG's life: runs, tries, retries, clears, backfills, sensors, listeners, janitors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_microbatch.exceptions import (
    BatchInProgressError,
    BatchSetAsideError,
    BrokenLogError,
    CheckpointError,
    MicroBatchError,
    SourceChangedError,
)
from airflow_provider_microbatch.sources.intervals import Interval
from tests.simulator.airflow import OVER, QUEUED, RETRY, RUNNING, DagRun
from tests.simulator.moves import move
from tests.simulator.moves_of_restores import forgotten, names_a_trap
from tests.simulator.moves_of_state import waits_for_a_clear
from tests.simulator.moves_of_topics import is_well
from tests.simulator.processes import RUNS
from tests.simulator.rest import INTERVAL_MS, intervals, janitor
from tests.simulator.subject import Subject
from tests.simulator.world import BEGINS_MS, Broken

if TYPE_CHECKING:
    from tests.simulator.world import World


def _subject(world: World) -> Subject:
    return world.random.choice(list(world.subjects.values()))


def _run(world: World, *states: str) -> DagRun | None:
    found = [run for run in world.airflow.runs if run.state in states]
    return world.random.choice(found) if found else None


@move("data lands", weight=16, always=True)
def lands(world: World) -> str | None:
    subject = _subject(world)
    unit = subject.land(world.random.choice(subject.landings), world.random.randint(1, 3))
    return f"{unit.source} of {subject.name} gets rows {unit.ids}"


@move("a listing lags", weight=4)
def listing_lags(world: World) -> str | None:
    """Data is there, and its time has come, and no listing shows it."""
    subject = _subject(world)
    unit = subject.land(world.random.choice(subject.landings), world.random.randint(1, 3), shown=False)
    return f"{unit.source} of {subject.name} gets rows {unit.ids}, which no listing shows yet"


@move("a listing catches up", weight=6, always=True)
def listing_catches_up(world: World) -> str | None:
    late = [(one, unit) for one in world.subjects.values() for unit in one.units if unit.shown_ms is None]
    if not late:
        return None
    subject, unit = world.random.choice(late)
    subject.show(unit)
    return f"{unit.source} {unit.ids} of {subject.name} is listed from now on"


@move("the scheduler looks", weight=30, always=True)
def schedules(world: World) -> str | None:
    waiting = _run(world, QUEUED, RETRY)
    if waiting is not None and not world.airflow.may_begin(waiting):
        waiting = None
    if waiting is not None and world.airflow.skips(waiting):
        return f"{waiting.name} skips: a slot before it has failed"
    if waiting is not None:
        process = world.airflow.begin_try(waiting)
        return f"{process.name} begins on machine {process.machine}"
    subject = _subject(world)
    if len({run.run_id for run in world.airflow.active(subject)}) >= world.runs_at_once:
        return None
    interval = None
    if subject.options.plan == "interval":
        free = _free(world, subject)
        if not free:
            return None
        interval = free[0]
    process = world.airflow.begin_try(world.airflow.new_run(subject, interval=interval))
    return f"{process.name} begins on machine {process.machine}"


def _free(world: World, subject: Subject) -> list[Interval]:
    """Data intervals that the scheduler has yet to make a run for, in order."""
    had = {run.interval for run in world.airflow.runs if run.subject is subject}
    over = [one for one in intervals(world.now_ms) if one not in had]
    return [one for one in over if (subject.name, one) not in world.airflow.passed]


@move("the scheduler makes no run for an interval", weight=8)
def passes(world: World) -> str | None:
    """The DAG was paused then, without catchup. A person may backfill it."""
    subject = _subject(world)
    free = _free(world, subject) if subject.options.plan == "interval" else []
    if not free:
        return None
    world.airflow.passed.add((subject.name, free[0]))
    return f"there is no run of {subject.name} for {free[0]}"


@move("a task gives no heartbeat", weight=6, always=True)
def notices(world: World) -> str | None:
    silent = [
        run
        for run in world.airflow.runs
        if run.state == RUNNING and run.process is not None and run.process.state != RUNS
    ]
    if not silent:
        return None
    run = world.random.choice(silent)
    world.airflow.notice(run)
    return f"Airflow takes {run.name} for dead: {run.state}"


@move("a living task is taken for dead", weight=2)
def notices_wrongly(world: World) -> str | None:
    run = _run(world, RUNNING)
    if run is None:
        return None
    world.airflow.notice(run)
    return f"Airflow takes {run.name} for dead, which lives: {run.state}"


@move("a user stops a task", weight=3)
def stops(world: World) -> str | None:
    run = _run(world, RUNNING)
    if run is None:
        return None
    world.airflow.stop(run)
    return f"on_kill of {run.name}"


@move("a user clears a run", weight=6)
def clears(world: World) -> str | None:
    run = _run(world, *OVER)
    if run is None:
        return None
    whole = run.slot >= 0 and world.random.random() < 0.5
    world.airflow.clear(run, all_slots=whole)
    return f"{run.name}{' and its other slots are' if whole else ' is'} cleared, for code {run.wanted}"


@move("a user clears a task by REST", weight=3)
def clears_task(world: World) -> str | None:
    """With ``reset_dag_runs=false``: the run's clear number stays."""
    run = _run(world, *OVER, RUNNING)
    if run is None or not run.try_number:
        return None
    world.airflow.clear(run, resets_run=False)
    return f"the task of {run.name} is cleared, the run is not, for code {run.wanted}"


@move("a run is deleted and made again", weight=2)
def made_again(world: World) -> str | None:
    run = _run(world, *OVER)
    if run is None:
        return None
    world.airflow.make_again(run)
    return f"{run.name} is deleted, and made again"


@move("a user clears a running task", weight=2)
def clears_running(world: World) -> str | None:
    run = _run(world, RUNNING, RETRY)
    if run is None:
        return None
    world.airflow.clear(run)
    return f"{run.name} is cleared while it runs, for code {run.wanted}"


@move("a run is added", weight=2)
def run_added(world: World) -> str | None:
    """A person triggers one, whatever else runs."""
    subject = _subject(world)
    if subject.options.plan == "interval":
        return None
    run = world.airflow.new_run(subject)
    return f"{run.name} is triggered"


@move("a backfill", weight=3)
def backfills(world: World) -> str | None:
    subject = _subject(world)
    over = intervals(world.now_ms)
    if not over or subject.kept is not None or subject.removed is not None or len(world.subjects) > 1:
        return None
    if not subject.system.has_clock:
        return None
    run = world.airflow.new_run(subject, interval=world.random.choice(over))
    assert run.interval is not None
    return f"{run.name} is a backfill of interval {(run.interval.start_ms - BEGINS_MS) // INTERVAL_MS}"


@move("a mark", weight=3)
def marks(world: World) -> str | None:
    """Scheduler or API server say what they saw: of any try, however late, and again."""
    if not world.airflow.ended:
        return None
    subject, identity, _ = world.random.choice(world.airflow.ended)
    status, whole = world.random.choice(["failed", "canceled"]), world.random.random() < 0.3

    def body() -> None:
        world.airflow.mark(subject, identity, status=status, whole_run=whole)

    world.processes.spawn(f"mark of {identity.run_id}", body, machine=world.any_machine())
    return f"Airflow marks {identity.run_id} try {identity.try_number} as {status}"


@move("a listener is called again", weight=3)
def listens_again(world: World) -> str | None:
    """Late, or a second time."""
    if not world.airflow.ended:
        return None
    subject, identity, error = world.random.choice(world.airflow.ended)

    def body() -> None:
        world.airflow.listen(subject, identity, error)

    world.processes.spawn(f"listener of {identity.run_id}", body, machine=world.any_machine())
    return f"the listener of {identity.run_id} try {identity.try_number} is called once more"


@move("a janitor", weight=5, always=True)
def cleans(world: World) -> str | None:
    subject = _subject(world)
    janitor(world, subject)
    return f"a janitor of {subject.name} begins"


@move("a sensor asks", weight=6, always=True)
def asks(world: World) -> str | None:
    """What fires can be planned, and what does not fire has nothing to plan: asked and planned in one moment, by a task
    that dies right after."""
    subject = _subject(world)
    if subject.kept is not None or subject.intrudes_on is not None or subject.renamed is not None:
        return None
    if subject.moves_to is not None:
        return None
    # Where the table is away, or has other batches, or a source is away that is needed, the task says so; and of an
    # attempt that a stranger has written of a batch that is planned no more, that it is alive.
    if (
        subject.options.plan == "interval"
        or subject.is_away
        or subject.table_is_older
        or subject.removed is not None
        or world.disk.trouble
        or world.cluster.unreachable
        or not is_well(world, subject)
        or names_a_trap(world, subject)
    ):
        return None
    if subject.checkpoint().maintenance.unfinished() is not None or any(forgotten(subject)):
        return None
    run = world.airflow.new_run(subject)
    world.airflow.begin_task(run)
    execution, changes = subject.execution(), world.disk.changes
    try:
        fired = execution.should_fire(run.identity(), engine_of=world.airflow.engine_of)
    except BrokenLogError as broken:
        if not world.processes.living():
            raise
        return f"a sensor fails, beside a plan that a command overtook and that is taken back: {broken}"
    except CheckpointError as error:
        if not waits_for_a_clear(str(error)):
            raise
        return f"a sensor fails: {error}"
    if world.disk.changes != changes:
        raise Broken("a sensor writes", f"{fired}")
    held = fired.reason.startswith("batch ") and not fired.fire
    try:
        planned = execution.plan(run.identity())
        if planned is not None:
            execution.look(planned.key, run.identity(), engine_of=world.airflow.engine_of)
    except BatchInProgressError as busy:
        if fired.fire:
            raise Broken("a sensor fires for what is held", f"{fired.reason}: {busy}") from busy
        return f"a sensor waits: {fired.reason}"
    except BatchSetAsideError:
        return f"a sensor fires: {fired.reason}, for what is set aside"
    except SourceChangedError as changed:
        return f"a sensor fires, and the task says what is wrong: {changed}"
    except MicroBatchError as error:
        raise Broken("a sensor fires for what cannot be planned", f"{fired}: {error}") from error
    if fired.fire != (planned is not None) and not held:
        raise Broken("sensor and plan disagree", f"{fired} and {planned}")
    return f"a sensor is asked: {fired.reason}; {run.run_id} plans {planned and planned.key}"
