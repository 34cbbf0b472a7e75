"""To which tables a batch was published, by what is on record."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import CheckpointError, DefinitionError
from airflow_provider_microbatch.execution.newest import newest_published, published_epochs
from airflow_provider_microbatch.execution.recorded_sinks import RecordedTable, places_of, recorded_tables, tables_in
from airflow_provider_microbatch.sinks import OpenSink, Sink
from airflow_provider_microbatch.sinks.manifest import ADOPTED

LEFT_OUT = 1000
"""A table that is new to a pipeline with a million batches is not looked for in all of them at each plan."""


def published_as(checkpoint: Checkpoint, key: BatchKey) -> list[str]:
    """Names of the pipeline definitions by which attempts have published a committed batch, each once, the newest
    attempt's first.

    :raises CorruptEntryError: if an entry cannot be read.
    """
    return _ran_by(checkpoint, key, published_epochs(checkpoint, key))


def published_to(checkpoint: Checkpoint, key: BatchKey, *, beside: OpenSink) -> list[Sink]:
    """The tables that any attempt has published a committed batch to: one that was named after the commit has it by a
    clear, and one that was no longer named at a clear has it from before that. No table of an attempt that has not
    published, such as that of a clear that is on its way. If no published attempt is on record, the tables of all
    attempts. Of adopted output, which no attempt has published, also the tables where it was found; of what an older
    version has adopted, those of all attempts. To be compared by where they are, see :class:`RecordedTable`: one that
    cannot be loaded and is of no class of the pipeline's tables of now is none of these.

    :param beside: the pipeline's sink of now.
    :raises CorruptEntryError: if an entry cannot be read.
    """
    epochs = published_epochs(checkpoint, key)
    adopted = adopted_in(checkpoint, key, beside=beside) if ADOPTED in epochs else []
    names = _ran_by(checkpoint, key, epochs)
    # The attempts of a batch that was adopted may be those of a clear that was refused, for a table without the batch.
    if not names and any(epoch != ADOPTED or not adopted for epoch in epochs):
        names = _of_all_attempts(checkpoint, key)
    return _tables(checkpoint, names, beside=beside) + places_of(adopted)


def adopted_in(checkpoint: Checkpoint, key: BatchKey, *, beside: OpenSink) -> list[RecordedTable]:
    """The tables where the output was found that the batch has adopted, whether or not a run has committed that yet;
    none of what an older version has adopted.

    :param beside: the pipeline's sink of now.
    :raises CorruptEntryError: if the adoption cannot be read.
    """
    adoption = checkpoint.adoptions.get(key)
    return [] if adoption is None else tables_in(adoption.sink, beside=beside)


def first_published_to(checkpoint: Checkpoint, key: BatchKey, *, beside: OpenSink) -> list[Sink]:
    """Those of them that the first attempt has published to; empty if that attempt is not on record.

    :param beside: the pipeline's sink of now.
    :raises CorruptEntryError: if an entry cannot be read.
    """
    first = published_epochs(checkpoint, key)[-1:]
    return _tables(checkpoint, _ran_by(checkpoint, key, first), beside=beside)


def was_published_to(checkpoint: Checkpoint, key: BatchKey, table: OpenSink, *, beside: OpenSink) -> bool:
    """Whether the batch was published to this table, which may have been at another address then."""
    return any(table.is_written_by(one, checkpoint.tables) for one in published_to(checkpoint, key, beside=beside))


def newest_published_to(checkpoint: Checkpoint, key: BatchKey, table: OpenSink, *, beside: OpenSink) -> BatchKey | None:
    """The newest batch before ``key``, of its lane, that was published to this table: the pipeline may have named other
    tables since, as while this one was brought back from a backup. None if that is longer ago than so many batches as
    are looked at, or never was.

    :param beside: the pipeline's sink of now.
    :raises CorruptEntryError: if an entry cannot be read.
    """
    for _ in range(LEFT_OUT):
        found = newest_published(checkpoint, key.lane, below=key.id)
        if found is None or was_published_to(checkpoint, found, table, beside=beside):
            return found
        key = found
    return None


def _ran_by(checkpoint: Checkpoint, key: BatchKey, epochs: Sequence[int]) -> list[str]:
    made = (checkpoint.attempts.made(key, epoch) for epoch in epochs)
    return list(dict.fromkeys(one.definition for one in made if one is not None and one.definition is not None))


def _tables(checkpoint: Checkpoint, names: Sequence[str], *, beside: OpenSink) -> list[Sink]:
    found = list[Sink]()
    for name in names:
        with suppress(CheckpointError, DefinitionError):
            found += places_of(recorded_tables(checkpoint, name, beside=beside))
    return found


def _of_all_attempts(checkpoint: Checkpoint, key: BatchKey) -> list[str]:
    names = list[str | None]()
    for epoch in checkpoint.attempts.epochs.all(key):
        with suppress(CheckpointError):  # torn; the others may tell
            attempt = checkpoint.attempts.get(key, epoch)
            names.append(None if attempt is None else attempt.definition)
    return [name for name in dict.fromkeys(names) if name is not None]
