"""Where sources begin that a command leaves without a position: asked again, one may answer otherwise."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress

from airflow_provider_microbatch.checkpoint.entries import Offset, OffsetEntry
from airflow_provider_microbatch.checkpoint.key import LIVE, BatchKey
from airflow_provider_microbatch.exceptions import (
    CheckpointError,
    DefinitionError,
    MaintenanceError,
    SinkError,
    SourceError,
)
from airflow_provider_microbatch.execution.beginnings import untold
from airflow_provider_microbatch.execution.position import starts_of
from airflow_provider_microbatch.sinks import Manifest
from airflow_provider_microbatch.sinks.manifest import ADOPTED
from airflow_provider_microbatch.sources import OpenSource
from airflow_provider_microbatch.sources.ways_on import is_asked
from airflow_provider_microbatch.upkeep.commands.plan import Drafting
from airflow_provider_microbatch.upkeep.commands.site import Published, Recorded

_ASKED = "its initial_offset"
_UNTOLD = (SourceError, SinkError, CheckpointError, DefinitionError)
"""What a source or a table raises that cannot be asked, or loaded, where the command runs."""


def check_beginnings(
    drafting: Drafting, recorded: Recorded, *, to: int, later: Sequence[int], allow_skip: bool
) -> None:
    """Check that no source of the live lane that is left without a position begins behind where it began. A source
    keeps its own beginning, or is asked for it with each first plan: a class of the user's may answer with its newest
    data, and what lies between would be in no table.

    :param to: the batch that stays the newest; -1 for none.
    :param later: numbers of the batches that go.
    :param allow_skip: lose what lies between; a note names it.
    :raises MaintenanceError: if a source does.
    :raises SourceError: if a source cannot be asked.
    """
    lane = drafting.checkpoint.lane(LIVE)
    kept = lane.offset_log.get(to) if to >= 0 else None
    began: dict[str, Offset] = {}
    torn, lost = False, set[str]()  # lost: with the torn entry in whose place repair has written this one
    known = set[str]()  # by entries that no torn one is before
    for number in later:
        try:
            entry = lane.offset_log.get(number)
        except CheckpointError:
            torn = True
            continue
        starts = {} if entry is None else starts_of(lane, number, entry)
        lost |= set() if entry is None else set(untold(entry, starts)) - known
        # A beginning that a plan found nothing at is none: the source had not begun.
        began = {name: start for name, start in starts.items() if start is not None} | began
        known |= set() if torn else began.keys() - lost
    asked = begin_anew(recorded, kept, besides=known) if torn or lost else ()
    anew = {name: begins for name, begins in asked if torn or name in lost}
    for name, by_now in anew.items():
        told = (
            f"where source {name!r} began is not known, since an entry of {lane.offset_log.location} "
            f"{'is torn' if torn else 'was lost'}; by now it begins at {by_now}: what came before that would be read "
            "by no batch."
        )
        if not allow_skip:
            raise MaintenanceError(
                f"{told} Nothing was done. Have it begin where it began, or before that ({_ASKED}), until the next "
                "batch is planned; then --allow-skip says so."
            )
        drafting.note(f"{told} Have it begin where it began, or before that ({_ASKED}).")
    for name, first in began.items():
        if name in anew:
            continue  # the first beginning that an entry tells is that of a later batch
        source = None if kept is not None and kept.ends.get(name) is not None else recorded.source(name, lane=LIVE)
        begins = None if source is None else source.initial_offset()
        if source is None or begins in (None, first) or source.is_after(begins, first) is False:
            continue
        told = (
            f"source {name!r} begins at {begins} by now, and its first batch behind {LIVE}/{to} began at {first}: what "
            "lies between would be read by no batch."
        )
        if not allow_skip:
            raise MaintenanceError(
                f"{told} Nothing was done. Have it begin there again (its initial_offset, or where its definition has "
                "it begin) until the next batch is planned; or go on without that: --allow-skip."
            )
        drafting.note(f"lost to the table: {told}")


def begin_anew(
    recorded: Recorded, kept: OffsetEntry | None, *, besides: Collection[str] = ()
) -> Iterator[tuple[str, Offset]]:
    """Yield sources of the live lane that the next plan asks where to begin, each with what it answers by now.

    :param kept: the newest entry that stays; None if none does.
    :param besides: sources that are left out.
    :raises SourceError: if a source cannot be asked.
    """
    for name in recorded.source_names():
        begins = None if name in besides else _begins_anew(recorded, kept, name)
        if begins is not None:
            yield name, begins


def note_anew(drafting: Drafting, recorded: Recorded, kept: OffsetEntry | None, key: BatchKey) -> None:
    """Note where the next plan has sources begin whose beginning only a torn entry told.

    :param kept: the newest entry that stays; None if none does.
    :param key: the batch that is planned again.
    """
    if not _is_run(drafting, key):
        drafting.note(
            f"no attempt at batch {key} is on record, so nobody knows with which sources it was planned. A source that "
            f"came with it, and is asked where to begin ({_ASKED}), begins where it says as the batch is planned "
            "again: what came before that is read by no batch. Where that is not where it began, have it begin there "
            "until then."
        )
    for name in recorded.source_names():
        try:
            begins = _begins_anew(recorded, kept, name)
        except _UNTOLD as error:
            drafting.note(f"where source {name!r} begins in the batch that is planned again cannot be told: {error}")
            continue
        if begins is not None:
            drafting.note(
                f"where source {name!r} began, only the torn entry told. The batch that is planned again begins at "
                f"{begins}, as the source says by now: what came before that is read by no batch. Where that is not "
                f"where it began, have it begin there ({_ASKED}) until that batch is planned."
            )


def began_at(
    drafting: Drafting,
    recorded: Recorded,
    key: BatchKey,
    ends: Mapping[str, Offset],
    *,
    look: Callable[[], Published | None],
) -> dict[str, Offset | None]:
    """Where a batch whose entry is lost began in sources that had no position before it and begin as asked: where what
    it was made of shows that. None where nobody knows, which a note says. The other sources are left out: their own
    record or definition tells it.

    :param ends: by source, where the batch ended.
    :param look: looks the batch up in the tables. It is called only if there is such a source: a table that is away
        keeps no other entry from being mended.
    """
    asked = dict[str, OpenSource | None]()  # None: it cannot be loaded here
    for name in ends:
        try:
            source = recorded.source(name, lane=key.lane)
        except _UNTOLD:
            asked[name] = None
            continue
        if source is not None and is_asked(source):
            asked[name] = source
    found: Published | None = None
    if asked:
        with suppress(*_UNTOLD):
            found = look()
    output, began = None if found is None else found.manifest, dict[str, Offset | None]()
    for name, source in asked.items():
        began[name] = None
        with suppress(*_UNTOLD):
            if source is not None and output is not None:
                began[name] = _shown(source, _made_of(drafting, output, name), end=ends[name], output=output)
        if began[name] is None:
            drafting.note(
                f"where batch {key} began in source {name!r} is not known: a replay of it is refused, and so is a "
                "rewind to before it without --allow-skip, behind which it begins where the source says by then that "
                f"it begins ({_ASKED})."
            )
    return began


def _shown(source: OpenSource, made_of: str | None, *, end: Offset, output: Manifest) -> Offset | None:
    """Where the batch began, as its output shows it; None if it does not."""
    if made_of is None:
        # Adopted output is of another pipeline, which may have the same data by another name.
        is_named = output.tells_ranges and output.epoch != ADOPTED and source.known_as(end, end) is not None
        return end if is_named else None  # it has no name: there was nothing to read yet
    begins = source.initial_offset()
    return begins if begins is not None and source.known_as(begins, end) == made_of else None


def _made_of(drafting: Drafting, output: Manifest, name: str) -> str | None:
    names = drafting.checkpoint.names
    return {names.of(one): made_of for one, made_of in output.made_of.items()}.get(name)


def _is_run(drafting: Drafting, key: BatchKey) -> bool:
    """Whether the newest attempt at the batch is of its last plan, whose sources are on record then; behind a rewind
    older ones are there, and are fenced."""
    try:
        attempt = drafting.checkpoint.attempts.latest(key)
    except CheckpointError:
        return False
    return attempt is not None and not attempt.is_fence


def _begins_anew(recorded: Recorded, kept: OffsetEntry | None, name: str) -> Offset | None:
    """Where the next plan has the source begin, if it asks it; None if it does not."""
    if kept is not None and kept.ends.get(name) is not None:
        return None
    source = recorded.source(name, lane=LIVE)
    return source.initial_offset() if source is not None and is_asked(source) else None
