"""One summary of a batch, made in one place: grid labels, XCom, the command line and the demo all show this."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.entries import Offset, RunIdentity
from airflow_provider_microbatch.checkpoint.key import LIVE, BatchKey
from airflow_provider_microbatch.exceptions import BrokenLogError
from airflow_provider_microbatch.execution.labels import aside_label, done_label, letters_label, names_of, rows_label
from airflow_provider_microbatch.execution.liveness import held_as
from airflow_provider_microbatch.execution.position import starts_of
from airflow_provider_microbatch.execution.refused import Refused, refused_in


@dataclass(frozen=True, kw_only=True)
class BatchSummary:
    """A batch as people see it. Figures are None until they are known.

    :param key: the batch.
    :param state: ``planned`` (no process is at it), ``running`` (an attempt has no end on record, and its lease runs),
        ``staged`` (its stage waits for audits, or for the commit step), ``committed`` or ``set_aside``.
    :param epoch: the published attempt, after a replay the replay's; else the newest attempt; 0 if there was none.
    :param offsets: by source, its start and end.
    :param rows_in: rows read, by source.
    :param rows_out: rows published, in all tables.
    :param rows_by_sink: rows published by each of several sinks, by name; empty for a single sink.
    :param dead_letters: rows that went to the dead letters; 0 for a pipeline without.
    :param rows_dropped: rows that an expectation dropped.
    :param refused: the rows that were refused, with ``what``, ``sink``, ``action`` and ``rows``.
    :param late_rows: rows that came behind the watermark of a stateful batch and were left out; None without state.
    :param operators: of a stateful batch, for each operator with state what Spark tells: ``operator``, ``rows`` and
        ``memory_bytes`` of its state, ``updated`` rows of it, and ``late`` rows that it left out.
    :param forgotten: marks of the entries of ``microbatch forget`` whose rows the batch has left out.
    :param read: by source, how much its range holds in the words of the source, such as ``{"files": 3}``.
    :param lag: by source, how much data lay behind the batch when it was committed, in the words of the source, such as
        ``{"rows": 12}``; without sources that do not tell, and empty for a data interval.
    :param lag_by_split: by source, the same by split, such as by partition: the 100 splits with most of it.
    :param files_out: data files published.
    :param bytes_out: bytes published.
    :param seconds: from the start of the published attempt to its commit.
    :param run: the run that finished the batch, after a replay the run that replayed it; before that the run that is or
        was at the batch last.
    :param planned_by: the run that planned it.
    :param planned_ms: the batch's timestamp, milliseconds since the epoch, UTC.
    :param committed_ms: when it was committed, replayed last, or set aside; milliseconds since the epoch, UTC.
    :param complete: with this batch all sources of the pipeline were finished: there was nothing more to come.
    :param error: why the newest attempt failed; None for a committed batch.
    """

    key: BatchKey
    state: str
    epoch: int
    offsets: Mapping[str, Mapping[str, Offset | None]]
    rows_in: Mapping[str, int | None]
    rows_out: int | None
    rows_by_sink: Mapping[str, int | None]
    dead_letters: int | None
    rows_dropped: int | None
    refused: Sequence[Refused]
    late_rows: int | None
    operators: Sequence[Mapping[str, Any]]
    forgotten: Sequence[str]
    read: Mapping[str, Mapping[str, int]]
    lag: Mapping[str, Mapping[str, int]]
    lag_by_split: Mapping[str, Mapping[str, int]]
    files_out: int | None
    bytes_out: int | None
    seconds: float | None
    run: RunIdentity | None
    planned_by: RunIdentity | None
    planned_ms: int
    committed_ms: int | None
    complete: bool
    error: str | None

    @property
    def label(self) -> str:
        """A few words for a square in the grid."""
        if self.state == "set_aside":
            return aside_label(self.key)
        return done_label(self.key, rows=self.rows_out, letters=self.dead_letters or 0)

    def to_dict(self) -> dict[str, Any]:
        """JSON values, for XCom and ``--json``."""
        # DAGs of older versions asked for the files of all sources that count files.
        files = [figures["files"] for figures in self.read.values() if "files" in figures]
        return {
            **dataclasses.asdict(self),
            "key": str(self.key),
            "label": self.label,
            "files_in": sum(files) if files else None,
        }


@dataclass(frozen=True)
class RunSummary:
    """The batches that one run has run, as people see them.

    :param batches: in their order; at least one.
    """

    batches: Sequence[BatchSummary]

    @property
    def label(self) -> str:
        """A few words for a square in the grid."""
        if len(self.batches) == 1:
            return self.batches[0].label
        rows = sum(batch.rows_out or 0 for batch in self.batches)
        letters = letters_label(sum(batch.dead_letters or 0 for batch in self.batches))
        return f"{names_of([batch.key for batch in self.batches])} · {rows_label(rows)}{letters}"

    def to_dict(self) -> dict[str, Any]:
        """The values of the last batch, and the keys of all batches as ``batches``."""
        keys = [str(batch.key) for batch in self.batches]
        return {**self.batches[-1].to_dict(), "label": self.label, "batches": keys}


STAGED = "its stage is whole and waits for its audits, or for the commit step"
"""Said of an attempt that no process is at, and that does not count as dead."""
_OF_OPERATORS = {
    "operator": "operatorName",
    "rows": "numRowsTotal",
    "updated": "numRowsUpdated",
    "late": "numRowsDroppedByWatermark",
    "memory_bytes": "memoryUsedBytes",
}
"""Word of a summary → figure of Spark."""
NO_SIGN = "no end on record, and no sign of life: its lease has run out"
"""Said of an attempt that no process seems to be at."""


def summarize(checkpoint: Checkpoint, key: BatchKey) -> BatchSummary:
    """The summary of one batch, from the logs alone.

    :raises BrokenLogError: if the batch is not in the offset log.
    """
    lane = checkpoint.lane(key.lane)
    entry = lane.offset_log.get(key.id)
    if entry is None:
        raise BrokenLogError(f"batch {key} is not in the offset log of {checkpoint.location}.")
    starts = starts_of(lane, key.id, entry)
    commit = lane.commit_of(key.id)
    answer = (checkpoint.replays.newest_answer(key) if commit is not None else None) or {}
    aside = commit is not None and commit.set_aside and not answer
    attempts = [attempt for attempt in checkpoint.attempts.all(key) if not (attempt.is_fence and aside)]
    shown = attempts[-1] if attempts else None
    # A replay's answer tells what is in the table now; an answer of an older version lacks the figures.
    published: int | None = None
    committed_ms: int | None = None
    progress: Mapping[str, Any] = {}
    if answer.get("progress"):
        published, committed_ms, progress = answer["attempt"], answer["completed_ms"], answer["progress"]
    elif commit is not None:
        published, committed_ms, progress = commit.epoch, commit.committed_ms, commit.progress
    if commit is not None and not aside:
        shown = next((attempt for attempt in attempts if attempt.epoch == published), None)
    end = checkpoint.attempts.ended(key, shown.epoch) if shown else None
    seconds = None
    if committed_ms is not None and shown is not None and not aside:
        seconds = (committed_ms - shown.started_ms) / 1000
    if commit is not None:
        state = "set_aside" if aside else "committed"
        error = commit.failure.get("error") if aside else None
    else:
        state, error = "planned", end.error if end else None
        if shown is not None and end is None:
            state, error = _unended(checkpoint, key, shown.epoch)
    finisher = shown.run if shown is not None and (commit is None or answer) else commit.run if commit else None
    return BatchSummary(
        key=key,
        state=state,
        epoch=shown.epoch if shown else 0,
        offsets={name: {"start": starts.get(name), "end": offset} for name, offset in entry.ends.items()},
        rows_in=progress.get("numInputRows") or {},
        rows_out=progress.get("numOutputRows"),
        rows_by_sink=_by_sink(progress),
        dead_letters=progress.get("numDeadLetters", 0 if progress else None),
        rows_dropped=progress.get("numDroppedRows", 0 if progress else None),
        refused=refused_in(progress),
        late_rows=progress.get("numRowsDroppedByWatermark"),
        operators=_operators(progress.get("stateOperators")),
        forgotten=_texts(progress.get("forgotten")),
        read=_known(progress.get("sources")),
        lag=_known(progress.get("lag")),
        lag_by_split=_known(progress.get("lagBySplit")),
        files_out=progress.get("numOutputFiles"),
        bytes_out=progress.get("numOutputBytes"),
        seconds=seconds,
        run=finisher or entry.run,
        planned_by=entry.run,
        planned_ms=entry.batch_timestamp_ms,
        committed_ms=committed_ms,
        complete=commit is not None and commit.complete,
        error=error,
    )


def _operators(told: object) -> list[Mapping[str, Any]]:
    """Spark's figures of the operators with state, under the words of a summary."""
    found = [one for one in told if isinstance(one, Mapping)] if isinstance(told, list) else []
    return [{word: one.get(figure) for word, figure in _OF_OPERATORS.items()} for one in found]


