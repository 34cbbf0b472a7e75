"""What the logs hold, as values. How they look as bytes is the codec's business."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_microbatch.checkpoint.key import BatchKey

Offset = str
"""A source's position: one line of JSON text, written by the source and opaque to everyone else."""


@dataclass(frozen=True, kw_only=True)
class RunIdentity:
    """Which Airflow task run did something. All None-able fields are None outside of Airflow.

    :param dag_id: the DAG.
    :param run_id: the DAG run.
    :param task_id: the task.
    :param map_index: index of a mapped task, -1 if it is not mapped.
    :param ti_id: Airflow's id of this try; changes with every retry and clear, unlike ``try_number``.
    :param try_number: what the UI shows; no fencing token.
    :param clear_number: how often the run was cleared: tells "the user wants it again" from "the attempt failed".
    :param logical_date: ISO 8601, UTC.
    :param partition_key: of a partitioned timetable.
    :param partition_date: ISO 8601, UTC.
    """

    dag_id: str
    run_id: str
    task_id: str
    map_index: int = -1
    ti_id: str | None = None
    try_number: int = 1
    clear_number: int = 0
    logical_date: str | None = None
    partition_key: str | None = None
    partition_date: str | None = None

    def same_work(self, other: RunIdentity) -> bool:
        """True if both are tries of the same task of the same run (whatever the try and the clear)."""
        return (self.dag_id, self.run_id, self.map_index) == (other.dag_id, other.run_id, other.map_index)


@dataclass(frozen=True, kw_only=True)
class OffsetEntry:
    """Entry N of the offset log: what batch N reads. Never changed once written.

    :param ends: by source name, in the order of the log; None for a source that never had data.
    :param starts: by source name, where each range begins (exclusive, as the source defines it). None: from the
        source's beginning. Empty in entries that Spark wrote; then the ends of entry N-1 are the starts.
    :param batch_timestamp_ms: the batch's time, milliseconds since the epoch, UTC. A replay sees the same.
    :param watermark_ms: event-time watermark of the batch, milliseconds since the epoch.
    :param conf: SQL settings that change results, pinned.
    :param run: the run that planned it; None for entries that Spark wrote.
    :param pipeline: name of the pipeline that planned it; None for entries that Spark wrote.
    :param extra: keys of the metadata line that this version does not know; carried, not dropped.
    :param source_metadata: Spark's ``sourceMetadataInfo`` of v2, carried.
    """

    ends: Mapping[str, Offset | None]
    batch_timestamp_ms: int
    starts: Mapping[str, Offset | None] = field(default_factory=dict)
    watermark_ms: int = 0
    conf: Mapping[str, str] = field(default_factory=dict)
    run: RunIdentity | None = None
    pipeline: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    source_metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class CommitEntry:
    """Entry N of the commit log: batch N is durably in the sink (or was set aside, and says so).

    :param next_watermark_ms: watermark for the batch after this one, milliseconds since the epoch.
    :param epoch: the attempt whose output is published; None for entries that Spark wrote.
    :param requires_another_batch: the batch asks for one more even without new data (Spark's no-data batch).
    :param set_aside: the batch was given up after failing again and again; its range is not in the sink, unless a
        replay has been completed since.
    :param failure: of a batch that was set aside: ``error`` (the last one), ``attempts`` (how many failed), ``epoch``
        (under which it was set aside), ``starts`` and ``ends`` by source.
    :param progress: the runtime's result: numInputRows by source, rows, files, bytes, durationMs by phase.
    :param run: the run that committed it.
    :param committed_ms: milliseconds since the epoch, UTC.
    :param extra: unknown keys of the metadata line; carried.
    """

    next_watermark_ms: int = 0
    epoch: int | None = None
    requires_another_batch: bool = False
    set_aside: bool = False
    failure: Mapping[str, Any] = field(default_factory=dict)
    progress: Mapping[str, Any] = field(default_factory=dict)
    run: RunIdentity | None = None
    committed_ms: int | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One try at a batch. Its epoch is taken by put-if-absent, so no two attempts of a batch share one.

    :param key: the batch.
    :param epoch: from 1 on; a higher one fences all lower ones.
    :param handle: the engine's handle, recorded before the launch, so that any process can poll or cancel.
    :param run: the task run that made the attempt.
    :param code: what it ran: ``transform``, ``code_hash`` (SHA-256), ``bundle_name``, ``bundle_version``.
    :param started_ms: milliseconds since the epoch, UTC.
    :param definition: name of the pipeline's definition in the checkpoint; None in entries of older versions.
    :param request: number of the newest replay request that the attempt was made for, with all before it; None for an
        attempt that was made for none, which never replaces what is published.
    """

    key: BatchKey
    epoch: int
    handle: Mapping[str, Any]
    run: RunIdentity | None
    code: Mapping[str, Any]
    started_ms: int
    definition: str | None = None
    request: int | None = None


@dataclass(frozen=True, kw_only=True)
class AttemptEnd:
    """How an attempt ended; at most one for each attempt.

    :param state: ``succeeded``, ``failed``, ``canceled`` or ``superseded``.
    :param error: the error's text, for everything but ``succeeded``.
    :param ended_ms: milliseconds since the epoch, UTC.
    """

    state: str
    ended_ms: int
    error: str | None = None


@dataclass(frozen=True, kw_only=True)
class CheckpointIdentity:
    """Whose checkpoint this is, and its format, chosen once when it is made.

    :param pipeline: name of the pipeline; None for a checkpoint that only Spark has written so far.
    :param format: ``v1`` (by position) or ``v2`` (by name) of the offset log.
    :param sources: names in the order of the v1 offset log; only used to read and write v1.
    :param query_id: Spark's query id (the ``metadata`` file).
    """

    pipeline: str | None
    format: str
    sources: tuple[str, ...]
    query_id: str
