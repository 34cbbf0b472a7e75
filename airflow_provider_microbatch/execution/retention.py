"""Retention: the logs keep the newest batches, and nothing of an attempt that is unfinished goes. And compaction."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from shlex import quote
from typing import Any

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.horizons import PACKED, REMOVED
from airflow_provider_microbatch.checkpoint.key import LETTERS, LIVE, BatchKey, span_of
from airflow_provider_microbatch.checkpoint.replays import Replay
from airflow_provider_microbatch.checkpoint.verify import Finding
from airflow_provider_microbatch.exceptions import (
    CheckpointError,
    CorruptEntryError,
    DefinitionError,
    MaintenanceError,
    MicroBatchError,
)
from airflow_provider_microbatch.execution.letters_taken import first_still_told
from airflow_provider_microbatch.execution.refused_plan import refused_plan
from airflow_provider_microbatch.execution.set_aside import oldest_aside
from airflow_provider_microbatch.execution.stateful import is_overtaken
from airflow_provider_microbatch.execution.status import definition_if_there
from airflow_provider_microbatch.sinks import Sink, SinkContext

log = logging.getLogger(__name__)

MARK_SECONDS = 60 * 60.0
"""Seconds that a mark waits for the end of an attempt that it gives the reason for. The mark may be older than the
attempt: a user can stop a task that is still planning."""

FILES_KEPT = 1_000
"""Number of the newest entries that stay files of their own. Spark, should it take over, wants a hundred."""


def that_grow(lanes: Iterable[str]) -> list[str]:
    """Those of the lanes that a batch is added to again and again. There is one for each data interval there ever was,
    and it has one batch for good: to look at each for what is old would make a janitor's work as long as the history.
    """
    return [lane for lane in lanes if span_of(lane) is None]


def compact_logs(checkpoint: Checkpoint, *, dry_run: bool = False) -> list[str]:
    """Move old entries of the lanes that grow into segments, so that no folder of a log grows for ever.

    :return: what was moved, or would be, in words.
    """
    done: list[str] = []
    command = _newest_command(checkpoint)
    if command is None:
        return done
    for lane in map(checkpoint.lane, that_grow(checkpoint.lanes())):
        newest = lane.commit_log.latest_id()
        if newest is None or newest < FILES_KEPT:
            continue
        before = newest - FILES_KEPT + 1
        logs = (lane.offset_log, lane.commit_log)
        could = {entries: sum(last - first + 1 for first, last in entries.compactable(before)) for entries in logs}
        wanted = not dry_run and any(could.values())
        with _announced(checkpoint, lane.name, before, PACKED, command=command, wanted=wanted) as goes_on:
            moved = could if dry_run else {entries: entries.compact(before) for entries in logs if goes_on}
        if goes_on or not (dry_run or any(could.values())):
            checkpoint.horizons.passed(lane.name, before, PACKED)
        done += [f"{count} entries of {entries.location}" for entries, count in moved.items() if count]
    return done


@contextmanager
def _announced(
    checkpoint: Checkpoint, lane: str, before: int, doing: str, *, command: int, wanted: bool
) -> Iterator[Callable[[], bool] | None]:
    """Let every command know, while the block runs, that entries below ``before`` go.

    :param doing: ``REMOVED`` or ``PACKED``.
    :param command: number of the newest command before the entries to go were looked up.
    :param wanted: False to announce nothing.
    :return: a function that tells whether the entries still may go, to be asked right before each removal; None if none
        may: a command has been at the checkpoint since.
    """
    if not wanted:
        yield None
        return
    name = checkpoint.horizons.announce(lane, before, doing)
    # After the announcement: a command that began before is seen here, one that begins later sees the announcement. A
    # process that dies in between does not take the announcement back: it may only sleep, and go on.
    goes_on = _newest_command(checkpoint) == command
    if not goes_on:
        log.info("A command has changed the logs: what is old in lane %s is left to the next time", lane)
    try:
        yield partial(checkpoint.horizons.stands, lane, name) if goes_on else None
    except MicroBatchError:
        with suppress(CheckpointError):
            checkpoint.horizons.forget(lane, name)
        raise
    checkpoint.horizons.forget(lane, name)


def _newest_command(checkpoint: Checkpoint) -> int | None:
    """The number of the newest command; None while it is at the checkpoint."""
    try:
        return checkpoint.maintenance.check_none()
    except MaintenanceError:
        return None


def retained(checkpoint: Checkpoint, lane: str) -> int | None:
    """``min_batches_to_retain`` of the pipeline as the lane's newest attempt ran it; None keeps all."""
    ids = checkpoint.attempts.epochs.ids(lane)
    for attempt in reversed(checkpoint.attempts.all(BatchKey(lane, ids[-1])) if ids else []):
        arguments = definition_if_there(checkpoint, attempt)
        if arguments is not None:
            kept = arguments.get("min_batches_to_retain")
            return kept if isinstance(kept, int) and kept >= 2 else None  # as Pipeline has it
    return None


