"""The progress of a published batch whose entry did not tell it, or was lost."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from airflow_provider_microbatch.checkpoint.lane import Lane
from airflow_provider_microbatch.exceptions import MicroBatchError
from airflow_provider_microbatch.execution.position import starts_of
from airflow_provider_microbatch.execution.progress import progress_of
from airflow_provider_microbatch.upkeep.commands.site import Published, Recorded


def progress_again(recorded: Recorded, lane: Lane, found: Published) -> dict[str, Any]:
    """What the batch's manifest tells of it, with the figures of those sources that still tell them: one whose log is
    torn, or whose class is not here, keeps no batch from its entry.

    :param lane: the lane of the batch.
    :param found: the batch as the sink has it.
    """
    number, described = found.manifest.key.id, dict[str, Any]()
    with suppress(MicroBatchError):  # the entry is torn, or the one before it: other findings report it
        entry = lane.offset_log.get(number)
        starts = {} if entry is None else starts_of(lane, number, entry)
        for name, end in {} if entry is None else entry.ends.items():
            with suppress(MicroBatchError):
                source = recorded.source(name, lane=lane.name)
                if source is not None:
                    described[name] = source.in_words(starts.get(name), end)
    return progress_of(found.manifest, described)