def _texts(told: object) -> list[str]:
    return [text for text in told if isinstance(text, str)] if isinstance(told, list) else []


def _known(told: Mapping[str, Mapping[str, int | None] | None] | None) -> Mapping[str, Mapping[str, int]]:
    """The figures by source that are known: an entry may have null for any of them, and for a whole source."""
    return {
        name: {word: count for word, count in figures.items() if count is not None}
        for name, figures in (told or {}).items()
        if figures is not None
    }


def _by_sink(progress: Mapping[str, Any]) -> Mapping[str, int | None]:
    """Rows published by each of several sinks; empty for a single one, whose rows are all that there are."""
    found: Mapping[str, int | None] = progress.get("numOutputRowsBySink", {})
    return {} if "" in found else found


def _unended(checkpoint: Checkpoint, key: BatchKey, epoch: int) -> tuple[str, str | None]:
    """State and error of a batch whose newest attempt has no end on record."""
    held = held_as(checkpoint, key, epoch)
    return ("planned", NO_SIGN) if held is None else (held.value, None)


def summaries(
    checkpoint: Checkpoint, *, lane: str = LIVE, start: int | None = None, end: int | None = None
) -> list[BatchSummary]:
    """Summaries of the batches from ``start`` to ``end``, both inclusive, None for open."""
    ids = checkpoint.lane(lane).offset_log.ids()
    chosen = [number for number in ids if (start is None or number >= start) and (end is None or number <= end)]
    return [summarize(checkpoint, BatchKey(lane, number)) for number in chosen]


def begins_late(checkpoint: Checkpoint) -> list[BatchKey]:
    """The first batch of each lane whose log has lost those before it, as to retention: tables may have them, and no
    list of batches has."""
    first = ((lane, min(checkpoint.lane(lane).offset_log.ids(), default=0)) for lane in checkpoint.lanes())
    return [BatchKey(lane, number) for lane, number in first if number > 0]