def apply_retention(checkpoint: Checkpoint, *, kept: int | None, lane: str = LIVE, dry_run: bool = False) -> list[str]:
    """Remove the batches before the newest ``kept`` committed ones of the lane. A batch that is set aside or that a
    clear waits for, and all after it, stay until it is replayed: the log has no gaps, and the range must not be lost. A
    batch of dead letters stays, with all after it, as long as one whose letters it has.

    :param kept: how many; None keeps all.
    :return: what was removed, or would be, in words.
    """
    if kept is None:
        return []
    logs = checkpoint.lane(lane)
    newest = logs.commit_log.latest_id()
    if newest is None or newest < kept:
        return []
    command = _newest_command(checkpoint)
    if command is None:
        return []
    # Read once more, after that. Commits may be there whose offsets are gone: the last offsets are the position.
    ends = [entries.latest_id() for entries in (logs.offset_log, logs.commit_log)]
    newest = min(-1 if end is None else end for end in ends)
    before = min([newest - kept + 1, *(key.id for key, _ in checkpoint.leases.unfinished(lane))])
    waiting = next((key.id for key in _asked_for(checkpoint, lane, below=before)), None)
    if waiting is not None:
        before = waiting
        log.info(
            "Retention keeps %s/%s and all after it: a clear of it waits for its answer (`microbatch check` says more)",
            lane,
            waiting,
        )
    aside = oldest_aside(checkpoint, lane, below=before)
    if aside is not None:
        before = aside
        log.warning("Retention keeps %s/%s and all after it: it is set aside. Clear its task to run it.", lane, aside)
    # With two before it: a rewind that takes it out ends at a batch that has one before it.
    told = first_still_told(checkpoint, below=before + 2) if lane == LETTERS else None
    before = before if told is None else min(before, max(told - 2, 0))
    before = min(before, logs.offset_log.purgeable(before), logs.commit_log.purgeable(before))
    old = [number for number in logs.offset_log.ids() if number < before]
    stale = [number for number in checkpoint.attempts.epochs.ids(lane) if number < before]
    if not old and not stale:
        return []
    with _announced(checkpoint, lane, before, REMOVED, command=command, wanted=not dry_run) as goes_on:
        if goes_on is not None:
            logs.offset_log.purge(before, may_go=goes_on)
            logs.commit_log.purge(before, may_go=goes_on)
            if not goes_on():
                log.warning("Retention of lane %s was given up by a person: what it has not removed stays", lane)
                return []
            key = BatchKey(lane, before)
            checkpoint.replays.purge(key)
            checkpoint.deliveries.purge(key)
            checkpoint.attempts.purge(key)
            checkpoint.resolutions.purge(key)
            checkpoint.subtasks.purge(key)
            checkpoint.horizons.passed(lane, before, REMOVED, PACKED)
    return [f"log entries of {len(set(old) | set(stale))} batches before {lane}/{before}"] if goes_on or dry_run else []


def find_held(checkpoint: Checkpoint) -> list[Finding]:
    """A finding for each clear that alone keeps a batch from retention: the log grows while the clear waits."""
    keys = [key for lane in checkpoint.lanes() for key in held(checkpoint, lane)]
    # A clear that was answered since has no finding.
    waiting = ((key, next(iter(checkpoint.replays.pending(key)), None)) for key in keys)
    return [_finding(checkpoint, key, request) for key, request in waiting if request is not None]


def held(checkpoint: Checkpoint, lane: str) -> list[BatchKey]:
    """The batches of the lane that only a clear keeps, ascending."""
    kept, newest = retained(checkpoint, lane), checkpoint.lane(lane).commit_log.latest_id()
    return [] if kept is None or newest is None else list(_asked_for(checkpoint, lane, below=newest - kept + 1))


def _finding(checkpoint: Checkpoint, key: BatchKey, request: Replay) -> Finding:
    by = "" if request.run is None else f" of run {request.run.run_id!r} of DAG {request.run.dag_id!r}"
    withdraw = f"`microbatch withdraw-clear {quote(checkpoint.location)} {key}`"
    repair = f"Clear the task again, and let it run. If the run was deleted: {withdraw}."
    with suppress(CorruptEntryError):  # which is another finding
        if is_overtaken(checkpoint, key):
            repair = f"{withdraw}: later batches have gone on from the batch's state, and no clear of it is accepted."
    return Finding(
        kind="clear",
        where=checkpoint.replays.epochs.where(key, request.epoch),
        message=f"a clear{by} waits for its answer, and retention keeps batch {key} and all after it until then.",
        repair=repair,
    )


