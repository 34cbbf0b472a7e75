"""The values that the logs hold. Their form as bytes is the codec's business."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from airflow_provider_microbatch.checkpoint.identity import BatchIdentity, digest_of
from airflow_provider_microbatch.checkpoint.key import BatchKey

Offset = str
"""A source's position: one line of JSON text, written by the source and opaque to all other code."""


SKEW_MS = 5 * 60 * 1000
"""Milliseconds that the clocks of two hosts may be apart."""


class Relation(Enum):
    """How a task run stands to a task run on record; see :meth:`RunIdentity.relation_to`."""

    OTHER = "of another run; also of one with the same id, if that was deleted and made again"
    SAME = "of the same life of the run: the same try, a retry, or another of its tasks"
    LATER = "of a later clear: the user wants again what the one on record has done"
    EARLIER = "of before a clear, after which the one on record was made"


@dataclass(frozen=True, kw_only=True)
class RunIdentity:
    """The Airflow task run that did something. All None-able fields are None outside of Airflow, and in entries that an
    older version of this package has written.

    :param dag_id: the DAG.
    :param run_id: the DAG run.
    :param task_id: the task.
    :param map_index: index of a mapped task, -1 if it is not mapped.
    :param ti_id: Airflow's id of this try; changes with every retry and clear, and tells when the try was made (UUID
        7).
    :param try_number: the number that the UI shows; no fencing token.
    :param clear_number: how often the run was cleared: tells "the user wants it again" from "the attempt failed". A
        clear by REST with ``reset_dag_runs=false`` leaves the number as it is.
    :param first_try: number of the task's first try since its last clear, of any kind; 1 if it was never cleared.
    :param run_started: when the run began, ISO 8601, UTC. A clear of a finished run, or a run that is made again under
        the same id, gives another moment.
    :param run_after: the moment before which the run cannot have done anything; ISO 8601, UTC.
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
    first_try: int | None = None
    run_started: str | None = None
    run_after: str | None = None

    @property
    def was_cleared(self) -> bool:
        """Whether a user has asked for this task, or for others of its run, again."""
        return self.clear_number > 0 or (self.first_try or 1) > 1

    def was_made_after(self, moment_ms: int) -> bool:
        """Whether Airflow made this try after that moment, milliseconds since the epoch, by the clock of any host. True
        too if the try's id does not tell."""
        made = _made_ms(self.ti_id)
        return made is None or made > moment_ms + SKEW_MS

    def is_newer_than(self, other: RunIdentity) -> bool:
        """Whether Airflow made this try after the other one, by their ids alone; False if the ids do not tell."""
        made, before = _made_ms(self.ti_id), _made_ms(other.ti_id)
        return made is not None and before is not None and made > before

    def is_of(self, other: RunIdentity) -> bool:
        """Whether both are tries of one run, before or after a clear."""
        return self.relation_to(other) is not Relation.OTHER

    def stands_for(self, other: RunIdentity) -> bool:
        """Whether this task has, by its map index, what the task run on record has made, if both are of one run.

        A task without an index has all of its run: a sensor asks for the run, and a task that has no slots any more
        would swallow a clear of what they have made. What was made without an index is the first slot's, into which
        Airflow turns a task that gets slots; of any other one it would be replayed once more.
        """
        return self.map_index in (-1, max(other.map_index, 0))

    def relation_to(self, other: RunIdentity) -> Relation:
        """How this task run stands to a task run on record: the one comparison for retry, clear and later clear. Of two
        map indices the order counts, see :meth:`stands_for`.

        A retry keeps the values that a clear changes: the run's clear number or, where a clear leaves that number, the
        task's first try since its clear. A task instance that was deleted and made again counts its tries anew, and is
        a clear as well.
        """
        if (self.dag_id, self.run_id) != (other.dag_id, other.run_id) or not self.stands_for(other):
            return Relation.OTHER
        if self.ti_id is not None and self.ti_id == other.ti_id:
            return Relation.SAME
        if self._is_retry_beside(other):
            return Relation.SAME
        is_newer = self._is_newer(other)
        newer, older = (self, other) if is_newer else (other, self)
        if is_newer is not None and _is_of_a_remade_run(newer, older):
            return Relation.OTHER
        if self.clear_number != other.clear_number:
            return Relation.LATER if self.clear_number > other.clear_number else Relation.EARLIER
        if self.task_id != other.task_id:
            return Relation.SAME  # tries of two tasks cannot be compared
        first, before = self.first_try, other.first_try
        # A task that got more retries since its clear tells an earlier first try. The try that was made later is of no
        # earlier clear, whatever its number: fenced as one, it would leave the clear's request waiting for ever. A try
        # that seems later by a clock alone, and not by its number, is the earlier one: its clear would be lost.
        by_clock_alone = newer.try_number <= older.try_number and newer._is_made_beside(older)
        is_told = is_newer is None or (newer.first_try or 1) > (older.first_try or 1) or by_clock_alone
        if None not in (first, before) and first != before and is_told:
            return Relation.LATER if (first or 1) > (before or 1) else Relation.EARLIER
        if is_newer is not None and newer.try_number <= older.try_number:
            return Relation.LATER if is_newer else Relation.EARLIER
        return Relation.SAME

    def _is_retry_beside(self, other: RunIdentity) -> bool:
        """Whether one try is a retry of the other, made so close to it that the clocks of two schedulers may disagree
        about which came first: the try number tells the order then."""
        tries = (self.task_id, self.clear_number, self.first_try)
        if self.first_try is None or tries != (other.task_id, other.clear_number, other.first_try):
            return False
        if None not in (self.run_started, other.run_started) and self.run_started != other.run_started:
            return False
        return self._is_made_beside(other) and self.try_number != other.try_number

    def _is_made_beside(self, other: RunIdentity) -> bool:
        """Whether the tries were made so close to each other that their ids do not tell the order: the clocks of two
        hosts made them."""
        made, before = _made_ms(self.ti_id), _made_ms(other.ti_id)
        return made is not None and before is not None and abs(made - before) <= SKEW_MS

    def _is_newer(self, other: RunIdentity) -> bool | None:
        """Whether Airflow made this try after the other one; None if neither ids nor starts of the runs tell."""
        made, before = _made_ms(self.ti_id), _made_ms(other.ti_id)
        if made is not None and before is not None and made != before:
            return made > before
        if self.run_started is None or other.run_started is None or self.run_started == other.run_started:
            return None
        return self.run_started > other.run_started

    @property
    def in_words(self) -> str:
        """The task that somebody is to clear."""
        return f"task {self.task_id!r} of run {self.run_id!r} of DAG {self.dag_id!r}"


