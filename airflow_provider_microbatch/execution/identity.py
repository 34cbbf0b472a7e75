"""Which output in a sink is this checkpoint's.

A sink is asked by identity; output that bears no identity, or another one, is looked up in the checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.entries import SKEW_MS, Attempt
from airflow_provider_microbatch.checkpoint.identity import BatchIdentity
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.checkpoint.known_tables import KnownTables
from airflow_provider_microbatch.exceptions import AttemptFencedError, CheckpointError, ForeignBatchError
from airflow_provider_microbatch.execution.status import is_committed
from airflow_provider_microbatch.sinks import ExpectedBatch, Manifest, OpenSink
from airflow_provider_microbatch.sinks.manifest import as_adopted


def planned_identity(checkpoint: Checkpoint, key: BatchKey) -> BatchIdentity | None:
    """The identity of a batch that is in the offset log, else None.

    :raises CorruptEntryError: if its entry cannot be read.
    """
    read = checkpoint.lane(key.lane).offset_log.read(key.id)
    return None if read is None else checkpoint.batch(key, *read)


def expected(checkpoint: Checkpoint, batch: BatchIdentity, attempt: Attempt | None = None) -> ExpectedBatch:
    """A planned batch, in the form in which a sink is asked for it.

    :param attempt: the attempt whose stage is to be published.
    """
    older = attempt is not None and attempt.identity is None

    @cache
    def newest(lane: str) -> int:
        found = checkpoint.lane(lane).commit_log.latest_id()
        return -1 if found is None else found

    return ExpectedBatch(
        identity=batch,
        tables=checkpoint.tables,
        recognise=lambda found: _adopted(checkpoint, found) or _older(checkpoint, found, planned_ms=batch.planned_ms),
        can_rewind_to=checkpoint.lane(batch.key.lane).can_be_rewound_to,
        is_past=lambda key: key.id <= newest(key.lane),
        staged_as=attempt.batch if attempt is not None and older else None,
    )


def expected_next(checkpoint: Checkpoint, key: BatchKey) -> ExpectedBatch:
    """The place of a batch that is not planned yet: no output there counts, unless it was adopted."""
    return ExpectedBatch(
        identity=checkpoint.batch(key),
        tables=checkpoint.tables,
        recognise=lambda found: _adopted(checkpoint, found),
    )


def of_own_checkpoint(asked: ExpectedBatch) -> ExpectedBatch:
    """The expected batch, with output of other checkpoints left to their owners."""

    def recognise(found: Manifest) -> Manifest | None:
        is_ours = found.identity is not None and found.identity.checkpoint == asked.identity.checkpoint
        return asked.recognise(found) if is_ours else found

    return replace(asked, recognise=recognise)


def expected_on_record(checkpoint: Checkpoint, key: BatchKey, *, tables: KnownTables) -> ExpectedBatch:
    """A batch whose offset entry may be lost: output of attempts on record counts too.

    :param tables: ``checkpoint.tables``, or its ``following_moves`` for a look at former addresses.
    """
    try:
        batch = planned_identity(checkpoint, key)
    except CheckpointError:
        batch = None
    if batch is not None:
        return replace(expected(checkpoint, batch), tables=tables)

    def on_record(found: Manifest) -> Manifest | None:
        attempt = checkpoint.attempts.get(key, found.epoch)
        by_attempt = attempt is not None and attempt.identity is not None and attempt.identity == found.identity
        return found if by_attempt else _adopted(checkpoint, found) or _older(checkpoint, found, planned_ms=0)

    return ExpectedBatch(identity=checkpoint.batch(key), tables=tables, recognise=on_record)


def newest_identity(checkpoint: Checkpoint, key: BatchKey) -> BatchIdentity | None:
    """The batch's identity in the newest readable attempt that has one; None if there is no such attempt."""
    for epoch in reversed(checkpoint.attempts.epochs.all(key)):
        try:
            attempt = checkpoint.attempts.get(key, epoch)
        except CheckpointError:
            continue
        if attempt is not None and attempt.identity is not None:
            return attempt.identity
    return None


def is_of_another_plan(attempt: Attempt, batch: BatchIdentity) -> bool:
    """Whether the batch was planned anew since the attempt was opened; False for attempts without an identity, which
    older versions made."""
    return attempt.identity is not None and attempt.identity != batch


def check_plan(attempt: Attempt, batch: BatchIdentity) -> None:
    """Check the attempt's plan. :raises AttemptFencedError: if the batch was planned anew since it was opened."""
    if is_of_another_plan(attempt, batch):
        raise AttemptFencedError(
            f"batch {attempt.key} was planned anew since attempt {attempt.epoch} was opened, which has read what was "
            "planned before. Nothing was published; the next run makes the batch as it is planned now."
        )


