"""Moves to another place: the checkpoint is copied, half way killed, and people of both places go on; and two Airflows
that have one pipeline."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulator.commands import COMMANDS, command, copy_of
from tests.simulator.moves import move
from tests.simulator.moves_of_restores import stop_everybody
from tests.simulator.processes import FROZEN

if TYPE_CHECKING:
    from tests.simulator.subject import Subject
    from tests.simulator.world import World


def _first(world: World) -> Subject:
    return next(iter(world.subjects.values()))


def _at_work(world: World) -> bool:
    return any(process.name.startswith(COMMANDS) for process in world.processes.living())


@move("the checkpoint is to move", weight=3)
def moves(world: World) -> str | None:
    """Not while another command has yet to be finished."""
    subject = _first(world)
    checkpoint = subject.checkpoint()
    if len(world.subjects) > 1 or subject.kept is not None or subject.moves_to is not None or _at_work(world):
        return None
    if checkpoint.identity() is None or checkpoint.maintenance.unfinished() is not None:
        return None
    world.moves += 1
    subject.moves_to = f"{subject.name}-{world.moves}/"
    return f"the checkpoint of {subject.name} is to move to {subject.moves_to}"


@move("copy", weight=8, always=True)
def copies(world: World) -> str | None:
    subject = _first(world)
    if subject.moves_to is None or subject.has_arrived() or subject.kept is not None:
        return None
    told = ""
    if world.random.random() < 0.5:
        stop_everybody(world)
        told = "nobody is alive any more: "
    command(world, subject, copy_of(subject))
    return f"{told}copy of {subject.name} to {subject.moves_to} begins"


@move("a copy is killed half way", weight=8, always=True)
def killed(world: World) -> str | None:
    """Or it sleeps, and somebody takes it for dead and types it again."""
    subject = _first(world)
    if subject.moves_to is None or subject.has_arrived() or subject.kept is not None:
        return None
    stop_everybody(world)
    process = command(world, subject, copy_of(subject))
    left = world.random.randrange(1, 400)
    while left and (threads := world.processes.ready(process)):
        world.processes.go_on(threads[0])
        left -= 1
    if process.gone:
        return f"the copy of {subject.name} ends"
    if world.random.random() < 0.5:
        world.processes.kill(process)
    else:
        process.state = FROZEN
    return f"the copy of {subject.name} to {subject.moves_to} is {process.state} before: {process.at}"


@move("the DAG file names a place", weight=6, always=True)
def names_a_place(world: World) -> str | None:
    """The new one as soon as something is there, open or not, or once more the old one; at last both agree."""
    subject = _first(world)
    if subject.moves_to is None or subject.kept is not None or not world.disk.below(subject.moves_to):
        return None
    if subject.has_arrived() and world.random.random() < 0.5:
        subject.arrive()
        return f"DAG file and checkpoint of {subject.name} agree on {subject.folder}"
    subject.dag_leads = not subject.dag_leads
    return f"the DAG file of {subject.name} names the {'new' if subject.dag_leads else 'old'} place"


@move("another Airflow has a run of the same name", weight=4)
def twice(world: World) -> str | None:
    """The DAG was deployed twice, with one checkpoint: run ids are alike, and neither knows of the other."""
    subject = _first(world)
    runs = [run for run in world.airflow.runs if run.subject is subject and run.interval is None]
    there = {(run.run_id, run.scheduler) for run in runs}
    runs = [run for run in runs if (run.run_id, run.scheduler + 1) not in there and run.scheduler < 2]
    if not runs:
        return None
    made = world.airflow.new_run_elsewhere(world.random.choice(runs))
    return f"{made.name} is queued"
