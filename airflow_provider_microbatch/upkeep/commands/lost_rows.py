"""What a committed batch has read and its next plan would go on without."""

from __future__ import annotations

from contextlib import suppress

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.entries import Offset
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import CheckpointError
from airflow_provider_microbatch.execution.committed import told_of
from airflow_provider_microbatch.execution.progress import told as told_in
from airflow_provider_microbatch.sources import OpenSource
from airflow_provider_microbatch.sources.ways_on import TellsLost


def lost_of(
    checkpoint: Checkpoint, key: BatchKey, name: str, source: OpenSource, start: Offset | None, end: Offset | None
) -> str | None:
    """Describe it, with names; None if nothing is lost. The attempts that were published have told what they read.

    :param name: of the source.
    :param start: where the batch began in the source.
    :raises SourceError: if the source cannot be asked.
    """
    if not isinstance(source, TellsLost):
        return source.left_out(start, end)
    commit = None
    with suppress(CheckpointError):  # of a torn entry nobody knows what the reader told
        commit = checkpoint.lane(key.lane).commit_log.get(key.id)
    told = [] if commit is None else told_of(checkpoint, key, commit, name)
    return source.lost_anew(start, end, told=told)


def lost_of_put_away(
    checkpoint: Checkpoint, commit: str | None, name: str, source: OpenSource, start: Offset | None, end: Offset | None
) -> str | None:
    """The same of a batch whose entries a command has put away.

    :param commit: where its commit entry is; None if that is not known.
    """
    if not isinstance(source, TellsLost):
        return source.left_out(start, end)
    entry = None
    with suppress(CheckpointError):
        entry = None if commit is None else checkpoint.put_away_commit(commit)
    told = {} if entry is None else told_in(checkpoint, entry.progress)
    return source.lost_anew(start, end, told=[told.get(name, {})])
