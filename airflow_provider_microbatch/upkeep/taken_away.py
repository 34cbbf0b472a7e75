"""Finds batches that no log knows any more, and that a table has lost since somebody has put it back (RESTORE, an
overwrite). The table counts them as in, so runs go on; no look at a batch of the log meets them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.lane import Lane
from airflow_provider_microbatch.checkpoint.log import spans_of
from airflow_provider_microbatch.checkpoint.verify import Finding
from airflow_provider_microbatch.exceptions import CheckpointError, SinkError
from airflow_provider_microbatch.execution.table_gap import TableGap, numbers
from airflow_provider_microbatch.sinks import OpenSink
from airflow_provider_microbatch.sinks.taken_away import TellsTakenAway


def taken_away(checkpoint: Checkpoint, table: OpenSink) -> Iterator[Finding]:
    """Findings about batches before the oldest of each lane's log."""
    if not isinstance(table, TellsTakenAway):
        return
    for lane in checkpoint.lanes():
        try:
            found = table.taken_away(lane, _begin(checkpoint.lane(lane)), checkpoint.tables)
        except CheckpointError:
            continue  # other findings report the error
        except SinkError as error:
            if table.seems_away(checkpoint.tables) is None:  # of one that is away other findings tell
                yield _unknown(table, lane, error)
            continue
        for one in found:
            gone = TableGap(first=one.ids[0], last=one.ids[-1], were_here=True)
            yield Finding(
                kind="table",
                where=table.location(),
                message=f"{_named(one.ids)} of lane {lane}: {table.location()} has no row of them any more, since "
                f"somebody has put the table back ({one.by}), and this checkpoint's log begins behind them: no "
                "clear and no rewind brings them back.",
                repair=f"{one.back} Else: {gone.ways_on()} If they are to be gone, nothing is to be done.",
            )


def _unknown(table: OpenSink, lane: str, error: SinkError) -> Finding:
    return Finding(
        kind="table",
        where=table.location(),
        message=f"nobody can tell which batches of before the log of lane {lane} {table.location()} has lost: {error}",
        repair="Mend that, then check again.",
    )


def _begin(lane: Lane) -> int:
    """The number of the oldest batch that the lane's log has, or is to have next."""
    ids = lane.offset_log.ids()
    # A log that begins behind a kept table has a position in place of the table's newest batch.
    return next((id for id in ids if not lane.is_position(id)), ids[-1] + 1 if ids else 0)


def _named(ids: Sequence[int]) -> str:
    """Numbers of batches in words, those that follow on one another together."""
    return ", ".join(numbers(first, last) for first, last in spans_of(ids))
