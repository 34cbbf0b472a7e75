"""A table that is read while it is written to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Thread
from typing import Any

from airflow_provider_microbatch.sources import OpenSource

Range = tuple[str | None, str | None, list[Any]]
"""Of a batch, with what was read of it."""


def read_beside(
    writers: Sequence[Thread], source: OpenSource, ids: Callable[[str | None, str | None], list[Any]]
) -> list[Range]:
    """Start the writers, and read batch by batch until they have ended and nothing is new. Each batch has as many rows
    as it was planned with.

    :param ids: reads a range.
    """
    for writer in writers:
        writer.start()
    position, ranges = None, list[Range]()
    while True:
        ended = not any(writer.is_alive() for writer in writers)
        end = source.latest_offset(position)
        if end == position:
            if ended:
                return ranges
            continue
        found = ids(position, end)
        assert len(found) == source.describe(position, end).rows
        ranges.append((position, end, found))
        position = end
