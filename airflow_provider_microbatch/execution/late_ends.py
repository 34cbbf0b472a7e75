"""Late ends: a batch whose ranges end where an attempt comes to. Planned, resolved, committed: the attempt that is
first to say where it has come to, after its stage is written and before anything is published, decides for all."""

from __future__ import annotations

import json
import logging

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.entries import Offset
from airflow_provider_microbatch.checkpoint.resolutions import Resolution
from airflow_provider_microbatch.exceptions import AttemptFencedError, SourceError
from airflow_provider_microbatch.execution.opened_sources import OpenedSources
from airflow_provider_microbatch.execution.planned import PlannedBatch, load_batch
from airflow_provider_microbatch.execution.position import render
from airflow_provider_microbatch.execution.progress import told
from airflow_provider_microbatch.sinks import Manifest

log = logging.getLogger(__name__)


def resolve(checkpoint: Checkpoint, sources: OpenedSources, planned: PlannedBatch, manifest: Manifest) -> PlannedBatch:
    """See that the batch ends where an attempt has ended, and nowhere else. Durable on return, idempotent.

    :param manifest: the attempt's, staged or published: in it is what the runtime told of its reading. What was
        published tells where the batch ends also to a checkpoint that a backup has put back.
    :return: the batch with its ends.
    :raises AttemptFencedError: if another attempt has come to other ends, and said so first.
    :raises SourceError: if a source cannot tell where the attempt has ended, or is none of the pipeline's any more.
    :raises CheckpointError: if what it tells is no offset.
    """
    late, read = planned.entry.late, told(checkpoint, manifest.result)
    if not late:
        return planned
    sources.check_named(planned.ranges)
    # Of a range that was resolved to nothing no reader needs to be asked, and the source may be gone.
    asked = [name for name in late if name in read or not planned.is_nothing_of(name)]
    ends = sources.resolve(asked, planned.starts, read=read)
    if planned.entry.unresolved:
        mine = Resolution(epoch=manifest.epoch, ends=ends)
        checkpoint.resolutions.choose(planned.key, planned.identity.digest, mine)
        planned = load_batch(checkpoint, planned.key)
    chosen = {name: planned.entry.ends[name] for name in asked}
    if planned.entry.unresolved or not all(is_same(chosen[name], ends[name]) for name in asked):
        raise AttemptFencedError(
            f"batch {planned.key}: attempt {planned.entry.resolved_by} was first to say where it ends, "
            f"{render(chosen)}; attempt {manifest.epoch} has read up to {render(ends)}. Nothing is published or "
            "committed by this one; the next attempt reads exactly the range that was chosen. If this comes again and "
            f"again, a restored backup has forgotten whose output is in the table: `microbatch repair "
            f"{checkpoint.location}`."
        )
    log.info("Batch %s ends at %s, as attempt %s has read it", planned.key, render(chosen), planned.entry.resolved_by)
    return planned


def check_on_record(planned: PlannedBatch) -> None:
    """See that a committed batch is read again up to where it ended then, and not to where the source is by now: the
    rows since are those of later batches.

    :raises SourceError: if where it ended is not on record any more.
    """
    lost = planned.entry.unresolved
    if planned.committed and lost:
        raise SourceError(
            f"batch {planned.key} is committed, and where it ended in source {', '.join(lost)} is not on record any "
            "more. Restore the checkpoint's folder 'resolved' from a backup; without one, `microbatch repair` takes "
            "the end from the entry after it."
        )


def is_same(offset: Offset | None, other: Offset | None) -> bool:
    """Whether both are one position, which a source may write with its keys in another order, say. The source is not
    asked which lies after the other: of positions in several queues at once neither may, and they are two."""
    return offset == other or (offset is not None and other is not None and json.loads(offset) == json.loads(other))
