"""Late ends: a batch whose ranges end where an attempt's reading ends.

Such a batch is planned, resolved, committed. The attempt that is first to record its ends, after its stage is written
and before anything is published, decides for all attempts.
"""

from __future__ import annotations

import json
import logging
from shlex import quote

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.entries import Offset
from airflow_provider_microbatch.checkpoint.resolutions import Resolution
from airflow_provider_microbatch.exceptions import AttemptFencedError, SourceError
from airflow_provider_microbatch.execution.beginnings import check_told
from airflow_provider_microbatch.execution.opened_sources import OpenedSources
from airflow_provider_microbatch.execution.planned import PlannedBatch, load_batch
from airflow_provider_microbatch.execution.position import render
from airflow_provider_microbatch.execution.progress import told
from airflow_provider_microbatch.sinks import Manifest

log = logging.getLogger(__name__)


def resolve(checkpoint: Checkpoint, sources: OpenedSources, planned: PlannedBatch, manifest: Manifest) -> PlannedBatch:
    """Make sure that the batch ends where one attempt has ended, and nowhere else. Durable on return, idempotent.

    :param manifest: the attempt's, staged or published, with the runtime's report of its reading. A published manifest
        tells where the batch ends also to a checkpoint that was restored from a backup.
    :return: the batch with its ends.
    :raises AttemptFencedError: if another attempt has come to other ends, and recorded them first.
    :raises SourceError: if a source cannot tell where the attempt has ended, or is no longer one of the pipeline's.
    :raises CheckpointError: if the end that a source tells is no offset.
    """
    late, read = planned.entry.late, told(checkpoint, manifest.result)
    if not late:
        return planned
    sources.check_named(planned.ranges)
    # The reader of a range that was resolved to nothing need not be asked, and the source may be gone.
    asked = [name for name in late if name in read or not planned.is_nothing_of(name)]
    on_record = {} if planned.entry.unresolved else planned.entry.ends
    ends = sources.resolve(asked, planned.ranges, read=read, on_record=on_record)
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
            f"{quote(checkpoint.location)}`."
        )
    log.info("Batch %s ends at %s, as attempt %s has read it", planned.key, render(chosen), planned.entry.resolved_by)
    return planned


def check_on_record(planned: PlannedBatch, sources: OpenedSources) -> None:
    """Check that the end of a committed batch is on record: the batch is read again up to that end, and not to where
    the source is by now, since the rows after it are those of later batches. The same of where a batch began, see
    :func:`~airflow_provider_microbatch.execution.beginnings.check_told`.

    :raises SourceError: if the end of the batch, or where it began, is not on record any more.
    """
    check_told(sources, planned)
    lost = planned.entry.unresolved
    if planned.committed and lost:
        raise SourceError(
            f"batch {planned.key} is committed, and where it ended in source {', '.join(lost)} is not on record any "
            "more. Restore the checkpoint's folder 'resolved' from a backup; without one, `microbatch repair` takes "
            "the end from the entry after it."
        )


def is_same(offset: Offset | None, other: Offset | None) -> bool:
    """Whether both offsets are one position; a source may write its keys in another order, for example. The source is
    not asked which offset lies after the other: of two positions in several queues at once neither may."""
    return offset == other or (offset is not None and other is not None and json.loads(offset) == json.loads(other))
