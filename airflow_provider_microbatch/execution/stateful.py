"""Batches that keep state: the state that a batch goes on from, and the state files that are not needed any more."""

from __future__ import annotations

import glob
import logging
from collections.abc import Mapping
from pathlib import Path
from shlex import quote
from typing import Any

from airflow_provider_microbatch.checkpoint.by_hand import is_position
from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.entries import Attempt, CommitEntry, OffsetEntry
from airflow_provider_microbatch.checkpoint.key import LIVE, BatchKey, span_of
from airflow_provider_microbatch.checkpoint.lane import command
from airflow_provider_microbatch.exceptions import CheckpointError, IntervalError, MicroBatchError
from airflow_provider_microbatch.execution.kept_states import ANEW, KeptStates
from airflow_provider_microbatch.execution.opened_sources import OpenedSources
from airflow_provider_microbatch.execution.pinned_watermark import told_of_other_watermark, way_to_right_watermark
from airflow_provider_microbatch.execution.planned import PlannedBatch, load_batch
from airflow_provider_microbatch.execution.rewind_named import way_back
from airflow_provider_microbatch.execution.state_files import MARGIN_MS, Needed, flat, remove_unneeded
from airflow_provider_microbatch.execution.told_state import (
    folder_of,
    has_left_state,
    local_folder,
    named_as_now,
    published_result,
    state_of,
)
from airflow_provider_microbatch.pipeline import INTERVAL, Pipeline
from airflow_provider_microbatch.runtime.streaming import SNAPSHOT_EVERY
from airflow_provider_microbatch.runtime.streaming_folder import STATE, remove_folder
from airflow_provider_microbatch.runtime.streaming_job import Streaming
from airflow_provider_microbatch.sinks import Manifest, OpenSink

STATES_KEPT = 100
"""Number of batches that may be gone back to where the logs keep all: Spark's own number."""

log = logging.getLogger(__name__)

ATTEMPTS = "streaming"
"""Folder of the checkpoint with the checkpoint that Spark is shown, for each attempt that runs."""

_PARTITIONS = "spark.sql.shuffle.partitions"


def streaming_of(
    planned: PlannedBatch,
    attempt: Attempt,
    *,
    pipeline: Pipeline,
    checkpoint: Checkpoint,
    sources: OpenedSources,
    sink: OpenSink,
) -> Streaming:
    """How an attempt runs a stateful batch.

    :raises CheckpointError: if the checkpoint lies where Spark's driver finds no folder, if the state of the batch
        before is not known or has another watermark, or if a later batch has gone on from this one.
    """
    folder = local_folder(checkpoint)
    bounded = _is_bounded(pipeline, planned.key, checkpoint)
    _check_answerable(checkpoint, attempt, sink)
    identity = checkpoint.identity()
    assert identity is not None, "a batch is planned"
    before = state_before(planned, checkpoint=checkpoint, sink=sink)
    if before is not None:
        _check_partitions(pipeline, before, checkpoint)
        _check_output_mode(pipeline, before, checkpoint)
        _check_watermark(planned, before, checkpoint, sink)
    own = _own_folder(checkpoint, attempt)
    return Streaming(
        folder=str(own),
        state=str((own if bounded else folder) / STATE),
        query_id=identity.query_id,
        output_mode=pipeline.output_mode,
        sources=sources.streams(planned.ranges),
        before=None if before is None else named_as_now(before, checkpoint.names),
        late_ms=0 if before is None else load_batch(checkpoint, _before(planned.key)).entry.watermark_ms,
        bounded=bounded,
    )


def _is_bounded(pipeline: Pipeline, key: BatchKey, checkpoint: Checkpoint) -> bool:
    """Whether the batch is all of an interval, which has a state of its own."""
    if key.lane == LIVE:
        return False
    check_intervals(pipeline, checkpoint)
    return True


def check_no_live_state(pipeline: Pipeline, checkpoint: Checkpoint, commit: CommitEntry | None) -> None:
    """Check that a pipeline that is planned by intervals leaves no state behind that no run goes on from.

    :param commit: of the newest batch of the live lane; None before the first.
    :raises IntervalError: naming the ways on.
    """
    if pipeline.plan == INTERVAL and commit is not None and has_left_state(commit):
        raise IntervalError(
            f"the batches of {checkpoint.location} keep state, and pipeline {pipeline.name!r} is planned by intervals "
            "now, none of which goes on from it: rows that wait for the watermark would be in no table. Make it "
            "plan='live' again; or give the pipeline by intervals a checkpoint and a table of its own."
        )


