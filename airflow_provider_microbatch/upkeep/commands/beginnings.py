"""Where sources begin by now, if a rewind takes the first batch out too: asked again, one may answer otherwise."""

from __future__ import annotations

from contextlib import suppress

from airflow_provider_microbatch.checkpoint.entries import OffsetEntry
from airflow_provider_microbatch.checkpoint.key import LIVE
from airflow_provider_microbatch.exceptions import CheckpointError, MaintenanceError
from airflow_provider_microbatch.upkeep.commands.plan import Drafting
from airflow_provider_microbatch.upkeep.commands.site import Recorded


def check_beginnings(drafting: Drafting, recorded: Recorded, *, allow_skip: bool) -> None:
    """Check that no source begins behind where the live lane's first batch began. A source keeps its own beginning, or
    is asked for it with each first plan: a class of the user's may answer with its newest data, and what lies between
    would be in no table.

    :param allow_skip: lose what lies between; a note names it.
    :raises MaintenanceError: if a source does.
    :raises SourceError: if a source cannot be asked.
    """
    first: OffsetEntry | None = None
    with suppress(CheckpointError):  # of a torn entry it is told elsewhere that nobody knows what the batch read
        first = drafting.checkpoint.offset_log.get(0)
    for name, began in ({} if first is None else first.starts).items():
        source = recorded.source(name, lane=LIVE)
        begins = None if source is None else source.initial_offset()
        if source is None or begins in (None, began) or source.is_after(begins, began) is False:
            continue
        told = (
            f"source {name!r} begins at {begins} by now, and batch {LIVE}/0 began at {began or 'its very beginning'}: "
            "what lies between would be read by no batch."
        )
        if not allow_skip:
            raise MaintenanceError(
                f"{told} Nothing was done. Have it begin there again (its initial_offset, or where its definition has "
                "it begin) until the next batch is planned; or go on without that: --allow-skip."
            )
        drafting.note(f"lost to the table: {told}")
