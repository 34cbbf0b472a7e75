"""``microbatch dead-letters``: count the rows that batches kept out of their tables. ``--replay`` runs them again
through mended code, which starts a Spark by one of Airflow's connections."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import uuid
from datetime import UTC, datetime
from pathlib import Path

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.entries import RunIdentity
from airflow_provider_microbatch.checkpoint.key import LETTERS, LIVE
from airflow_provider_microbatch.cli.opening import open_checkpoint
from airflow_provider_microbatch.cli.table import batch_table, text_table
from airflow_provider_microbatch.definition import class_path
from airflow_provider_microbatch.exceptions import MaintenanceError
from airflow_provider_microbatch.execution.dead_letters import (
    LettersSource,
    execution_of,
    letters_left,
    replaying,
    with_letters,
)
from airflow_provider_microbatch.execution.engine import CheckedEngine
from airflow_provider_microbatch.execution.letters_taken import SOURCE, taken
from airflow_provider_microbatch.execution.refused import Refused
from airflow_provider_microbatch.execution.summary import BatchSummary, RunSummary, begins_late
from airflow_provider_microbatch.pipeline import Pipeline
from airflow_provider_microbatch.runtime.checks import DEAD_LETTER
from airflow_provider_microbatch.sinks import Sink
from airflow_provider_microbatch.upkeep.commands.site import Recorded

NAME = "dead-letters"
HELP = (
    "count dead letters by batch and reason; --replay runs them through mended code, as batches of a lane of their own"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command alone."""
    parser.add_argument(
        "--replay", metavar="FILE:FUNCTION",
        help="run those that no such batch has had through this function, which gets batch.sources['dead_letters'] and "
        "returns what the pipeline's transform does",
    )  # fmt: skip
    parser.add_argument("--conn-id", default="spark_default", help="connection of the Spark (default: %(default)s)")
    parser.add_argument(
        "--py-file", action="append", default=[], metavar="PATH",
        help="a further .py, .zip or .egg that FILE imports; can be repeated",
    )  # fmt: skip
    parser.add_argument("--base", type=Path, default=Path(), help="folder of FILE (default: the working directory)")


def run(arguments: argparse.Namespace) -> int:
    """Print a line for each reason of each batch; or make a batch of dead letters and print it.

    :return: exit status: 0, or 1 if dead letters of some batches could not be run again.
    :raises CheckpointError: if the checkpoint, or its record of the pipeline, is of no use here.
    """
    checkpoint = open_checkpoint(arguments.location, sources=arguments.sources)
    if arguments.replay is not None:
        return _replay(checkpoint, arguments)
    by = taken(checkpoint)
    lane = checkpoint.lane(LETTERS)
    planned = {key for key, one in by.items() if lane.commit_of(one.id) is None}
    batches = [batch for batch in with_letters(checkpoint) if arguments.lane in (LIVE, batch.key.lane)]
    if arguments.json:
        listed = [
            {
                "batch": str(batch.key),
                "dead_letters": batch.dead_letters,
                "reasons": [dataclasses.asdict(one) for one in _reasons(batch)],
                "replayed_as": str(by[batch.key]) if batch.key in by.keys() - planned else None,
                "planned_as": str(by[batch.key]) if batch.key in planned else None,
            }
            for batch in batches
        ]
        print(json.dumps(listed, ensure_ascii=False, indent=2))
        return 0
    if not batches:
        print(f"No batch of {checkpoint.location} has dead letters.")
        _say_what_is_not_known(checkpoint)
        return 0
    rows = [
        (
            str(batch.key),
            f"{one.rows:,}",
            one.what,
            one.sink or "-",
            f"{by.get(batch.key, '-')}{' (planned)' if batch.key in planned else ''}",
        )
        for batch in batches
        for one in _reasons(batch)
    ]
    print(text_table(("batch", "rows", "reason", "sink", "replayed as"), rows, right=frozenset({"rows"})))
    letters = _letters(checkpoint)
    print(f"{sum(batch.dead_letters or 0 for batch in batches):,} dead letters of them in {letters.location()}")
    _say_what_is_not_known(checkpoint)
    return 0


def _say_what_is_not_known(checkpoint: Checkpoint) -> None:
    for first in begins_late(checkpoint):
        print(
            f"The log of lane {first.lane!r} begins with batch {first.id}: letters of the batches before it, which "
            "retention has removed, are in the table of letters, and are neither listed nor run again here.",
            file=sys.stderr,
        )


def _reasons(batch: BatchSummary) -> list[Refused]:
    return [one for one in batch.refused if one.action == DEAD_LETTER]


def _letters(checkpoint: Checkpoint) -> Sink:
    recorded = Recorded(checkpoint).arguments().get("sink")
    found = None if recorded is None else Sink.from_dict(recorded).dead_letters
    if found is None:
        raise MaintenanceError(f"the pipeline of {checkpoint.location} has no dead_letters=… on record.")
    return found


def _replay(checkpoint: Checkpoint, arguments: argparse.Namespace) -> int:
    from airflow_provider_microbatch.engines.code import resolve_code
    from airflow_provider_microbatch.engines.lookup import Wanted, engine_for

    pipeline = replaying(_on_record(checkpoint), arguments.replay)
    # Code comes from this command line alone: another program may have written the recorded py_files.
    code, transform = resolve_code(arguments.replay, base=arguments.base.absolute(), py_files=arguments.py_file)
    engine = engine_for(Wanted(conn_id=arguments.conn_id))
    # Before anything is planned: a batch that is planned holds its letters until somebody runs it, or takes it back.
    if isinstance(engine, CheckedEngine):
        engine.check()
    # Each command is a run of its own, also the second one of a second: the same run's batch would be its own.
    ti_id, now = str(uuid.uuid4()), datetime.now(UTC).isoformat(timespec="seconds")
    by = RunIdentity(
        dag_id="microbatch", run_id=f"dead-letters {now} {ti_id}", task_id=NAME, ti_id=ti_id, try_number=1,
        clear_number=0,
    )  # fmt: skip
    execution = execution_of(pipeline, checkpoint)
    summary = execution.run(run=by, engine=engine, code=code, transform=transform)
    left = letters_left(execution)
    if summary is None:
        print("There are no dead letters that were not run again before.")
    _say_what_is_not_known(checkpoint)
    batches = summary.batches if isinstance(summary, RunSummary) else [summary] if summary is not None else []
    if arguments.json and batches:
        print(json.dumps([batch.to_dict() for batch in batches], ensure_ascii=False, indent=2))
    elif batches:
        print(batch_table(batches))
    for why in left.values():
        print(f"Left: {' '.join(why.split())}", file=sys.stderr)
    return 1 if left else 0


def _on_record(checkpoint: Checkpoint) -> Pipeline:
    """The pipeline on record, with the dead letters in place of its sources, which are not asked here."""
    recorded = dict(Recorded(checkpoint).arguments())
    if SOURCE in recorded.get("sources", {}):
        raise MaintenanceError(f"the pipeline has a source called {SOURCE!r}, as its letters would be.")
    letters = LettersSource(checkpoint.location, _letters(checkpoint))
    recorded |= {"checkpoint": checkpoint.location, "sources": {SOURCE: letters.to_dict()}, "plan": LIVE}
    values = {"class": class_path(Pipeline), "version": Pipeline.version, "arguments": {**recorded, "lookback": None}}
    return Pipeline.from_dict(values)
