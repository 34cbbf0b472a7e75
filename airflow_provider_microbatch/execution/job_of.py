"""The job of an attempt: the planned ranges, from the log alone."""

from __future__ import annotations

import logging

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.entries import Attempt
from airflow_provider_microbatch.checkpoint.lane import plan_given_up
from airflow_provider_microbatch.exceptions import SourceChangedError
from airflow_provider_microbatch.execution.forgetting import check_entries_known, forgotten_of
from airflow_provider_microbatch.execution.identity import expected, latest_seen
from airflow_provider_microbatch.execution.intakes import with_intakes
from airflow_provider_microbatch.execution.letters_taken import check_not_taken
from airflow_provider_microbatch.execution.opened_sources import OpenedSources
from airflow_provider_microbatch.execution.planned import PlannedBatch
from airflow_provider_microbatch.execution.stateful import streaming_of
from airflow_provider_microbatch.execution.subtasks import in_subtasks
from airflow_provider_microbatch.pipeline import Pipeline, sql_settings
from airflow_provider_microbatch.runtime.job import Flow, Job, Transform
from airflow_provider_microbatch.sinks import OpenSink
from airflow_provider_microbatch.sinks.manifest import FORGOTTEN, RANGES

log = logging.getLogger(__name__)


def job_of(
    planned: PlannedBatch,
    attempt: Attempt,
    *,
    pipeline: Pipeline,
    checkpoint: Checkpoint,
    sources: OpenedSources,
    sink: OpenSink,
    transform: Transform | Flow | None,
) -> Job:
    """The runtime's work for an attempt at a planned batch. Splits of a split-wise pipeline that earlier attempts have
    finished are taken over into the attempt's stage, and are not to be done.

    :raises SourceChangedError: if the range is no longer as it was planned.
    :raises SinkError: if it is not known what a table takes of a row.
    :raises CheckpointError: if rows are to be forgotten of a sink that the pipeline does not have; or if the published
        output leaves out rows, and the checkpoint has lost which.
    """
    if attempt.request is not None:
        check_not_taken(checkpoint, attempt.key, sink)
        published = latest_seen(sink, expected(checkpoint, planned.identity))
        if published is not None:  # asked again before it is replaced; here, nothing of Spark's work is lost by it
            what = f"batch {attempt.key} attempt {attempt.epoch}: nothing was run"
            check_entries_known(checkpoint, published, what=what)
    streaming = None
    if pipeline.stateful:
        streaming = streaming_of(planned, attempt, pipeline=pipeline, checkpoint=checkpoint, sources=sources, sink=sink)
    try:
        reads, absent = sources.reads(
            planned.ranges,
            tell_refused=pipeline.sink.dead_letters is not None,
            without=() if streaming is None else streaming.sources,
        )
    except SourceChangedError as error:
        if attempt.request is not None:
            raise  # a batch that is committed is in nobody's way
        # In front of the source's own ways on, all of which need the plan to be gone.
        way = plan_given_up(checkpoint.lane(attempt.key.lane), attempt.key.id)
        raise SourceChangedError(f"batch {attempt.key} is planned, and cannot be read. {way} Then: {error}") from error
    for gone in sources.left_out(planned.ranges):
        log.warning("Batch %s: %s", attempt.key, gone)
    forgotten = forgotten_of(checkpoint, sink)
    job = Job(
        pipeline=pipeline.name,
        lane=attempt.key.lane,
        batch_id=attempt.key.id,
        epoch=attempt.epoch,
        batch_timestamp_ms=planned.entry.batch_timestamp_ms,
        watermark_ms=planned.entry.watermark_ms,
        conf=sql_settings(planned.entry.conf),
        transform=transform.divided(planned.entry.parallelism) if isinstance(transform, Flow) else transform,
        sources=reads,
        absent=absent,
        stages=sink.stages_by_name(attempt.batch, attempt.epoch),
        identity={
            **planned.identity.to_dict(),
            RANGES: sources.known_as(planned.ranges),
            FORGOTTEN: [one.mark for one in forgotten],
        },
        streaming=streaming,
        checks=with_intakes(pipeline.checks(forgotten), sink),
    )
    if not pipeline.split_wise:
        return job
    return in_subtasks(job, attempt, planned.ranges, checkpoint=checkpoint, sources=sources, sink=sink)