def check_intervals(pipeline: Pipeline, checkpoint: Checkpoint) -> None:
    """Check that an interval may be a batch of its own.

    :raises IntervalError: if the pipeline keeps state over intervals: a batch beside the live ones would begin with
        empty state, and they would not know what it has read.
    """
    if pipeline.stateful and pipeline.plan != INTERVAL:
        raise IntervalError(
            f"pipeline {pipeline.name!r} keeps state from batch to batch (stateful=True), and a data interval is read "
            "beside them: its rows would be aggregated by themselves, and the state would never know them. Its next "
            "batch reads what is new, however old it is; `microbatch rewind "
            f"{quote(checkpoint.location)} --to …` takes batches back to be made again. If each interval is to be "
            "aggregated by itself, that is plan='interval', with a checkpoint and a table of its own."
        )


def state_before(planned: PlannedBatch, *, checkpoint: Checkpoint, sink: OpenSink) -> Mapping[str, Any] | None:
    """The state that a batch goes on from: that of the attempt whose output of the batch before is published; None for
    the first batch. The sink is asked, which decides between two attempts, also for a replay that died before it was
    answered.

    :raises CheckpointError: if no state is on record.
    """
    key = planned.key
    if key.id == 0:
        return None
    before = _before(key)
    state = state_of(published_result(checkpoint, before, [sink]), where=f"batch {before} of {checkpoint.location}")
    if state is None and is_position(load_batch(checkpoint, before).entry):
        back = command(checkpoint.lane(key.lane), f"rewind --to {before.id - 1}")
        raise CheckpointError(
            f"batch {before} of {checkpoint.location} was set by hand, and keeps no state to go on from: {back} takes "
            "it back."
        )
    if state is None:
        raise CheckpointError(
            f"batch {before} of {checkpoint.location} has kept no state: it was made before the pipeline was "
            "stateful. Give the stateful pipeline a checkpoint and a table of its own."
        )
    return state


def _before(key: BatchKey) -> BatchKey:
    return BatchKey(key.lane, key.id - 1)


def check_goes_on(pipeline: Pipeline, checkpoint: Checkpoint, commit: CommitEntry | None) -> None:
    """Check that a pipeline goes on keeping the state that its newest batch has left. A batch that is made without it
    aggregates within itself alone, and the batches after it have no state to go on from.

    :param commit: of the newest batch of the live lane; None before the first.
    :raises CheckpointError: naming the ways on.
    """
    if pipeline.stateful:
        if commit is None and any(span_of(lane) for lane in checkpoint.lanes()):
            raise CheckpointError(
                f"data intervals of {checkpoint.location} have taken rows that the state of pipeline "
                f"{pipeline.name!r} would not know, which begins here. Make it plan='interval', as it was; or give the "
                "pipeline that keeps state from batch to batch a checkpoint and a table of its own."
            )
        return
    if commit is not None and has_left_state(commit):
        raise CheckpointError(
            f"the batches of {checkpoint.location} keep state, and pipeline {pipeline.name!r} is not stateful: its "
            "next batch would know nothing of what was read before, and the state would end there. Make it "
            "stateful=True, with the transform and output_mode that the state is of; or give the pipeline without "
            "state a checkpoint and a table of its own."
        )


def _check_partitions(pipeline: Pipeline, before: Mapping[str, Any], checkpoint: Checkpoint) -> None:
    wanted, kept = pipeline.conf.get(_PARTITIONS), before["conf"].get(_PARTITIONS)
    if wanted is not None and wanted != kept:
        raise CheckpointError(
            f"pipeline {pipeline.name!r} asks for {_PARTITIONS}={wanted}, and the state in {checkpoint.location} lies "
            f"in {kept} partitions: rows of a key would be looked for where they are not. Put {kept} back, or begin a "
            "new checkpoint and table with the new number."
        )


