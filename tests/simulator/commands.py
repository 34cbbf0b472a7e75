"""The commands of a person: repair, rewind, set-offset, as the command line does them, in a process that may die."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from airflow_provider_microbatch.exceptions import MicroBatchError
from airflow_provider_microbatch.execution.maintenance.apply import Applier
from airflow_provider_microbatch.execution.maintenance.plan import Drafting, Plan
from airflow_provider_microbatch.execution.maintenance.repair import plan_repair
from airflow_provider_microbatch.execution.maintenance.rewind import plan_rewind
from tests.simulator.processes import Process
from tests.simulator.subject import Subject

if TYPE_CHECKING:
    from tests.simulator.world import World

Make = Callable[[Drafting], Plan]


class Command:
    """:param name: as it is typed.
    :param make: makes its plan.
    """

    def __init__(self, name: str, make: Make) -> None:
        self.name = name
        self.make = make


REPAIR = Command("repair", plan_repair)


def rewind(to: int) -> Command:
    """Back to batch ``to``, with the output of later ones taken out."""
    return Command(
        f"rewind --to {to} --drop-output", lambda drafting: plan_rewind(drafting, lane="live", to=to, drop_output=True)
    )


def command(world: World, subject: Subject, given: Command) -> Process:
    """Start it: finish what was interrupted, plan, apply."""

    def body() -> str:
        store, at_ms, by = subject.store(), world.machine_ms(), "person@host"
        applier = Applier(store=store, engine_of=world.airflow.engine_of, clock_ms=world.machine_ms)

        def plan() -> Plan:
            drafting = Drafting(store, command=given.name, at_ms=at_ms, by=by, sources=subject.sources)
            return given.make(drafting)

        try:
            applier.finish()
            shown = plan()
            if shown.steps:
                applier.apply(plan, by=by, shown=shown)
        except MicroBatchError as error:
            return f"refused: {error}"
        return f"{len(shown.steps)} steps"

    def on_end(process: Process) -> None:
        world.say(f"{given.name} of {subject.name} ends: {process.result}")

    return world.processes.spawn(
        f"{given.name} of {subject.name}", body, machine=world.any_machine(), on_end=on_end
    )  # fmt: skip
