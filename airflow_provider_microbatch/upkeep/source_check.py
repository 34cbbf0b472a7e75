"""Checks whether the sources' own logs can still tell what the batches have read, for ``microbatch check`` and
``repair``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.entries import Offset
from airflow_provider_microbatch.checkpoint.key import LIVE, BatchKey
from airflow_provider_microbatch.checkpoint.lane import command, plan_given_up
from airflow_provider_microbatch.checkpoint.verify import Finding
from airflow_provider_microbatch.exceptions import CheckpointError, DefinitionError, SinkError, SourceError
from airflow_provider_microbatch.execution.intervals import read_only_by, taken_by, without_batch
from airflow_provider_microbatch.execution.left import left_in
from airflow_provider_microbatch.execution.planned import load_batch
from airflow_provider_microbatch.sources import OpenSource
from airflow_provider_microbatch.sources.ways_on import TellsMadeAgain, TellsWaiting
from airflow_provider_microbatch.upkeep.commands.site import Recorded
from airflow_provider_microbatch.upkeep.commands.state_behind import newest_to_go_back_to


def check_sources(checkpoint: Checkpoint) -> list[Finding]:
    """Findings about damage to the sources' own logs, one finding a source, with the ways on. A source that cannot be
    loaded here is left out."""
    found = []
    try:
        recorded = Recorded(checkpoint)
        for name in recorded.source_names():
            source = recorded.source(name, lane=LIVE)
            if source is not None:
                found += _findings(checkpoint, recorded, source, name)
        for name, source in recorded.other_sources():
            found += [one for one in _forgotten_by_another(checkpoint, source, name) if one not in found]
    except (CheckpointError, DefinitionError):
        pass  # other checks report errors in the batches' logs and in definitions
    return found


def find_without_batch(checkpoint: Checkpoint) -> list[Finding]:
    """A finding for each data interval that has taken data of a source and has no batch of it: no run is red, and no
    other lane reads that data. A source that cannot be loaded or read here is left out."""
    found = dict[str, Finding]()
    asked = set[tuple[str, type[OpenSource]]]()
    with suppress(CheckpointError, DefinitionError):  # other checks report these
        recorded = Recorded(checkpoint)
        opened = ((name, recorded.source(name, lane=LIVE)) for name in recorded.source_names())
        for name, source in (*opened, *recorded.other_sources()):
            # What was taken is on record by the source's name, whatever else its definitions of before had in them.
            if source is None or (name, type(source)) in asked:
                continue
            with suppress(CheckpointError, SourceError):
                taken = taken_by(source)
                asked.add((name, type(source)))
                for lane in without_batch(checkpoint, taken):
                    found.setdefault(
                        lane,
                        Finding(
                            kind="left",
                            where=checkpoint.lane(lane).offset_log.location,
                            message=f"data of source {name!r} was taken for batch {BatchKey(lane, 0)}, which is not in "
                            "the logs, unless a run plans it right now. No other lane reads it.",
                            repair=read_only_by(lane),
                        ),
                    )
    return [*found.values()]


def _findings(checkpoint: Checkpoint, recorded: Recorded, source: OpenSource, name: str) -> list[Finding]:
    """A source that cannot be asked at this moment is a finding itself, and keeps no other one back."""
    found = [*_torn(checkpoint, source, name)]
    try:
        found = [*_look(checkpoint, recorded, source, name), *found]
    except SourceError as error:
        return [*found, _finding(checkpoint, name, str(error), "Check again when it can be asked.")]
    planned = [*_planned(checkpoint, recorded, name)]
    again = [] if planned else [*_made_again(checkpoint, source, name)]
    found += [*_forgotten(checkpoint, source, name), *planned, *again, *_not_read(checkpoint, source, name)]
    return [*found, *_waits(checkpoint, source, name)]


def _forgotten(checkpoint: Checkpoint, source: OpenSource, name: str) -> Iterator[Finding]:
    try:
        why = source.forgotten()
    except SourceError as error:
        why = str(error)
    if why is not None:
        yield _finding(checkpoint, name, why, "Choose one of the ways on; until then the pipeline plans nothing.")


def _forgotten_by_another(checkpoint: Checkpoint, source: OpenSource, name: str) -> Iterator[Finding]:
    """As :func:`_forgotten`, of a source that is not one of today's. That it cannot be asked any more is no finding."""
    with suppress(SourceError, CheckpointError):
        if (why := source.forgotten()) is not None:
            way = "Choose one of the ways on; until then no plan is made that reads there."
            yield _finding(checkpoint, name, why, way)