def _check_watermark(planned: PlannedBatch, before: Mapping[str, Any], checkpoint: Checkpoint, sink: OpenSink) -> None:
    """A planner looks before it writes the entry. Here no replay replaces the state any more."""
    told = told_of_other_watermark(checkpoint, planned.key, planned.entry, before)
    if told is not None:
        way = way_to_right_watermark(checkpoint, planned.key, sink)
        raise CheckpointError(f"{told} Nothing was run. {way}")


def _check_output_mode(pipeline: Pipeline, before: Mapping[str, Any], checkpoint: Checkpoint) -> None:
    """Spark notices no change, and what a window that is still open has told, or not told yet, depends on the mode: in
    another one its rows would be in no table, or twice. State of a query, or of an earlier version, tells no mode."""
    kept = before.get("outputMode", pipeline.output_mode)
    if pipeline.output_mode != kept:
        raise CheckpointError(
            f"pipeline {pipeline.name!r} has output_mode={pipeline.output_mode!r}, and the state in "
            f"{checkpoint.location} was made with {kept!r}: rows of groups that are still open would be lost, or be in "
            f"the table twice. Put {kept!r} back, or begin a new checkpoint and table with the new mode."
        )


def check_answerable(checkpoint: Checkpoint, attempt: Attempt, result: Mapping[str, Any], *, sink: OpenSink) -> None:
    """Check an attempt at a replay, as :func:`check_replay` does before. What it refuses is withdrawn: nothing can
    answer that clear any more, and as long as it waits retention removes nothing.

    :param result: of the attempt.
    :raises CheckpointError: as :func:`check_replay`.
    """
    if result.get("state") is not None:
        _check_answerable(checkpoint, attempt, sink)


def _check_answerable(checkpoint: Checkpoint, attempt: Attempt, sink: OpenSink) -> None:
    try:
        _check_is_newest(checkpoint, attempt.key, sink)
    except CheckpointError as error:
        for request in checkpoint.replays.pending(attempt.key):
            if request.epoch <= (attempt.request or 0):
                checkpoint.replays.refuse(attempt.key, request.epoch, reason=str(error))
        raise


def is_overtaken(checkpoint: Checkpoint, key: BatchKey) -> bool:
    """Whether later batches have gone on from the state that a committed batch has kept: no clear of it is answered.

    :raises CorruptEntryError: if its commit entry cannot be read.
    """
    commit = checkpoint.lane(key.lane).commit_of(key.id)
    return commit is not None and has_left_state(commit) and _newest_if_later(checkpoint, key) is not None


def _newest_if_later(checkpoint: Checkpoint, key: BatchKey) -> int | None:
    newest = checkpoint.lane(key.lane).offset_log.latest_id()
    return newest if newest is not None and newest > key.id else None


def _check_is_newest(checkpoint: Checkpoint, key: BatchKey, sink: OpenSink) -> None:
    newest = _newest_if_later(checkpoint, key)
    if newest is not None:
        raise CheckpointError(
            f"batch {key} of {checkpoint.location} keeps state, from which batches {key.id + 1} to {newest} have "
            f"gone on: run again by itself it would contradict them. {_way_to_before(checkpoint, key, sink)}"
        )


def _way_to_before(checkpoint: Checkpoint, key: BatchKey, sink: OpenSink) -> str:
    """How the batch is made again with all that have gone on from it, in words."""
    lane = checkpoint.lane(key.lane)
    shown = f"{command(lane, f'rewind --to {key.id - 1}')} shows what it would undo, and the next runs make these"
    try:
        way = way_back(KeptStates(checkpoint=checkpoint, sinks=[sink]), sink, to=key.id - 1)
    except MicroBatchError as unknown:
        return f"{shown} batches again. Whether it is refused, nobody can tell now: {unknown}"
    if way is not None and way.to == key.id - 1:
        return f"{shown} batches again."
    gone = f"No rewind goes back to batch {key.id - 1}: its state is not kept any more, or what came after it stays."
    if way is None:
        return f"{gone} To have it made otherwise, {ANEW}."
    back = "all batches are taken back" if way.to < 0 else f"batch {way.to} is the newest before it that has state"
    shown = f"{command(lane, f'rewind --to {way.to}')} shows what it would undo, and the next runs make what follows"
    return f"{gone} But {back}: {shown} again. Or {ANEW}."


