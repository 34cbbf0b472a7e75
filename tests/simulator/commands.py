"""The commands of a person: repair, rewind, set-offset, as the command line does them, in a process that may die."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.entries import Offset
from airflow_provider_microbatch.checkpoint.key import LIVE, BatchKey
from airflow_provider_microbatch.exceptions import MicroBatchError
from airflow_provider_microbatch.upkeep.commands.apply import Applier
from airflow_provider_microbatch.upkeep.commands.copy import go_on, is_done, plan_copy
from airflow_provider_microbatch.upkeep.commands.plan import Drafting, Plan
from airflow_provider_microbatch.upkeep.commands.rename_source import plan_rename_source
from airflow_provider_microbatch.upkeep.commands.repair import plan_repair
from airflow_provider_microbatch.upkeep.commands.rewind import plan_rewind
from airflow_provider_microbatch.upkeep.commands.set_offset import plan_set_offset
from airflow_provider_microbatch.upkeep.commands.withdraw_clear import plan_withdraw_clear
from tests.simulator.disk import DiskStore
from tests.simulator.expected import REREAD, SET_OFFSET, SKIP
from tests.simulator.processes import Process
from tests.simulator.subject import Subject

if TYPE_CHECKING:
    from tests.simulator.world import World

COPY = "copy"

Make = Callable[[Drafting], Plan]


class Command:
    """:param name: as it is typed.
    :param make: makes its plan.
    :param gives_up: what a killed command has left, instead of finishing it.
    :param copies_to: the place that it names beside the checkpoint's.
    """

    def __init__(self, name: str, make: Make, *, gives_up: bool = False, copies_to: str | None = None) -> None:
        self.name = name
        self.make = make
        self.gives_up = gives_up
        self.copies_to = copies_to


COMMANDS = ("repair", "rewind", SET_OFFSET, "rename-source", COPY)
"""How the names of all of them begin."""

REPAIR = Command("repair", plan_repair)
GIVE_UP = Command("repair --give-up", plan_repair, gives_up=True)
"""Of what was killed only the command: that a retention is dead nobody here can know."""


def rewind(to: int, *, lane: str = LIVE, drop_output: bool = True) -> Command:
    """Back to batch ``to``, with the output of later ones taken out."""
    return Command(
        f"rewind --to {to}" + (" --drop-output" if drop_output else "") + (f" --lane {lane}" if lane != LIVE else ""),
        lambda drafting: plan_rewind(drafting, lane=lane, to=to, drop_output=drop_output),
    )


def set_offset(source: str, offset: Offset | None, allowed: Collection[str]) -> Command:
    """Have the next live batch begin at ``offset``.

    :param allowed: options that say what may be lost or doubled.
    """

    def make(drafting: Drafting) -> Plan:
        skip, reread = SKIP in allowed, REREAD in allowed
        return plan_set_offset(
            drafting, lane=LIVE, source=source, offset=offset, allow_skip=skip, allow_reread=reread
        )  # fmt: skip

    return Command(" ".join([f"{SET_OFFSET} --source {source} --offset {offset}", *allowed]), make)


def again(subject: Subject) -> Command:
    """What was typed and killed half way, typed once more."""
    left = subject.checkpoint().maintenance.unfinished()
    assert left is not None
    if left.command.startswith(COPY):
        return copy_of(subject)
    return Command(left.command, plan_repair)


def copy_of(subject: Subject) -> Command:
    """Move the checkpoint to where it is to be."""
    assert subject.moves_to is not None, "it moves nowhere"
    target = f"/disk/{subject.moves_to}".rstrip("/")
    return Command(f"{COPY} {target}", lambda drafting: plan_copy(drafting, target=target), copies_to=target)


def withdraw(key: BatchKey) -> Command:
    """Nobody answers the clears of a batch any more."""
    return Command(f"withdraw-clear {key}", lambda drafting: plan_withdraw_clear(drafting, key))


def rename(subject: Subject) -> Command:
    """Say to the checkpoint what the source that is being renamed is called."""
    assert subject.renamed is not None, "nothing is renamed"
    old, new = subject.names[subject.renamed][-2:]
    return Command(f"rename-source {old} {new}", lambda drafting: plan_rename_source(drafting, old=old, new=new))


def is_renamed(subject: Subject) -> bool:
    """Whether the checkpoint knows what the source that is being renamed is called."""
    checkpoint = subject.checkpoint()
    if subject.renamed is None or checkpoint.maintenance.unfinished() is not None:
        return False
    return tuple(subject.names[subject.renamed][-2:]) in checkpoint.names.renames()


def is_half_renamed(subject: Subject) -> bool:
    """Whether a rename has begun that nobody has ended."""
    return subject.checkpoint().names.half() is not None


def command(world: World, subject: Subject, given: Command) -> Process:
    """Start it: finish what was interrupted, plan, apply."""

    # Of a copy always the old place: by that it is known.
    folder = subject.folder if given.copies_to is not None else subject.store().folder

    def body() -> str:
        store, at_ms, by = DiskStore(world, folder), world.machine_ms(), "person@host"
        engine_of, told = world.airflow.engine_of, () if given.copies_to is None else (given.copies_to,)
        applier = Applier(
            store=store, engine_of=engine_of, clock_ms=world.machine_ms, told=told, typed=given.name
        )  # fmt: skip

        def plan() -> Plan:
            drafting = Drafting(store, command=given.name, at_ms=at_ms, by=by, sources=subject.sources)
            return given.make(drafting)

        try:
            maintenance = Checkpoint(store).maintenance
            moved = maintenance.places.moved() if given.copies_to is not None else None
            if moved is not None and maintenance.unfinished() is None:
                if not is_done(moved):
                    go_on(store, moved, engine_of=engine_of)
                return "it has moved"
            if given.gives_up:
                applier.give_up(by=by)
            finished = applier.finish()
            if finished is not None and given.copies_to is not None:
                return "it is finished"
            shown = plan()
            if shown.steps:
                applier.apply(plan, by=by, shown=shown)
        except MicroBatchError as error:
            return f"refused: {error}"
        return f"{len(shown.steps)} steps"

    def on_end(process: Process) -> None:
        world.touched = True  # a position that it has set is taken down before retention removes the entry
        world.say(f"{given.name} of {subject.name} ends: {process.result}")

    return world.processes.spawn(
        f"{given.name} of {subject.name}", body, machine=world.any_machine(), on_end=on_end
    )  # fmt: skip
