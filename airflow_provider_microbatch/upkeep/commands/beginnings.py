"""Where sources begin by now that a rewind leaves without a position: asked again, one may answer otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from airflow_provider_microbatch.checkpoint.entries import Offset
from airflow_provider_microbatch.checkpoint.key import LIVE
from airflow_provider_microbatch.exceptions import CheckpointError, MaintenanceError
from airflow_provider_microbatch.execution.position import starts_of
from airflow_provider_microbatch.upkeep.commands.plan import Drafting
from airflow_provider_microbatch.upkeep.commands.site import Recorded


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
    for number in later:
        with suppress(CheckpointError):  # of a torn entry it is told elsewhere that nobody knows what the batch read
            entry = lane.offset_log.get(number)
            starts = {} if entry is None else starts_of(lane, number, entry)
            # A beginning that a plan found nothing at is none: the source had not begun.
            began = {name: start for name, start in starts.items() if start is not None} | began
    for name, first in began.items():
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