def _planned(checkpoint: Checkpoint, recorded: Recorded, name: str) -> Iterator[Finding]:
    """Batches that are planned, not in the table, and cannot be read, while nobody is at them. That a source cannot be
    asked is no finding."""
    for lane_name in checkpoint.lanes():
        lane = checkpoint.lane(lane_name)
        with suppress(CheckpointError, SinkError, SourceError):
            key = left_in(checkpoint, lane_name)
            if key is None:
                continue
            source, ranges = recorded.source(name, lane=lane_name), load_batch(checkpoint, key).ranges
            start, end = ranges.of(name)
            if source is None or start == end or name in ranges.late or recorded.published(key) is not None:
                continue
            # What may be left out is no reason to stop.
            why = None if source.left_out(start, end) is not None else source.not_replayable(start, end)
            if why is not None:
                told, _, rest = why.removeprefix(f"source {name!r}: ").partition(". ")
                yield Finding(
                    kind="source",
                    where=lane.offset_log.where(key.id),
                    message=f"source {name!r}: batch {key} is planned, and cannot be read: {told.rstrip('.')}.",
                    repair=" ".join(filter(None, (plan_given_up(lane, key.id), rest))),
                )


def _made_again(checkpoint: Checkpoint, source: OpenSource, name: str) -> Iterator[Finding]:
    if not isinstance(source, TellsMadeAgain):
        return
    with suppress(SourceError, CheckpointError):
        if (why := source.made_again()) is not None:
            told, _, way = why.partition(". ")
            yield _finding(checkpoint, name, f"{told}.", way)


def _not_read(checkpoint: Checkpoint, source: OpenSource, name: str) -> Iterator[Finding]:
    try:
        what = source.not_read()
    except (SourceError, CheckpointError):
        return  # another finding reports the source, or its log
    if what is not None:
        message, _, way = what.partition(". ")
        yield _finding(checkpoint, name, f"{message}.", way)


def _waits(checkpoint: Checkpoint, source: OpenSource, name: str) -> Iterator[Finding]:
    newest = checkpoint.offset_log.latest()
    if newest is None or not isinstance(source, TellsWaiting):
        return
    with suppress(SourceError):  # another finding reports a position that is none
        if (why := source.waits_in_vain(newest[1].ends.get(name))) is not None:
            told, _, way = why.partition(". ")
            yield _finding(checkpoint, name, f"{told}.", way)


def _finding(checkpoint: Checkpoint, name: str, why: str, way: str) -> Finding:
    where = checkpoint.source_log(name).location
    return Finding(kind="source", where=where, message=f"source {name!r}: {why}", repair=way)


def has_committed(checkpoint: Checkpoint) -> bool:
    """Whether any lane has a committed batch: then the facts that a source has learned from its data describe rows in
    the table."""
    return any(checkpoint.lane(lane).commit_log.latest_id() is not None for lane in checkpoint.lanes())


def _torn(checkpoint: Checkpoint, source: OpenSource, name: str) -> Iterator[Finding]:
    repair = command(checkpoint.lane(LIVE), "repair")
    way = f"{repair} moves it away: no batch is committed, and it is learned again."
    if has_committed(checkpoint):
        way = (
            "Restore it from a backup of the checkpoint. Without one, what is learned again may differ from what the "
            f"table has: give source {name!r} a schema with all columns that it has there, those of its folders' "
            "names too, and move the file away."
        )
    for entry, message in source.torn():
        where = f"{checkpoint.source_state(name).location}/{entry}"
        yield Finding(kind="source", where=where, message=message, repair=way)


def _look(checkpoint: Checkpoint, recorded: Recorded, source: OpenSource, name: str) -> list[Finding]:
    end: Offset | None = None
    for lane in checkpoint.lanes():
        newest = checkpoint.lane(lane).offset_log.latest()
        reached = newest[1].ends.get(name) if newest is not None else None
        end = reached if source.is_after(reached, end) else end
    damage = list(source.damaged(end))
    if not damage:
        return []
    position, message = damage[0]
    way = _way(checkpoint, recorded, source, name, position)
    more = f" So it is with {len(damage) - 1} more of its entries." if len(damage) > 1 else ""
    return [
        Finding(
            kind="source log",
            where=checkpoint.source_log(name).location,
            message=f"source {name!r}: {message}{more}",
            repair=f"Restore it from a backup of the checkpoint. Without one, {way}",
        )
    ]


def _way(checkpoint: Checkpoint, recorded: Recorded, source: OpenSource, name: str, position: Offset) -> str:
    if checkpoint.lanes() != [LIVE]:
        return "start a new checkpoint and a new table, which read all again."
    log = checkpoint.offset_log
    before = -1
    for number in log.ids():
        entry = log.get(number)
        reached = entry.ends.get(name) if entry is not None else None
        if reached == position or source.is_after(reached, position):
            break
        before = number
    before = newest_to_go_back_to(checkpoint, recorded, to=before)
    rewind = command(checkpoint.lane(LIVE), f"rewind --to {before} --drop-output --allow-skip")
    return (
        f"{rewind} takes what came after batch {before} out of the table, and reads again what is still in the source: "
        "what is not is lost."
    )
