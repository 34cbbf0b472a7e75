"""Verify a whole checkpoint: every invariant of the logs on disk, for ``microbatch check``. Reads only."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, TypeVar

from airflow_provider_microbatch.checkpoint.by_hand import is_position
from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.entries import CommitEntry, OffsetEntry
from airflow_provider_microbatch.checkpoint.epochs import Epochs
from airflow_provider_microbatch.checkpoint.key import LIVE, BatchKey
from airflow_provider_microbatch.checkpoint.lane import Lane, breaks, command, contradiction, gap_message
from airflow_provider_microbatch.checkpoint.log import MetadataLog
from airflow_provider_microbatch.checkpoint.source_names import RENAMED
from airflow_provider_microbatch.exceptions import BrokenLogError, CheckpointError

E = TypeVar("E", OffsetEntry, CommitEntry)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Something that is wrong.

    :param kind: ``metadata``, ``identity``, ``gap``, ``contradiction``, ``unreadable``, ``chain``, ``attempt``,
        ``source``, ``source log``, ``rename``, ``replay``, ``clear``, ``left``, ``standing``, ``unread``, ``hook``,
        ``set aside``, ``file system``, ``lane``, ``table``, ``refused plan``, ``in force``, ``state``, ``subtask`` or
        ``maintenance``.
    :param where: the file or folder.
    :param message: what is wrong.
    :param repair: what to do about it.
    """

    kind: str
    where: str
    message: str
    repair: str


_Told = Callable[[str, str, object], Finding]
"""Makes a finding of the checkpoint, of its kind, where it is, and what is wrong."""

_RESTORE = "See what {dry_run} can do without a backup; else restore the file from one."
_REPAIRS = {
    "metadata": "Restore the file, or have {repair} write it anew.",
    "contradiction": "Follow the message; {dry_run} asks the sink. Nothing is planned before.",
    "chain": "Do not plan on. Compare the two batches with sink and source; restore the entry that is wrong, or "
    "rewind to a batch before it.",
    "attempt": "{repair} puts another entry in its place, which fences as this one did.",
    "file system": "Stop the pipeline, copy the folder as it is, and have the pipeline name the new place.",
    "hook": "Do by hand what it was to do, then delete this file: nobody calls the hook again.",
    "lane": "Look who put it there, and move it away. Runs and commands pass it over.",
    "table": "{repair} moves it away: the table tells its id again. Mount the table first, if it is not.",
    "refused plan": "{repair} moves it away: the next plan that is refused is recorded anew.",
    "in force": "Let the pipeline run: it is written anew, also where the run is refused or finds nothing new.",
    "subtask": "{repair} moves it away: its split is read again.",
    "rename": "{repair} gives the source's files their old name back; then it can be renamed again.",
    "maintenance": "Wait until it has ended; if it was killed, follow the message: by that it is finished first.",
    "replay": "{repair} puts a request in its place that is answered; clear the run to ask again.",
}


def verify_all(checkpoint: Checkpoint) -> list[Finding]:
    """Everything that is wrong with the checkpoint; empty if all is well.

    :raises CheckpointError: if the storage itself cannot be read.
    """
    told = partial(_finding, checkpoint)
    try:
        identity = checkpoint.identity()
    except CheckpointError as error:
        kind = "metadata" if isinstance(error, BrokenLogError) else "identity"
        return [told(kind, checkpoint.location, error)]
    findings: list[Finding] = []
    planned: dict[str, set[int]] = {}
    for name in checkpoint.lanes():
        lane = checkpoint.lane(name)
        planned[name] = set(lane.offset_log.ids())
        findings += _verify_lane(lane, told, owner=identity.pipeline if identity else None)
    findings += [told("lane", where, "it lies among the lanes and is none.") for where in checkpoint.no_lanes()]
    findings += [told("table", checkpoint.tables.where(name), error) for name, error in checkpoint.tables.unreadable()]
    refused = checkpoint.refused_plans
    findings += [told("refused plan", refused.where(lane), error) for lane, error in refused.unreadable()]
    findings += _verify_in_force(checkpoint)
    findings += _verify_names(checkpoint)
    findings += [
        told("subtask", f"{checkpoint.subtasks.location}/{path}", reason)
        for key in checkpoint.subtasks.batches()
        for path, reason in checkpoint.subtasks.unreadable(key)
    ]
    attempts, replays = checkpoint.attempts, checkpoint.replays
    findings += _verify_epochs("attempt", told, attempts.epochs, planned, attempts.get, attempts.ended)
    findings += _verify_epochs("replay", told, replays.epochs, planned, replays.get, replays.completed)
    return findings


