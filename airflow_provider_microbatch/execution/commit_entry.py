"""The commit entry of a batch: written only while the batch is planned as its output was made."""

from __future__ import annotations

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.entries import CommitEntry
from airflow_provider_microbatch.exceptions import AttemptFencedError, BrokenLogError, MaintenanceError
from airflow_provider_microbatch.execution.identity import check_still_planned, expected
from airflow_provider_microbatch.execution.opened_sources import OpenedSources
from airflow_provider_microbatch.execution.planned import PlannedBatch
from airflow_provider_microbatch.sinks import Manifest, OpenSink
from airflow_provider_microbatch.sinks.manifest import ADOPTED


def check_published(checkpoint: Checkpoint, sink: OpenSink, planned: PlannedBatch, manifest: Manifest) -> Manifest:
    """Check that what is to be committed is the batch's output in the sink. Its process may have slept since it was
    published, while the batch was planned anew and made by another attempt: under the figures, the watermark and the
    epoch of this one a replay, a clear and the next batch would go on from what is in no table. A clear would be
    answered by it, and the files of a batch that was set aside be cleaned.

    :param planned: the batch as this process has read it.
    :param manifest: of the output that was published.
    :return: of what is in the sink, which is to be committed: a backup that was restored gives out the same epochs.
    :raises AttemptFencedError: if it is no longer in: a command, or a backup that was restored, took it out to have it
        run again.
    """
    key, place = planned.key, sink.location()
    published = f"batch {key} attempt {manifest.epoch} was published and is not in {place} any more"
    # Output that was adopted, or made by an older version, does not tell of which plan it is.
    tells_plan = manifest.epoch != ADOPTED and manifest.identity is not None
    if tells_plan and manifest.identity != planned.identity:
        raise AttemptFencedError(
            f"{published}: the batch was taken back and planned anew meanwhile. Nothing was committed by this attempt; "
            "the next run goes on with the batch as it is planned now."
        )
    # The commit of a committed batch changes nothing, unless it answers a clear, or lets go of what was set aside.
    if planned.committed and not planned.set_aside and not checkpoint.replays.pending(planned.key):
        return manifest
    found = sink.contains(expected(checkpoint, planned.identity))
    if found is None:
        raise AttemptFencedError(
            f"{published}: the pipeline was rewound, or put back to a backup, meanwhile. Nothing was committed; the "
            "next run makes the batch again."
        )
    if found.epoch != manifest.epoch:
        raise AttemptFencedError(
            f"{published}, which has it by attempt {found.epoch}. Nothing was committed by this attempt; the next run "
            "commits what is there."
        )
    # A sink's record may leave out files, which nobody needs any more: their count is told of the batch.
    return found if found.files or found.result != manifest.result else manifest


def add_commit(
    *, checkpoint: Checkpoint, sources: OpenedSources, planned: PlannedBatch, entry: CommitEntry
) -> CommitEntry:
    """Commit a batch. A process may sleep before it gets here, and the batch may be rewound meanwhile: a commit entry
    without offsets would stop the pipeline, and data that was released to be cleaned would be lost.

    :param planned: the batch as this process has read it.
    :param entry: names its plan, since its writer may die before the check that follows.
    :return: the entry that counts: another process's if that came first.
    :raises AttemptFencedError: if the batch was rewound; nothing is committed then.
    :raises MaintenanceError: if a command is at the checkpoint, which has planned without this commit; nothing is
        committed then.
    :raises SourceError: if nothing is committed, and a source cannot keep its range.
    :raises BrokenLogError: if the entry of another plan is there, and cannot be taken back.
    """
    lane, id = checkpoint.lane(planned.key.lane), planned.key.id
    added = lane.commit_log.add(id, entry)
    while not added and (other := lane.commit_log.read(id)) is not None and lane.commits_another(id, other[0]):
        # By its bytes: an entry of another version, or one that hides other secrets, would be encoded otherwise.
        if not lane.commit_log.remove(id, other[1]) and lane.commit_log.read(id) == other:
            raise BrokenLogError(
                f"lane {lane.name}: {lane.commit_log.where(id)} was written for another plan of batch {id}, and lies "
                "in a segment, where no run of this package puts such. Restore the checkpoint from a backup."
            )
        added = lane.commit_log.add(id, entry)
    try:
        check_still_planned(checkpoint, planned.identity)
        # The planner of the next batch has seen the entry, and so has the command that came after: the entry stays.
        if added and not lane.offset_log.has(id + 1):
            # After the entry: a command marks the checkpoint, then looks at the log, so one of them sees the other.
            checkpoint.maintenance.check_none()
    except (AttemptFencedError, MaintenanceError) as late:
        if added:
            lane.commit_log.take_back(id, entry)
        # Once more: a command may have relied on the entry, and have put its own batch behind it at that moment.
        if isinstance(late, MaintenanceError) and lane.offset_log.has(id + 1):
            lane.commit_log.add(id, entry)
            return entry
        sources.keep(planned.ranges)
        raise
    return entry if added else lane.commit_log.get(id) or entry
