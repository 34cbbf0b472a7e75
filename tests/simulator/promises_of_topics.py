"""What a topic promises, beyond what every table does: looked at by a reader of committed records who has kept up."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from airflow_provider_microbatch.checkpoint.key import BatchKey
from tests.simulator.subject import Subject
from tests.simulator.systems import FilesIntoTopic, Published
from tests.simulator.world import Broken

if TYPE_CHECKING:
    from tests.simulator.world import World


def look_at_topic(world: World, subject: Subject) -> None:
    """Each attempt is in whole and once. Where a batch is in twice, somebody has cleared it, the topic takes replays,
    and each later one says which it replaces."""
    system = subject.system
    if not isinstance(system, FilesIntoTopic):
        return
    batches = defaultdict[tuple[str, BatchKey], list[Published]](list)
    for one in system.attempts():
        batches[one.checkpoint, one.key].append(one)
    _note_runs(subject)
    for (_, key), attempts in batches.items():
        _look_at_batch(world, subject, key, sorted(attempts, key=lambda one: one.epoch), on_replay=system.on_replay)


def _note_runs(subject: Subject) -> None:
    """Take down whose batches are: retention removes the entries that say so."""
    if subject.kept is not None:
        return
    checkpoint = subject.checkpoint()
    for name in checkpoint.lanes():
        lane = checkpoint.lane(name)
        for number in lane.offset_log.ids():
            entries = lane.offset_log.get(number), lane.commit_log.get(number)
            runs = {entry.run.run_id for entry in entries if entry is not None and entry.run is not None}
            subject.runs_of.setdefault(BatchKey(name, number), set()).update(runs)


def _look_at_batch(world: World, subject: Subject, key: BatchKey, attempts: list[Published], *, on_replay: str) -> None:
    told = f"batch {key} of {subject.name} is in by attempts {[one.epoch for one in attempts]}"
    for before, one in zip([None, *attempts], attempts, strict=False):
        if list(one.numbers) != list(range(len(one.numbers))):
            raise Broken("an attempt is not in once, and whole", f"{told}: attempt {one.epoch} has rows {one.numbers}")
        if one.replaces != ({str(before.epoch)} if before else set()):
            raise Broken("a topic has a batch twice, and does not say so", f"{told}: {one.epoch}: {one.replaces}")
        if before is not None and _ids(before) != _ids(one):
            raise Broken("a replay has other rows", f"{told}: {_ids(before)}, {_ids(one)}")
    cleared = sum(world.airflow.clears[subject.name, run_id] for run_id in subject.runs_of.get(key, ()))
    if subject.options.on_overlap == "replay":
        # A run of a data interval has the batches that overlap it made again, and so has each of its clears.
        asking = {run.run_id for run in world.airflow.runs if run.subject is subject and run.interval is not None}
        cleared += sum(1 + world.airflow.clears[subject.name, run_id] for run_id in asking)
    if len(attempts) > 1 + (cleared if on_replay == "append" else 0):
        raise Broken("a topic has a batch once more than was asked for", f"{told}: it was cleared {cleared} times")


def _ids(one: Published) -> list[int]:
    return sorted(row["id"] for row in one.rows)