def check_replay(checkpoint: Checkpoint, key: BatchKey, result: Mapping[str, Any], *, sink: OpenSink) -> None:
    """Check a replay before it is requested.

    :raises CheckpointError: if the batch with this result has kept state, and a later batch is planned, which has gone
        on, or goes on, from that state.
    """
    if result.get("state") is not None:
        _check_is_newest(checkpoint, key, sink)


def next_watermark(manifest: Manifest, entry: OffsetEntry) -> int:
    """The watermark of the batch after this one, milliseconds since the epoch: Spark's, if the batch kept state.

    :param manifest: of the attempt that is published.
    :param entry: the batch's.
    """
    state = state_of(manifest.result, where=f"batch {manifest.key}")
    return entry.watermark_ms if state is None else int(state["nextWatermarkMs"])


def keep_state_of_committed(checkpoint: Checkpoint, key: BatchKey, manifest: Manifest, *, kept: int | None) -> None:
    """Remove the state that the commit of a batch makes superfluous, after :func:`~.retention.apply_retention`. An
    error is logged, and never fails the batch.

    :param kept: number of batches that the logs keep, unless something holds more; None keeps all.
    """
    if "state" not in manifest.result:
        return
    try:
        _drop_folders(checkpoint, key, manifest.epoch)
        if manifest.result["state"] is not None:
            _drop_files(checkpoint, key, kept=kept, since=int(manifest.result["state"].get("since", 0)))
    except Exception as error:
        log.warning("Batch %s: of its state something could not be removed: %s", key, error)


def drop_own_folder(checkpoint: Checkpoint, attempt: Attempt) -> None:
    """Remove what an attempt that has ended left of the checkpoint that Spark was shown, with its copies of rows. There
    is nothing to remove of an attempt that kept no state."""
    if folder_of(checkpoint) is not None:
        remove_folder(str(_own_folder(checkpoint, attempt)))


def _own_folder(checkpoint: Checkpoint, attempt: Attempt) -> Path:
    """Attempts of two lanes may have the same numbers, and run at once."""
    return local_folder(checkpoint) / ATTEMPTS / f"{_of_lane(attempt.key)}{attempt.key.id}-{attempt.epoch}"


def _of_lane(key: BatchKey) -> str:
    return "" if key.lane == LIVE else f"{key.lane}."


def _drop_folders(checkpoint: Checkpoint, committed: BatchKey, epoch: int) -> None:
    """Remove the remains that killed attempts of a lane left of the checkpoints that Spark was shown, up to the
    committed one's. An attempt that still runs loses its folder, and its batch is not published any more."""
    folder, lane = local_folder(checkpoint) / ATTEMPTS, _of_lane(committed)
    for path in folder.glob(f"{glob.escape(lane)}*") if folder.is_dir() else ():
        batch, _, attempt = path.name.removeprefix(lane).partition("-")
        if batch.isdecimal() and attempt.isdecimal() and (int(batch), int(attempt)) <= (committed.id, epoch):
            remove_folder(str(path))


def _drop_files(checkpoint: Checkpoint, key: BatchKey, *, kept: int | None, since: int) -> None:
    commits, newest = checkpoint.lane(key.lane).commit_log, key.id
    oldest = max(newest - (kept or STATES_KEPT) + 1, 0)
    if kept is not None:  # a batch that retention leaves in the logs may be gone back to
        oldest = min([oldest, *commits.ids()[:1]])
    ids: dict[int, frozenset[str]] = {}
    for number in range(max(oldest - SNAPSHOT_EVERY, 0) + 1, newest + 1):
        entry = commits.get(number)
        state = None if entry is None else state_of(entry.progress, where=f"batch {number}")
        if state is not None and state.get("base") is not None:
            ids[number - 1] = frozenset(flat(state["base"]))
    # An attempt that goes on from the newest batch, or replays it, has begun since the batch before was committed.
    before = commits.get(newest - 1) if newest > 0 else None
    cut = 0 if before is None else (before.committed_ms or 0) - MARGIN_MS
    needed = Needed(newest=newest, oldest=oldest, ids=ids, parts_before_ms=cut, since=since)
    remove_unneeded(local_folder(checkpoint) / STATE, needed)
