"""The commands of a person, as the command line does them, in a process that may die."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.entries import Offset
from airflow_provider_microbatch.checkpoint.key import LETTERS, LIVE, BatchKey
from airflow_provider_microbatch.exceptions import MicroBatchError
from airflow_provider_microbatch.upkeep.commands.adopt import plan_adopt
from airflow_provider_microbatch.upkeep.commands.apply import Applier
from airflow_provider_microbatch.upkeep.commands.copy import go_on, is_done, plan_copy
from airflow_provider_microbatch.upkeep.commands.exchange import plan_export, plan_import
from airflow_provider_microbatch.upkeep.commands.letters_behind import plan_letters_behind
from airflow_provider_microbatch.upkeep.commands.plan import Drafting, Plan
from airflow_provider_microbatch.upkeep.commands.rename_source import plan_add_source, plan_rename_source
from airflow_provider_microbatch.upkeep.commands.repair import plan_repair
from airflow_provider_microbatch.upkeep.commands.rewind import plan_rewind
from airflow_provider_microbatch.upkeep.commands.set_offset import plan_set_offset
from airflow_provider_microbatch.upkeep.commands.start_behind import plan_start_behind
from airflow_provider_microbatch.upkeep.commands.withdraw_clear import plan_withdraw_clear
from tests.simulator.disk import DiskStore
from tests.simulator.expected import REREAD, SET_OFFSET, SKIP
from tests.simulator.processes import Process
from tests.simulator.subject import LEASE_SECONDS, Subject

if TYPE_CHECKING:
    from tests.simulator.world import World

COPY = "copy"

Make = Callable[[Drafting], Plan]


class Command:
    """:param name: as it is typed.
    :param make: makes its plan.
    :param gives_up: what a killed command has left, instead of finishing it.
    :param copies_to: the place that it names beside the checkpoint's.
    :param at: folder of the checkpoint that it is about; None: the pipeline's own.
    :param other_side: the other place of an export or import.
    """

    def __init__(
        self,
        name: str,
        make: Make,
        *,
        gives_up: bool = False,
        copies_to: str | None = None,
        at: str | None = None,
        other_side: str | None = None,
    ) -> None:
        self.name = name
        self.make = make
        self.gives_up = gives_up
        self.copies_to = copies_to
        self.at = at
        self.told = tuple(place for place in (copies_to, other_side) if place is not None)


COMMANDS = (
    *("repair", "rewind", SET_OFFSET, "rename-source", "add-source"),
    *("start-behind", "adopt", "export", "import", COPY),
)
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


def letters_behind() -> Command:
    """Count on behind all batches of dead letters that the table has; all letters of now count as run again."""
    return Command(
        f"start-behind {SKIP} --lane {LETTERS}", lambda drafting: plan_letters_behind(drafting, allow_skip=True)
    )  # fmt: skip


def start_behind() -> Command:
    """Count on behind all that the table has, whoever has published it; what that was made of is read again."""
    return Command(
        f"start-behind {REREAD}", lambda drafting: plan_start_behind(drafting, allow_reread=True)
    )  # fmt: skip


def adopt(key: BatchKey) -> Command:
    """What the table has under the batch's number counts as the batch, if it is made of the same data."""
    return Command(f"adopt {key}", lambda drafting: plan_adopt(drafting, key))


def add_source(name: str) -> Command:
    """The source is a new one, and not the one that has vanished."""
    return Command(f"add-source {name}", lambda drafting: plan_add_source(drafting, name=name))


def export(target: str) -> Command:
    """A copy at ``target``, from which a streaming query could go on."""
    place = f"/disk/{target}".rstrip("/")
    return Command(f"export {place}", lambda drafting: plan_export(drafting, target=place), other_side=place)


def import_(subject: Subject, source: str, *, at: str) -> Command:
    """The pipeline's checkpoint is a copy of ``source``."""
    place, name = f"/disk/{source}".rstrip("/"), subject.name
    return Command(
        f"import {place} --pipeline {name}",
        lambda drafting: plan_import(drafting, source=place, pipeline=name),
        at=at,
        other_side=place,
    )


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
    folder = given.at or (subject.folder if given.copies_to is not None else subject.store().folder)

    def body() -> str:
        store, at_ms, by = DiskStore(world, folder), world.machine_ms(), "person@host"
        engine_of = world.airflow.engine_of
        applier = Applier(
            store=store, engine_of=engine_of, clock_ms=world.machine_ms, told=given.told, typed=given.name
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
            if finished is not None and given.told:
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


def typed_until_it_ends(world: World, subject: Subject, given: Command) -> Process:
    """It may be killed, three times at most, and is typed again once it counts as dead."""
    for left in (*(world.random.choice([10**9, world.random.randrange(1, 300)]) for _ in range(3)), 10**9):
        process = command(world, subject, given)
        while left > 0 and not process.gone:
            threads = world.processes.ready(process)
            if threads:
                world.processes.go_on(threads[0])
                left -= 1
            else:
                world.now_ms += 1000
        if process.gone:
            break
        world.processes.kill(process)
        world.now_ms += 2 * round(LEASE_SECONDS * 1000)
    return process
