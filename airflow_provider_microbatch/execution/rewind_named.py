"""The rewind that a message names as a way on: it has to be accepted, and must not cost a table its rows."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.key import LIVE, BatchKey
from airflow_provider_microbatch.checkpoint.lane import command
from airflow_provider_microbatch.exceptions import CheckpointError
from airflow_provider_microbatch.execution.kept_states import KeptStates, can_be_rewound_to, kept_states
from airflow_provider_microbatch.execution.published_to import published_to
from airflow_provider_microbatch.execution.published_together import published_beside
from airflow_provider_microbatch.execution.recorded_sinks import RecordedTable
from airflow_provider_microbatch.sinks import ExpectedBatch, OpenSink


def rewind_named(
    checkpoint: Checkpoint,
    sink: OpenSink,
    lane: str,
    to: int,
    *,
    lost: OpenSink | None = None,
    gone: RecordedTable | None = None,
) -> str | None:
    """The command that takes all batches after ``to`` out and has them run again, in words. None where it would be
    refused: retention has removed what it needs, state of that batch is gone, or one of the later ones stays in a
    table. And where it would take one of them, for good, out of a table that the pipeline names no more and that got it
    together with one of now.

    :param sink: the pipeline's sink of now.
    :param lost: a table of the sink that has lost these batches, so that none of them stays there.
    :param gone: a table that the pipeline names no more and that the user takes for gone for good.
    """
    logs = checkpoint.lane(lane)
    if not can_be_rewound_to(checkpoint, [sink], lane, to):
        return None
    with suppress(CheckpointError):  # where an entry is torn nobody can tell, and whatever is refused is to be read
        later = [BatchKey(lane, number) for number in logs.offset_log.ids() if number > to]
        if not any(
            _beside(checkpoint, sink, key, gone=gone) or _stays(checkpoint, sink, key, lost=lost, gone=gone)
            for key in later
        ):
            return command(logs, f"rewind --to {to} --drop-output" + ("" if gone is None else " --allow-skip"))
    return None


def rewindable(checkpoint: Checkpoint, batch: ExpectedBatch, sink: OpenSink) -> ExpectedBatch:
    """The batch, of which a sink names a rewind only to where state is."""
    return replace(batch, can_rewind_to=partial(can_be_rewound_to, checkpoint, [sink], batch.key.lane))


@dataclass(frozen=True, kw_only=True)
class WayBack:
    """A rewind that a pipeline which keeps state can go on from.

    :param to: the batch that it goes back to; -1 for none at all.
    :param rewind: the command, in words.
    """

    to: int
    rewind: str


def way_back(
    kept: KeptStates, sink: OpenSink, *, to: int, lost: OpenSink | None = None, gone: RecordedTable | None = None
) -> WayBack | None:
    """The rewind to the batch, or to the newest one before it, whose state is there; to no batch at all where there is
    none. None where that would be refused: one further back is refused as well, since it takes out what this one does.

    :param lost: as :func:`rewind_named` has it.
    """
    newest = kept.newest(before=to + 1)
    to = -1 if newest is None else newest
    rewind = rewind_named(kept.checkpoint, sink, LIVE, to, lost=lost, gone=gone)
    return None if rewind is None else WayBack(to=to, rewind=rewind)


def rewind_over(
    checkpoint: Checkpoint,
    sink: OpenSink,
    lane: str,
    to: int,
    *,
    lost: OpenSink | None = None,
    gone: RecordedTable | None = None,
) -> str | None:
    """As :func:`rewind_named`; where the state of the batch is gone, the rewind to the newest before it that has some,
    which takes out and runs again what this one does, and more."""
    kept = kept_states(checkpoint, [sink]) if lane == LIVE else None
    if kept is None:
        return rewind_named(checkpoint, sink, lane, to, lost=lost, gone=gone)
    way = way_back(kept, sink, to=to, lost=lost, gone=gone)
    return None if way is None else way.rewind


def _beside(checkpoint: Checkpoint, sink: OpenSink, key: BatchKey, *, gone: RecordedTable | None) -> bool:
    return any(gone is None or not gone.is_same(one) for one in published_beside(checkpoint, sink, key))


def _stays(
    checkpoint: Checkpoint, sink: OpenSink, key: BatchKey, *, lost: OpenSink | None, gone: RecordedTable | None
) -> bool:
    place = None if gone is None else gone.place
    wrote = (
        one
        for one in published_to(checkpoint, key, beside=sink)
        if not one.can_withdraw and (place is None or not place.is_same_place(one))
    )
    return any(lost is None or not lost.is_written_by(one, checkpoint.tables) for one in wrote)
