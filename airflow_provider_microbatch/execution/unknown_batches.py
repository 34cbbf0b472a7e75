"""What a table holds that its checkpoint knows nothing of, beyond the place of the batch that is planned.

A checkpoint that was restored from an older backup, or begun anew on a kept table, has read nothing of what came after:
it would read that again. The next batch's own place does not tell where its number is free: it was set aside then, or
aged out since, or what came after was of other lanes.
"""

from __future__ import annotations

from dataclasses import replace

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.key import LIVE, BatchKey, is_lane
from airflow_provider_microbatch.exceptions import ForeignBatchError
from airflow_provider_microbatch.execution.identity import expected_next
from airflow_provider_microbatch.sinks import ExpectedBatch, Manifest, OpenSink


def check_none_unknown(checkpoint: Checkpoint, sink: OpenSink, key: BatchKey) -> None:
    """See that the table holds nothing behind the place of a batch that is to be planned, and no lane of this
    checkpoint that it does not know. One listing of the table; another lane that is nobody's here is another
    pipeline's, which may write the same table.

    :raises ForeignBatchError: if it does, naming whose it is and the ways on.
    :raises SinkError: if what is there has no manifest that can be read.
    """
    if not sink.definition.is_cheap_to_ask:
        return
    for table in sink.tables:
        if type(table).batches is OpenSink.batches:
            continue  # it cannot list what it holds: its next place alone is looked at
        # The table first: what is published later was planned before, and the checkpoint shows it.
        for number in table.batches_after(key.lane, key.id, checkpoint.tables):
            _check(checkpoint, table, BatchKey(key.lane, number), newest=key.id - 1)
        lanes = [name for name in table.lanes(checkpoint.tables) or () if name != key.lane and is_lane(name)]
        known = set(checkpoint.lanes()) - {LIVE} if lanes else set()
        for name in lanes:
            if name not in known:
                newest = checkpoint.lane(name).offset_log.latest_id()
                newest = -1 if newest is None else newest
                for number in table.batches_after(name, newest, checkpoint.tables):
                    _check(checkpoint, table, BatchKey(name, number), newest=newest, only_own=True)


def _check(checkpoint: Checkpoint, table: OpenSink, key: BatchKey, *, newest: int, only_own: bool = False) -> None:
    asked = replace(expected_next(checkpoint, key), newest=newest)
    if only_own:
        asked = _ours(asked)
    try:
        table.contains(asked)
    except ForeignBatchError:
        # Another run has planned and published it since this one looked: nobody else's.
        if not checkpoint.lane(key.lane).offset_log.has(key.id):
            raise


def _ours(asked: ExpectedBatch) -> ExpectedBatch:
    """The same, with what is not this checkpoint's left to whoever it is of."""

    def recognise(found: Manifest) -> Manifest | None:
        is_ours = found.identity is not None and found.identity.checkpoint == asked.identity.checkpoint
        return asked.recognise(found) if is_ours else found

    return replace(asked, recognise=recognise)
