"""Compactions of tables, beside everything else that happens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_microbatch.exceptions import MicroBatchError
from airflow_provider_microbatch.sinks import SinkContext
from airflow_provider_microbatch.upkeep.compaction import compact
from tests.simulator.moves import move
from tests.simulator.processes import Process

if TYPE_CHECKING:
    from tests.simulator.world import World


@move("a compaction", weight=8)
def compacts(world: World) -> str | None:
    """Of all that is in the table; it may die or sleep, and another one may begin meanwhile."""
    subject = world.random.choice(list(world.subjects.values()))
    pipeline = subject.pipeline()

    def body() -> str:
        try:
            (report, *_) = compact(subject.named_checkpoint(), sinks=[pipeline.sink.open(SinkContext())])
        except MicroBatchError as error:
            return f"refused: {error}"
        told = report.refused or report.failed or f"{report.done.files_before} files → {report.done.files_after}"
        world.touched = True
        return f"{told}; left {sorted(report.done.left)}"

    def on_end(process: Process) -> None:
        world.say(f"the compaction of {subject.name} ends: {process.result}")

    world.processes.spawn(f"compaction of {subject.name}", body, machine=world.any_machine(), on_end=on_end)
    return f"a compaction of {subject.name} begins"