def _verify_in_force(checkpoint: Checkpoint) -> Iterator[Finding]:
    try:
        checkpoint.sinks_in_force.get()
    except CheckpointError as error:
        yield _finding(checkpoint, "in force", checkpoint.sinks_in_force.where(), error)


def _verify_names(checkpoint: Checkpoint) -> Iterator[Finding]:
    try:
        half = checkpoint.names.half()
    except CheckpointError as error:
        yield _finding(checkpoint, "unreadable", f"{checkpoint.location}/{RENAMED}", error)
        return
    if half is not None:
        yield _finding(checkpoint, "rename", f"{checkpoint.location}/{half.path}", half.message(checkpoint.location))


def find_unfinished(checkpoint: Checkpoint) -> list[Finding]:
    """The command that has begun to change the checkpoint and has not ended; empty if there is none."""
    try:
        checkpoint.maintenance.check_none()
    except CheckpointError as error:
        return [_finding(checkpoint, "maintenance", checkpoint.location, error)]
    return []


def find_unfit(checkpoint: Checkpoint) -> list[Finding]:
    """A finding if the checkpoint lies where no checkpoint should."""
    reason = checkpoint.unfit()
    return [] if reason is None else [_finding(checkpoint, "file system", checkpoint.location, reason)]


def find_given_up(checkpoint: Checkpoint) -> list[Finding]:
    """Job status hooks that could not be told how an attempt ended, however often they were called."""
    deliveries = checkpoint.deliveries
    told = partial(_finding, checkpoint, "hook")
    return [told(one.where, one) for key in deliveries.batches() for one in deliveries.given_up(key)]


def _verify_lane(lane: Lane, told: _Told, *, owner: str | None) -> Iterator[Finding]:
    offsets, commits = lane.offset_log, lane.commit_log
    problem = contradiction(lane, offsets.latest_id(), commits.latest_id())
    if problem is not None:
        yield told("contradiction", offsets.location, problem)
    offset_ids, commit_ids = offsets.ids(), commits.ids()
    if len(offset_ids) == 1 and offset_ids[0] > 0:
        text = gap_message(lane, offsets, offset_ids[0] - 1, found=offset_ids[0])
        yield told("gap", offsets.where(offset_ids[0] - 1), text)
    yield from _verify_contiguous(lane, told, offsets, offset_ids)
    yield from _verify_contiguous(lane, told, commits, commit_ids)
    # The first entry that is kept may lack its commit: it only says where the next batch starts.
    if offset_ids and commit_ids and commit_ids[0] > offset_ids[0] + (offset_ids[0] > 0):
        text = gap_message(lane, commits, commit_ids[0] - 1, found=commit_ids[0])
        yield told("gap", commits.where(commit_ids[0] - 1), text)
    entries: dict[int, OffsetEntry] = {}
    for number in offset_ids:
        entry = yield from _read(told, offsets, number)
        if entry is not None:
            entries[number] = entry
    for number in commit_ids:
        commit = yield from _read(told, commits, number)
        if commit is not None and number in entries and lane.commits_another(number, commit):
            text = f"it was written for another plan of batch {number} than is in the offset log."
            yield told("contradiction", commits.where(number), text)
    newest = entries.get(offset_ids[-1]) if offset_ids else None
    if newest is not None and is_position(newest) and offset_ids[-1] not in commit_ids:
        text = "it sets the position by hand and is not committed: the command was given up half way."
        yield told("contradiction", offsets.where(offset_ids[-1]), text)
    for number, entry in entries.items():
        if owner is not None and entry.pipeline not in (None, owner):
            text = f"batch {number} was planned by pipeline {entry.pipeline!r}, the checkpoint is {owner!r}'s."
            yield told("identity", offsets.where(number), text)
        if entry.unresolved and (number in commit_ids or number < offset_ids[-1]):
            text = f"where batch {number} ends in source {', '.join(entry.unresolved)} is not on record any more."
            yield told("gap", offsets.where(number), text)
        before = entries.get(number - 1)
        if before is not None:
            yield from _verify_chain(told, offsets.where(number), number, before, entry, entries.get(number + 1))


