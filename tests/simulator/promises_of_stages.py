"""No stage is without an owner, looked at after every step: as long as an attempt's stage is there, so is its lease, by
which every process finds what is unfinished."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.sinks.file import FileSink
from tests.simulator.subject import Subject
from tests.simulator.world import Broken
from tests.support.whose import stages_of

if TYPE_CHECKING:
    from tests.simulator.world import World

Stages = Set[tuple[BatchKey, int]]
"""Batch and epoch of each."""


@dataclass
class Owners:
    """What was seen of a pipeline's stages when they were last looked at.

    :param writing: attempts whose job ran then.
    :param late: stages that a job wrote after its attempt had ended: it went on after its end, and nobody is told of
        such a stage before a janitor looks into the table.
    """

    writing: Stages = frozenset()
    late: set[tuple[BatchKey, int]] = field(default_factory=set)


def look_at_stages(world: World, subject: Subject) -> None:
    """Whoever ends an attempt drops its stage before he lets its lease go. An attempt that has no entry is not looked
    at: a backup of before it was restored, or its batch is older than the logs. Nor is a table that copies what was
    staged, or lists as a stage what a replay puts out: a publisher that dies behind the publish leaves the copy there,
    and who finds the batch in knows nothing of it, but a janitor does."""
    if not isinstance(subject.pipeline().sink, FileSink):
        return
    seen, checkpoint = world.owners.setdefault(subject.name, Owners()), subject.checkpoint()
    stages, writing = set(stages_of(subject.pipeline().sink, checkpoint)), _writing(world, subject)
    unowned = stages.difference(checkpoint.leases.unfinished())
    seen.late = unowned & (seen.late | seen.writing | writing)
    seen.writing = writing
    for key, epoch in sorted(unowned - seen.late):
        if checkpoint.attempts.get(key, epoch) is not None:
            raise Broken("a stage without an owner", f"{key} attempt {epoch} of {subject.name} has no lease")


def _writing(world: World, subject: Subject) -> set[tuple[BatchKey, int]]:
    """Attempts whose job runs. It is looked at when one begins, so each job is seen by one look at least."""
    whose = (tag.rsplit("-", 2) for tag, _ in world.cluster.alive() if tag.startswith(f"{subject.name}-"))
    return {(BatchKey.parse(name.removeprefix(f"{subject.name}-")), int(epoch)) for name, epoch, _ in whose}
