"""Moves of a person who has dead letters run again, and whose checkpoint was restored from before that."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from airflow_provider_microbatch.checkpoint.entries import RunIdentity
from airflow_provider_microbatch.checkpoint.key import LETTERS
from airflow_provider_microbatch.exceptions import MicroBatchError
from airflow_provider_microbatch.execution.dead_letters import execution_of, replaying
from airflow_provider_microbatch.execution.engine import Code
from tests.simulator.commands import letters_behind, rewind, typed_until_it_ends
from tests.simulator.engine import SimulatedEngine
from tests.simulator.moves import move
from tests.simulator.moves_of_restores import names_a_trap, stop_everybody, told_of, whole
from tests.simulator.moves_of_topics import is_well
from tests.simulator.processes import Process
from tests.simulator.systems import FilesIntoTopicAndLetters
from tests.simulator.world import Broken

if TYPE_CHECKING:
    from tests.simulator.subject import Subject
    from tests.simulator.world import World


def _first(world: World) -> Subject | None:
    """The pipeline, if its letters can be run again."""
    subject = next(iter(world.subjects.values()))
    has_letters = isinstance(subject.system, FilesIntoTopicAndLetters) and subject.format == "v2"
    return subject if has_letters and subject.kept is None and len(world.subjects) == 1 else None


def run_letters_again(world: World, subject: Subject) -> Process:
    """``dead-letters --replay``, as a process. Each is a run of its own."""
    name = f"dead-letters {world.uuid()}"
    run = RunIdentity(
        dag_id="microbatch", run_id=name, task_id="dead-letters", ti_id=str(world.uuid()), try_number=1, clear_number=0
    )  # fmt: skip
    code = Code(transform="jobs/orders.py:mend", code_hash=str(subject.version))

    def body() -> str:
        try:
            pipeline = replaying(subject.pipeline(), "jobs/orders.py:mend")
            execution = execution_of(pipeline, subject.named_checkpoint(), clock_ms=world.machine_ms)
            engine = SimulatedEngine(world.cluster, world)
            summary = execution.run(run=run, engine=engine, code=code, transform=None)
        except MicroBatchError as error:
            return f"refused: {error}"
        return "nothing is left" if summary is None else "they are run again"

    def on_end(process: Process) -> None:
        world.say(f"the letters of {subject.name} are run again: {process.result}")

    return world.processes.spawn(f"letters of {subject.name}", body, machine=world.any_machine(), on_end=on_end)


@move("dead letters are run again", weight=12, topics=True)
def letters_run_again(world: World) -> str | None:
    subject = _first(world)
    if subject is None:
        return None
    run_letters_again(world, subject)
    return f"the dead letters of {subject.name} are to run again"


@move("start-behind --lane dead-letters", weight=8, topics=True)
def starts_behind_letters(world: World) -> str | None:
    """Letters are run again, and the checkpoint is restored from before that: what the topic has of them stays, and the
    lane counts on behind it."""
    from tests.simulator.rest import finish

    subject = whole(world)
    if subject is None or subject is not _first(world) or not is_well(world, subject) or world.disk.trouble:
        return None
    lane = subject.checkpoint().lane(LETTERS)
    if lane.offset_log.ids() != lane.commit_log.ids() or names_a_trap(world, subject):
        return None
    stop_everybody(world)
    world.broker.settle()
    before, told = world.disk.below(subject.folder), told_of(world)
    run_letters_again(world, subject)
    finish(world)
    stop_everybody(world)
    newest = lane.commit_log.latest_id()
    subject.put_in_place(before)
    subject.kept = None  # it is gone for good
    world.told, world.touched = told, True
    if newest == lane.commit_log.latest_id():
        return f"no letters of {subject.name} are run again"
    if world.random.random() < 0.5:
        run_letters_again(world, subject)
        finish(world)
        world.now_ms += 1_000_000
    said = typed_until_it_ends(world, subject, letters_behind())
    first = re.search(r"First .*rewind \S+ --to (-?\d+) --drop-output", str(said.result))
    if first is not None:  # what the table of letters has of the batch
        typed_until_it_ends(world, subject, rewind(int(first[1]), lane=LETTERS))
        said = typed_until_it_ends(world, subject, letters_behind())
    if str(said.result).startswith("refused"):
        raise Broken("a lane of letters cannot count on behind a topic", f"{said.result}")
    return f"letters of {subject.name} were run again as {newest}, which no log knows: {said.result}"


def finish_letters(world: World, subject: Subject, *, tries: int) -> None:
    """A batch of letters that is planned is run until it is committed."""
    from tests.simulator.rest import finish

    for _ in range(tries):
        lane = subject.checkpoint().lane(LETTERS)
        if lane.offset_log.ids() == lane.commit_log.ids():
            return
        world.now_ms += 1_000_000
        said = run_letters_again(world, subject)
        finish(world)
    raise Broken("letters cannot be run again", f"{said.result}")