def is_still_planned(checkpoint: Checkpoint, batch: BatchIdentity) -> bool:
    """Whether the batch is planned as it was: False if a command has taken it out, also if it is planned anew."""
    return planned_identity(checkpoint, batch.key) == batch


def check_still_planned(checkpoint: Checkpoint, batch: BatchIdentity) -> None:
    """Check that the batch is planned as it was. :raises AttemptFencedError: if a command has taken it out."""
    if not is_still_planned(checkpoint, batch):
        raise AttemptFencedError(
            f"batch {batch.key} was rewound while it was committed. Nothing is committed; what it has read is read "
            "again by the next run."
        )


def complete_replace(checkpoint: Checkpoint, sink: OpenSink, batch: BatchIdentity, published: Manifest) -> Manifest:
    """Repeat the replace of the published attempt: that attempt may have died in the middle of it, and no other process
    would look for the rest."""
    winner = checkpoint.attempts.made(batch.key, published.epoch)
    return sink.replace(expected(checkpoint, batch, winner), published.epoch)


def published_in(
    checkpoint: Checkpoint,
    attempt: Attempt,
    sinks: Sequence[OpenSink],
    *,
    tables: KnownTables,
    partly: bool = False,
) -> tuple[OpenSink, Manifest] | None:
    """The sink that has the attempt's output by :func:`expected_on_record`, and its manifest; None if none has it.

    :param partly: output in only some of a sink's tables counts: the batch's next attempt goes on from there.
    """
    batch = expected_on_record(checkpoint, attempt.key, tables=tables)
    looked = ((sink, (latest_in if partly else found_in)(sink, batch)) for sink in sinks)
    return next(((sink, found) for sink, found in looked if found and found.epoch == attempt.epoch), None)


def found_in(sink: OpenSink, batch: ExpectedBatch) -> Manifest | None:
    """The batch in the sink; None if the batch is not there, whatever else is at its place."""
    with suppress(ForeignBatchError):
        return sink.contains(batch)
    return None


def seen_in(sink: OpenSink, batch: ExpectedBatch) -> Manifest | None:
    """What readers of the sink find of the batch, see :meth:`OpenSink.seen`; None if nothing, whatever they find of
    another one."""
    with suppress(ForeignBatchError):
        return sink.seen(batch)
    return None


def latest_in(sink: OpenSink, batch: ExpectedBatch) -> Manifest | None:
    """The newest attempt's manifest among those that a sink's tables have of the batch; others may lack it."""
    return _newest(found_in(table, batch) for table in sink.tables)


def latest_seen(sink: OpenSink, batch: ExpectedBatch) -> Manifest | None:
    """The newest attempt's manifest among those that readers of a sink's tables find rows of."""
    return _newest(seen_in(table, batch) for table in sink.tables)


def _newest(found: Iterable[Manifest | None]) -> Manifest | None:
    return max((one for one in found if one is not None), key=lambda one: one.epoch, default=None)


def is_of_one_attempt(sink: OpenSink, batch: ExpectedBatch, published: Manifest) -> bool:
    """Whether all tables, that of the dead letters too, hold the batch as the attempt of ``published`` made it."""
    latest = latest_in(sink, batch) if len(sink.tables) > 1 else published
    return latest is not None and latest.epoch == published.epoch


def _adopted(checkpoint: Checkpoint, found: Manifest) -> Manifest | None:
    adoption = checkpoint.adoptions.get(found.key)
    own = adoption is not None and (adoption.identity, adoption.epoch) == (found.identity, found.epoch)
    return as_adopted(found) if own else None


def _older(checkpoint: Checkpoint, found: Manifest, *, planned_ms: int) -> Manifest | None:
    """Output of an attempt of this checkpoint that an older version of this package made: it bears no identity.

    The attempt is on record, and the logs say that its output is the batch's, or nothing says that it is not. A newer
    attempt always leaves an identity, so output without one is not a newer attempt's, though it has its number.
    """
    if found.identity is not None:
        return None
    attempt = checkpoint.attempts.get(found.key, found.epoch)
    if attempt is None or attempt.identity is not None:
        return None
    if is_committed(checkpoint, attempt):
        return found
    # An attempt from before a rewind read another plan of the batch. Plan and attempt may be of two hosts' clocks.
    may_be = not attempt.is_fence and attempt.started_ms >= planned_ms - SKEW_MS
    end = checkpoint.attempts.ended(found.key, found.epoch)
    return found if may_be and (end is None or end.state == "succeeded") else None