def _verify_contiguous(lane: Lane, told: _Told, log: MetadataLog[Any], ids: list[int]) -> Iterator[Finding]:
    for lower, upper in pairwise(ids):
        for missing in range(lower + 1, upper):
            yield told("gap", log.where(missing), gap_message(lane, log, missing, found=upper))


def _read(told: _Told, log: MetadataLog[E], number: int) -> Generator[Finding, None, E | None]:
    try:
        return log.get(number)
    except CheckpointError as error:
        yield told("unreadable", log.where(number), error)
        return None


def _verify_chain(
    told: _Told, where: str, number: int, before: OffsetEntry, entry: OffsetEntry, after: OffsetEntry | None
) -> Iterator[Finding]:
    """Each range begins where the one before ended, and no position gets lost."""
    for text in breaks(number, before, entry):
        yield told("chain", where, text)
    for name, end in before.ends.items():
        if end is not None and name not in entry.ends and entry.starts.get(name, end) == end:
            # Spark finds a source again that one entry lacks; this package's entries must name every source ever seen.
            by_us = entry.pipeline is not None
            if by_us or (after is not None and name not in after.ends):
                text = f"batch {number} does not carry the position {end} of source {name!r} forward: it would be lost."
                yield told("chain", where, text)
    for name in entry.starts:
        if name not in entry.ends:
            yield told("chain", where, f"batch {number} has a start of source {name!r} and no end.")


def _verify_epochs(
    kind: str,
    told: _Told,
    epochs: Epochs,
    planned: dict[str, set[int]],
    get: Callable[[BatchKey, int], object],
    ended: Callable[[BatchKey, int], object],
) -> Iterator[Finding]:
    for lane in epochs.lanes():
        lowest = min(planned.get(lane, ()), default=0)
        for number in epochs.ids(lane):
            key = BatchKey(lane, number)
            found = epochs.all(key)
            # Entries of batches that retention removed from the log may linger here: they are purged after the log,
            # with a crash in between. Those of a rewound batch stay, ended: an epoch is never given out twice.
            rewound = bool(found) and found[-1] in epochs.ends(key)
            if found and not rewound and number not in planned.get(lane, ()) and number >= lowest:
                text = f"{kind} of batch {key}, which is not in the offset log of lane {lane!r}."
                yield told(kind, epochs.where(key, found[-1]), text)
            if found != list(range(1, len(found) + 1)):
                text = f"the {kind}s of batch {key} are {found}; their epochs should count from 1 without a gap."
                yield told(kind, epochs.where(key, found[-1] if found else 1), text)
            for epoch in sorted({*found, *epochs.ends(key)}):
                if epoch not in found:
                    yield told(kind, epochs.where(key, epoch), f"{kind} {epoch} of batch {key} ended, never began.")
                for read in (get, ended):
                    try:
                        read(key, epoch)
                    except CheckpointError as error:
                        yield told(kind, epochs.where(key, epoch), error)


def _finding(checkpoint: Checkpoint, kind: str, where: str, message: object) -> Finding:
    lane = checkpoint.lane(LIVE)
    commands = {"repair": command(lane, "repair"), "dry_run": command(lane, "repair --dry-run")}
    return Finding(kind=kind, where=where, message=str(message), repair=_REPAIRS.get(kind, _RESTORE).format(**commands))
