"""``microbatch show``: print everything that the checkpoint records about one batch."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.entries import Attempt, AttemptEnd, CommitEntry, OffsetEntry
from airflow_provider_microbatch.cli.opening import add_batch, asked_batch, open_checkpoint
from airflow_provider_microbatch.cli.table import show_lag, show_run, show_splits, show_time
from airflow_provider_microbatch.exceptions import CheckpointError
from airflow_provider_microbatch.execution.liveness import Held, held_as
from airflow_provider_microbatch.execution.summary import NO_SIGN, STAGED, BatchSummary, summarize

NAME = "show"
HELP = "show one batch: ranges, attempts with their handles and ends, commit and progress"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command alone."""
    add_batch(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the batch.

    :return: exit status, always 0.
    :raises CheckpointError: if the batch was never planned, or the checkpoint cannot be read.
    """
    checkpoint = open_checkpoint(arguments.location, sources=arguments.sources)
    key = asked_batch(arguments, checkpoint)
    log = checkpoint.lane(key.lane).offset_log
    entry = log.get(key.id)
    if entry is None:
        ids = log.ids()
        kept = f"batches {ids[0]} to {ids[-1]}" if ids else "no batch"
        raise CheckpointError(f"{checkpoint.location} has no batch {key.id} in lane {key.lane}; it has {kept}.")
    summary = summarize(checkpoint, key)
    commit = checkpoint.lane(key.lane).commit_of(key.id)
    attempts = [(attempt, checkpoint.attempts.ended(key, attempt.epoch)) for attempt in checkpoint.attempts.all(key)]
    if arguments.json:
        print(json.dumps(_as_json(checkpoint, summary, entry, attempts, commit), ensure_ascii=False, indent=2))
    else:
        print("\n".join(_as_text(checkpoint, summary, entry, attempts, commit)))
    return 0


Attempts = list[tuple[Attempt, AttemptEnd | None]]


def _as_json(
    checkpoint: Checkpoint,
    summary: BatchSummary,
    entry: OffsetEntry,
    attempts: Attempts,
    commit: CommitEntry | None,
) -> dict[str, Any]:
    return {
        **summary.to_dict(),
        "location": checkpoint.location,
        "pipeline": entry.pipeline,
        "watermark_ms": entry.watermark_ms,
        "conf": dict(entry.conf),
        "attempts": [
            {
                **dataclasses.asdict(attempt),
                "key": str(attempt.key),
                "end": dataclasses.asdict(end) if end else None,
            }
            for attempt, end in attempts
        ],
        "commit": dataclasses.asdict(commit) if commit else None,
    }


def _as_text(
    checkpoint: Checkpoint,
    summary: BatchSummary,
    entry: OffsetEntry,
    attempts: Attempts,
    commit: CommitEntry | None,
) -> list[str]:
    lines = [
        f"batch {summary.key} of pipeline {entry.pipeline or '-'} in {checkpoint.location}",
        *_fields(
            {
                "state": f"{summary.state}, complete" if summary.complete else summary.state,
                "planned": show_time(summary.planned_ms),
                "committed": show_time(summary.committed_ms),
                "seconds": "-" if summary.seconds is None else f"{summary.seconds:.3f}",
                "read": show_splits(summary.read),
                **({"lag": show_lag(summary.lag)} if summary.lag else {}),
                **({"lag by split": show_lag(summary.lag_by_split)} if summary.lag_by_split else {}),
                "files out": "-" if summary.files_out is None else f"{summary.files_out:,}",
                "bytes out": "-" if summary.bytes_out is None else f"{summary.bytes_out:,}",
                "rows out": "-" if summary.rows_out is None else f"{summary.rows_out:,}",
                **({"refused": "\n".join(map(str, summary.refused))} if summary.refused else {}),
                "run": show_run(summary.run),
                "planned by": show_run(summary.planned_by),
                "DAG": summary.run.dag_id if summary.run else "-",
                "task": summary.run.task_id if summary.run else "-",
                "watermark": show_time(entry.watermark_ms) if entry.watermark_ms else "-",
            }
        ),
        "ranges",
    ]
    for name, ends in summary.offsets.items():
        first, last = (ends[side] if ends[side] is not None else "-" for side in ("start", "end"))
        rows = summary.rows_in.get(name)
        lines.append(f"  {name}: {first} → {last}" + ("" if rows is None else f", {rows:,} rows"))
    lines.append("pinned settings")
    lines += _fields(entry.conf) or ["  none"]
    lines.append(f"attempts: {len(attempts)}")
    for attempt, end in attempts:
        lines += _attempt_lines(checkpoint, attempt, end)
    if commit is None:
        return [*lines, "commit", "  none: the batch is not committed"]
    epoch = "-" if commit.epoch is None else commit.epoch
    lines += ["commit", *_fields({"attempt": epoch, "set aside": commit.set_aside, "run": show_run(commit.run)})]
    lines += _fields(commit.failure)
    lines.append("progress")
    return lines + (_fields(commit.progress) or ["  none"])


def _attempt_lines(checkpoint: Checkpoint, attempt: Attempt, end: AttemptEnd | None) -> list[str]:
    tries = f"try {attempt.run.try_number} of {show_run(attempt.run)}" if attempt.run else "not made by Airflow"
    fields: dict[str, Any] = {"started": show_time(attempt.started_ms), "run": tries}
    if end is None:
        held = held_as(checkpoint, attempt.key, attempt.epoch)
        told = {None: NO_SIGN, Held.STAGED: f"no end on record: {STAGED}", Held.RUNNING: "no end on record"}
        fields["ended"] = told[held]
    else:
        fields["ended"] = f"{show_time(end.ended_ms)} {end.state}"
        if end.error:
            fields["error"] = end.error
    fields["handle"] = attempt.handle
    fields["code"] = attempt.code
    if attempt.request is not None:
        fields["replay"] = f"made for request {attempt.request}"
    return [f"  attempt {attempt.epoch}", *(f"  {line}" for line in _fields(fields))]


def _fields(values: Mapping[str, Any]) -> list[str]:
    width = max((len(name) for name in values), default=0)
    lines: list[str] = []
    for name, value in values.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        first, *more = text.splitlines() or [""]
        lines += [f"  {name.ljust(width)}  {first}", *(f"  {' ' * width}  {line}" for line in more)]
    return lines
