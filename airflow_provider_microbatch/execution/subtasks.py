"""Split-wise batches: the splits that a dead attempt has finished pass to the next attempt, which runs the rest.

Only the output of a subtask that is made of the very same passes: the same plan, code and settings, and the same clear,
as a user that clears a batch wants all of it made again. An attempt that ends without a commit has its finished
subtasks put on record, then moved out of its stage; then the attempt is closed, and its stage is dropped. The next
attempt moves the subtasks into its own stage, and has its job run the others. If a process is killed in between, the
subtasks that were not moved are run again.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
from collections.abc import Sequence
from dataclasses import replace

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.entries import Attempt
from airflow_provider_microbatch.checkpoint.identity import BatchIdentity
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import CheckpointError, EngineError, MicroBatchError
from airflow_provider_microbatch.execution.guard import check_not_fenced
from airflow_provider_microbatch.execution.opened_sources import OpenedSources, Ranges
from airflow_provider_microbatch.execution.status import definition_of
from airflow_provider_microbatch.runtime.job import JOB_VERSION, Job, Subtask
from airflow_provider_microbatch.sinks import OpenSink, SubtaskStages
from airflow_provider_microbatch.sources import Split

log = logging.getLogger(__name__)


def in_subtasks(
    job: Job, attempt: Attempt, ranges: Ranges, *, checkpoint: Checkpoint, sources: OpenedSources, sink: OpenSink
) -> Job:
    """The job split by split, with the subtasks that earlier attempts have finished taken over into the attempt's
    stage. Idempotent.

    :param job: the job that reads its only source as a whole.
    :raises AttemptFencedError: if there is a later attempt, which would have to do again the subtasks that this one
        took from it.
    :return: the job as it is if the range is one split, or if the sink lets no output pass from attempt to attempt.
    """
    output = sink.subtasks
    if output is None:
        log.warning("%s cannot take over output that a failed attempt had finished: the batch is run as one",
                    sink.location())  # fmt: skip
        return job
    splits = sources.splits_of(ranges)
    if sum(map(len, splits.values())) < 2:
        return job
    check_not_fenced(checkpoint, attempt)
    made_of = _made_of(job, attempt, sink)
    subtasks = [
        _subtask(source, split, made_of, job=job, attempt=attempt, sink=sink)
        for source, found in splits.items()
        for split in found
    ]
    wanted = {subtask.name for subtask in subtasks}
    on_record = [done for done in checkpoint.subtasks.all(attempt.key, made_of) if done.name in wanted]
    taken = {done.name: done for done in output.adopt(attempt.batch, attempt.epoch, on_record)} if on_record else {}
    if taken:
        epochs = sorted({done.epoch for done in taken.values()})
        log.info(
            "Batch %s attempt %s takes over %s of %s splits, which attempt %s had finished",
            attempt.key, attempt.epoch, len(taken), len(subtasks), ", ".join(map(str, epochs)),
        )  # fmt: skip
    return replace(
        job,
        sources={},
        subtasks=tuple(
            replace(subtask, done={"result": dict(done.result), "files": dict(done.files)})
            if (done := taken.get(subtask.name)) is not None
            else subtask
            for subtask in subtasks
        ),
    )


def _subtask(source: str, split: Split, made_of: str, *, job: Job, attempt: Attempt, sink: OpenSink) -> Subtask:
    assert sink.subtasks is not None, "asked before"
    name = _digest([source, split.id, split.read.reader, split.read.arguments])[:32]
    return Subtask(
        name=name,
        split=split.id,
        source=source,
        read=split.read,
        stage=sink.subtasks.stage(attempt.batch, attempt.epoch, name),
        made_of=made_of,
    )


def _made_of(job: Job, attempt: Attempt, sink: OpenSink) -> str:
    transform = None if job.transform is None else dataclasses.asdict(job.transform)
    return _digest(
        {
            "plan": attempt.batch.digest,
            "request": attempt.request,
            "code": attempt.code.get("code_hash"),
            "transform": transform,
            "conf": dict(job.conf),
            "sink": sink.definition.to_dict(),
            "runtime": JOB_VERSION,
            # Rows that were forgotten since are in output that was finished before.
            **({} if job.checks is None else {"checks": dataclasses.asdict(job.checks)}),
        }
    )


def _digest(values: object) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def assemble(sink: OpenSink, attempt: Attempt) -> None:
    """Make one stage of the subtasks of a job that has ended well, for readers of the stage before its publish, which
    would do so otherwise: from then on none of them passes to another attempt."""
    if sink.subtasks is not None:
        sink.subtasks.assemble(attempt.batch, attempt.epoch)


def check_ran_by_splits(job: Job, attempt: Attempt, sink: OpenSink) -> None:
    """Check that a job that is to be run split by split was not run as a whole. Such a job has no other sources, so an
    engine that ran it as a whole has read nothing, and would leave an empty batch.

    :raises EngineError: if the stage tells of no split.
    """
    staged = sink.manifest(attempt.batch, attempt.epoch) if job.subtasks else None
    if staged is not None and "subtasks" not in staged.result:
        raise EngineError(
            f"batch {attempt.key} attempt {attempt.epoch} was to be run split by split, and its stage tells of no "
            f"split: {attempt.handle.get('engine')} ran it as a whole, and read nothing. Nothing was published."
        )


def keep_finished(checkpoint: Checkpoint, sink: OpenSink, attempt: Attempt) -> None:
    """Keep the finished subtasks of a split-wise attempt, on record, for the next attempt: its own stage is about to be
    dropped."""
    output = sink.subtasks
    if output is not None and _is_split_wise(checkpoint, attempt):
        try:
            _keep_finished(checkpoint, output, attempt)
        except (MicroBatchError, OSError) as error:
            log.warning("Batch %s attempt %s: what it had finished is not kept: %s", attempt.key, attempt.epoch, error)
        # Before the stage goes. The attempt's Spark may still run, and would go on in a stage that is made again under
        # it: output that it finishes there lacks what went with the first stage, and looks whole.
        checkpoint.subtasks.close(attempt.key, attempt.epoch)


def _keep_finished(checkpoint: Checkpoint, output: SubtaskStages, attempt: Attempt) -> None:
    done = output.finished(attempt.batch, attempt.epoch)
    # Asked after the look: output that was seen while the attempt is not closed was seen before its stage was dropped.
    if not done or checkpoint.subtasks.is_closed(attempt.key, attempt.epoch) or is_over(checkpoint, attempt.key):
        return
    for one in done:
        checkpoint.subtasks.add(attempt.key, one)
    output.keep(attempt.batch, attempt.epoch, done)
    log.info("Kept %s finished splits of batch %s attempt %s", len(done), attempt.key, attempt.epoch)


def _is_split_wise(checkpoint: Checkpoint, attempt: Attempt) -> bool:
    try:
        return bool((definition_of(checkpoint, attempt) or {}).get("split_wise"))
    except CheckpointError:
        return True  # not known; then the attempt is closed, as a split-wise one is


def is_over(checkpoint: Checkpoint, key: BatchKey) -> bool:
    """Whether no attempt at the batch will be made: the batch is not planned any more, or is committed and no clear of
    it waits for its answer."""
    lane = checkpoint.lane(key.lane)
    if lane.commit_of(key.id) is not None:
        return not checkpoint.replays.pending(key)
    return lane.offset_log.read(key.id) is None


def drop_kept(checkpoint: Checkpoint, sinks: Sequence[OpenSink], batch: BatchIdentity) -> bool:
    """Remove the finished subtasks that are kept of a batch that is over. The output goes before the record, by which
    the janitor looks for it.

    :return: whether there were any.
    """
    dropped = [sink.subtasks.drop(batch) for sink in sinks if sink.subtasks is not None]
    checkpoint.subtasks.forget(batch.key)
    return any(dropped)


def drop_kept_if_over(checkpoint: Checkpoint, sink: OpenSink, batch: BatchIdentity) -> None:
    """Call :func:`drop_kept` after a commit if the batch is over; remains never fail the commit."""
    try:
        if is_over(checkpoint, batch.key):
            drop_kept(checkpoint, [sink], batch)
    except (MicroBatchError, OSError) as error:
        log.warning("Batch %s is committed; the janitor removes what was kept of it: %s", batch.key, error)