def _is_of_a_remade_run(newer: RunIdentity, older: RunIdentity) -> bool:
    """Whether the newer of two tries is of a run that was made after the older try's run was deleted."""
    if newer.clear_number > older.clear_number:
        return False
    if newer.run_started is None or older.run_started is None:
        return newer.task_id == older.task_id and newer.try_number <= older.try_number
    if newer.run_started == older.run_started:
        return False
    if newer.clear_number < older.clear_number:
        return True
    # A user can clear a task of a finished run without a new clear number, and start the run anew by hand.
    return newer.task_id == older.task_id and (newer.first_try or 1) <= (older.first_try or 1)


def _made_ms(ti_id: str | None) -> int | None:
    """When Airflow made the try, milliseconds since the epoch; None if the try's id does not tell."""
    try:
        number = uuid.UUID(ti_id or "")
    except ValueError:
        return None
    return number.int >> 80 if number.version == 7 else None


@dataclass(frozen=True, kw_only=True)
class OffsetEntry:
    """Entry N of the offset log: what batch N reads. Never changed once written.

    :param ends: by source name, in the order of the log; None for a source that never had data. For a source in
        ``late``, the start of its range as long as the batch is not resolved.
    :param starts: by source name, where each range begins (exclusive, as the source defines it); None for the source's
        beginning. Empty in entries that Spark wrote: the ends of entry N-1 are the starts then.
    :param batch_timestamp_ms: the batch's time, milliseconds since the epoch, UTC. A replay sees the same time.
    :param watermark_ms: event-time watermark of the batch, milliseconds since the epoch.
    :param conf: SQL settings that change results, pinned.
    :param run: the run that planned it; None for entries that Spark wrote.
    :param pipeline: name of the pipeline that planned it; None for entries that Spark wrote.
    :param stands_for: digest of the torn or lost entry that a repair wrote again as this one: the output of the entry's
        attempts is known by that digest.
    :param late: sources whose range has no end until an attempt has read it.
    :param read_as: for each source that the batch reads from, the source's settings for making rows when the batch was
        planned: see ``Source.reads_as``. An attempt reads by the settings of its own time; this record tells whether
        they have changed. Empty in entries of older versions, and of commands.
    :param parallelism: the number of partitions that rows are divided into, by the name of the source or step of the
        pipeline's flow; a source or step without a number leaves rows as they are.
    :param resolved_by: epoch of the attempt that chose the ends of the sources in ``late``; never in the log, but read
        from beside it.
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
    stands_for: str | None = None
    late: tuple[str, ...] = ()
    read_as: Mapping[str, Mapping[str, str | None]] = field(default_factory=dict)
    parallelism: Mapping[str, int] = field(default_factory=dict)
    resolved_by: int | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    source_metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def unresolved(self) -> tuple[str, ...]:
        """Sources whose end is not known yet."""
        return self.late if self.resolved_by is None else ()

    def digest(self, data: bytes) -> str:
        """The digest by which the plan is known outside of the log.

        :param data: the entry as it lies in the log.
        """
        return self.stands_for or digest_of(data)


@dataclass(frozen=True, kw_only=True)
class CommitEntry:
    """Entry N of the commit log: batch N is durably in the sink (or was set aside, and says so).

    :param next_watermark_ms: watermark for the batch after this one, milliseconds since the epoch.
    :param epoch: the attempt whose output is published; None for entries that Spark wrote.
    :param requires_another_batch: the batch asks for one more even without new data (Spark's no-data batch).
    :param complete: with this batch all sources of the pipeline were finished; for people, since planning asks the
        sources again, and the pipeline may have other sources by then.
    :param set_aside: the batch failed too often and was passed over; its range is not in the sink, unless a replay has
        been completed since.
    :param failure: of a batch that was set aside: ``error`` (the last one), ``attempts`` (how many failed), ``epoch``
        (under which the batch was set aside), ``since`` (the first of the consecutive batches that were set aside),
        ``starts`` and ``ends`` by source.
    :param progress: the runtime's result: numInputRows by source, rows, files, bytes, durationMs by phase.
    :param run: the run that committed it.
    :param committed_ms: milliseconds since the epoch, UTC.
    :param plan: digest of the offset entry that this entry commits: its writer may sleep until the number belongs to
        another batch. None in entries of older versions, and of commands, which keep the digest in their trail.
    :param extra: unknown keys of the metadata line; carried.
    """

    next_watermark_ms: int = 0
    epoch: int | None = None
    requires_another_batch: bool = False
    complete: bool = False
    set_aside: bool = False
    failure: Mapping[str, Any] = field(default_factory=dict)
    progress: Mapping[str, Any] = field(default_factory=dict)
    run: RunIdentity | None = None
    committed_ms: int | None = None
    plan: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One try at a batch. Its epoch is taken by put-if-absent, so no two attempts of a batch share one.

    :param key: the batch.
    :param epoch: from 1 on; a higher one fences all lower ones.
    :param handle: the engine's handle, recorded before the launch, so that any process can poll or cancel.
    :param run: the task run that made the attempt.
    :param code: the code that the attempt ran: ``transform``, ``code_hash`` (SHA-256), ``bundle_name``,
        ``bundle_version``.
    :param started_ms: milliseconds since the epoch, UTC.
    :param definition: name of the pipeline's definition in the checkpoint; None in entries of older versions.
    :param request: number of the newest replay request that the attempt was made for, with all before it; None for an
        attempt that was made for no request, which never replaces published output.
    :param identity: the batch as it was planned when the attempt was opened; the attempt's manifest bears it. None in
        entries of older versions, whose manifests have none, and of epochs that only fence.
    """

    key: BatchKey
    epoch: int
    handle: Mapping[str, Any]
    run: RunIdentity | None
    code: Mapping[str, Any]
    started_ms: int
    definition: str | None = None
    request: int | None = None
    identity: BatchIdentity | None = None

    @property
    def batch(self) -> BatchIdentity:
        """The batch whose stage the attempt writes: the stage's place follows from it."""
        return self.identity or BatchIdentity.at(self.key)

    @property
    def is_fence(self) -> bool:
        """Whether the attempt's epoch only fences the attempts before it: nothing runs under such an epoch."""
        return not self.code


JOB, DEAD = "job", "dead"
"""Values of :attr:`AttemptEnd.cause`."""


@dataclass(frozen=True, kw_only=True)
class AttemptEnd:
    """How an attempt ended; at most one for each attempt.

    :param state: ``succeeded``, ``failed``, ``canceled`` or ``superseded``.
    :param error: the error's text, for everything but ``succeeded``.
    :param ended_ms: milliseconds since the epoch, UTC.
    :param cause: of an attempt that failed: ``job`` (the runtime reported that the transform, or the data, is at
        fault), ``dead`` (its process or its Spark was killed), None for all else, such as a cluster that is down.
    """

    state: str
    ended_ms: int
    error: str | None = None
    cause: str | None = None


@dataclass(frozen=True, kw_only=True)
class CheckpointIdentity:
    """The pipeline that a checkpoint belongs to, and the checkpoint's format, chosen once when it is made.

    :param pipeline: name of the pipeline; None for a checkpoint that only Spark has written so far.
    :param format: ``v1`` (by position) or ``v2`` (by name) of the offset log.
    :param sources: names in the order of the v1 offset log; only used to read and write v1.
    :param query_id: Spark's query id (the ``metadata`` file).
    """

    pipeline: str | None
    format: str
    sources: tuple[str, ...]
    query_id: str