def _asked_for(checkpoint: Checkpoint, lane: str, *, below: int) -> Iterator[BatchKey]:
    """Batches that a clear waits for, ascending, as far as they are kept. A clear that has looked just before retention
    took the batch asks for one that no run can make again."""
    replays, offsets = checkpoint.replays, checkpoint.lane(lane).offset_log
    asked = [number for number in replays.epochs.ids(lane) if number < below]
    kept = set(offsets.ids()) if asked else set()
    keys = (BatchKey(lane, number) for number in asked if number in kept)
    return (key for key in keys if replays.pending(key))


def purge_definitions(checkpoint: Checkpoint, *, dry_run: bool = False) -> list[str]:
    """Remove the pipeline definitions that no attempt on record names any more, nor the plan of a lane that was refused
    last, as long as no batch has been planned since.

    Nothing is done while an attempt is unfinished, nor if a lane that grows keeps all its batches: no definition is
    ever free there. The attempts of data intervals, which stay, are asked only where no other lane needs all. A run
    that begins at this moment may want a definition that is removed. Its lease is older than its look at the
    definition: if no lease is seen after the removal, no run has lost the definition; else it is put back.

    :return: what was removed, or would be, in words.
    """
    definitions, attempts = checkpoint.definitions, checkpoint.attempts
    names = definitions.names()
    if len(names) < 2:
        return []
    lanes = attempts.epochs.lanes()
    growing = that_grow(lanes)
    if (
        not growing
        or any(retained(checkpoint, lane) is None for lane in growing)
        or checkpoint.leases.unfinished()
    ):  # fmt: skip
        return []
    needed = set[str | None]()
    for lane in [*growing, *(lane for lane in lanes if lane not in growing)]:
        keys = (BatchKey(lane, number) for number in attempts.epochs.ids(lane))
        needed |= {attempt.definition for key in keys for attempt in attempts.all(key)}
        if needed.issuperset(names):
            return []
    for lane in lanes:
        with suppress(CorruptEntryError):  # of which `check` tells
            refused = refused_plan(checkpoint, lane)
            needed |= set() if refused is None else {refused.definition}
    kept_sinks = [definitions.sink(name) for name in names if name in needed]
    removed = []
    for name in names:
        definition = definitions.get(name)
        if name in needed or definition is None:
            continue
        if definitions.sink(name) not in kept_sinks and not _is_empty(definitions.sink(name), checkpoint):
            continue
        if not dry_run:
            definitions.forget(name)
            if checkpoint.leases.unfinished():
                definitions.put(definition)
                break
        removed.append(f"pipeline definition {name}")
    return removed


def purge_marks(checkpoint: Checkpoint, *, older_seconds: float = MARK_SECONDS, dry_run: bool = False) -> list[str]:
    """Remove the marks older than ``older_seconds`` that concern no unfinished attempt.

    :return: what was removed, or would be, in words.
    """
    marks = checkpoint.marks
    aged = [name for name in marks.names() if marks.age_seconds(name) > older_seconds]
    if not aged:
        return []
    found = [checkpoint.attempts.get(key, epoch) for key, epoch in checkpoint.leases.unfinished()]
    unfinished = [attempt for attempt in found if attempt is not None]
    needed = {name for name, mark in marks.all().items() if any(mark.concerns(attempt) for attempt in unfinished)}
    old = [name for name in aged if name not in needed]
    if not dry_run:
        for name in old:
            marks.forget(name)
    return [f"{len(old)} marks of Airflow's events"] if old else []


def _is_empty(recorded: Mapping[str, Any] | None, checkpoint: Checkpoint) -> bool:
    """Whether the janitor has nothing to look for in the sink any more; False for a sink that cannot be loaded here, or
    is away, so that its definition stays."""
    if recorded is None:
        return True
    try:
        sink = Sink.from_dict(recorded).open(SinkContext())
    except DefinitionError:
        return False
    if sink.seems_away(checkpoint.tables.following_moves) is not None:
        return False
    identity = checkpoint.identity()
    own = identity.query_id if identity is not None else ""
    return not (
        sink.stages(own)
        or sink.stages("")
        or sink.drop_replaced(own, older_seconds=0, dry_run=True)
        or sink.drop_fences(own, older_seconds=0, dry_run=True)
        or (sink.subtasks is not None and sink.subtasks.kept(own))
    )
