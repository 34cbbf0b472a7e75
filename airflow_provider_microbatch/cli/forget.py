"""``microbatch forget``: leave rows out of all later batches and replays, and list the batches that may have them."""

from __future__ import annotations

import argparse
import json
import sys
from shlex import quote
from typing import Any

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.forgotten import Forgetting, is_mark
from airflow_provider_microbatch.checkpoint.key import LETTERS, LIVE, BatchKey
from airflow_provider_microbatch.cli.maintaining import whoami
from airflow_provider_microbatch.cli.opening import open_checkpoint, open_checkpoint_store
from airflow_provider_microbatch.cli.table import show_run, show_time, text_table
from airflow_provider_microbatch.clock import now_ms
from airflow_provider_microbatch.exceptions import CheckpointError, MaintenanceError
from airflow_provider_microbatch.execution.forgetting import holding
from airflow_provider_microbatch.execution.recorded_sinks import forms_in
from airflow_provider_microbatch.execution.summary import BatchSummary, begins_late
from airflow_provider_microbatch.expectations import check_condition
from airflow_provider_microbatch.sinks import Sink
from airflow_provider_microbatch.upkeep.commands.site import Recorded

NAME = "forget"
HELP = "leave rows out of every later batch and replay (erasure on request), and list the batches that may have them"

_SHOWN = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command alone."""
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--where", metavar="SQL",
        help="rows of the result of which this is true are left out; - reads it from standard input, so that it is in "
        "no list of processes",
    )  # fmt: skip
    what.add_argument(
        "--lift",
        type=_entry,
        metavar="N",
        help="entry N no longer counts, for what is computed from now on; of one that a checkpoint which was restored "
        "does not have, the mark that an error names",
    )
    parser.add_argument(
        "--sink", action="append", default=[], metavar="NAME", help="of several sinks only this one; can be repeated"
    )
    parser.add_argument("--show", action="store_true", help="show conditions, which are personal data themselves")


def _entry(text: str) -> int | str:
    return text if is_mark(text) else int(text)


def run(arguments: argparse.Namespace) -> int:
    """Record the request, then print all entries and the batches that were made before them.

    :return: exit status, always 0.
    :raises DefinitionError: if the condition is invalid, or not deterministic; nothing is recorded then.
    :raises MaintenanceError: for an unknown sink or entry, or while a command is changing the checkpoint.
    """
    store = open_checkpoint_store(arguments.location, sources=arguments.sources)
    checkpoint = open_checkpoint(arguments.location, sources=arguments.sources)
    if arguments.where is not None:
        given = sys.stdin.readline() if arguments.where == "-" else arguments.where
        condition = check_condition(given, what="the condition of --where")
        tables = _sinks(checkpoint, tuple(arguments.sink))
        checkpoint.maintenance.check_none()
        made = checkpoint.forgotten.add(condition, sinks=tuple(tables), tables=tables, by=whoami(), at_ms=now_ms())
        _check_still_here(arguments, checkpoint, f"Entry {made.number} was recorded")
        _say(arguments, f"Recorded as entry {made.number} in {store.location}: later batches and replays leave it out.")
    elif arguments.lift is not None:
        checkpoint.maintenance.check_none()
        checkpoint.forgotten.lift(arguments.lift, by=whoami(), at_ms=now_ms())
        _check_still_here(arguments, checkpoint, f"Entry {arguments.lift} was lifted")
        _say(arguments, f"Entry {arguments.lift} no longer counts.")
    active = checkpoint.forgotten.active()
    batches = list(holding(checkpoint, [one.mark for one in active])) if active else []
    if arguments.json:
        told = _as_json(active, batches, begins=begins_late(checkpoint), show=arguments.show)
        print(json.dumps(told, ensure_ascii=False, indent=2))
        return 0
    if not active:
        print(f"Nothing is to be forgotten in {checkpoint.location}.")
        return 0
    print("\n".join(_as_text(active, batches, location=checkpoint.location, show=arguments.show)))
    live = [batch.key.id for batch in batches if batch.key.lane == LIVE]
    if live and Recorded(checkpoint).arguments().get("stateful"):
        print(
            "The pipeline keeps state: of what is new only its newest batch can be cleared. "
            f"`microbatch rewind {quote(checkpoint.location)} --to {min(live) - 1} --drop-output` takes the others "
            "out, too, and the next runs make them again, without these rows. The state itself keeps what it has of "
            "them."
        )
    for first in begins_late(checkpoint):
        print(
            f"The log of lane {first.lane!r} begins with batch {first.id}: the batches before it, which retention has "
            "removed, are not listed, and no clear runs them again. Delete such rows of theirs in the table itself; "
            "where changes are merged into it, that stays so until the next change of the key, and a deletion that the "
            "source sends is better."
        )
    return 0


def _check_still_here(arguments: argparse.Namespace, checkpoint: Checkpoint, done: str) -> None:
    """Check that no command began after the first check: such a command may move the checkpoint without the new
    entry."""
    try:
        open_checkpoint_store(arguments.location, sources=arguments.sources)
        checkpoint.maintenance.check_none()
    except CheckpointError as error:
        raise MaintenanceError(
            f"{done} in {checkpoint.location}, and meanwhile a command was at the checkpoint, which may have gone on "
            f"without that: {error} When it is through, `microbatch forget` at the place where the pipeline goes on "
            "shows its entries; type it again there if this one is missing."
        ) from error


def _sinks(checkpoint: Checkpoint, names: tuple[str, ...]) -> dict[str, Any]:
    """The sinks of these names, in plain form."""
    if not names:
        return {}
    # Also of a clear alone: its attempts are refused as long as they name a table otherwise than the entries do.
    recorded = checkpoint.sinks_in_force.get() or list(filter(None, [Recorded(checkpoint).arguments().get("sink")]))
    known = list(dict.fromkeys(name for form in recorded for name in Sink.from_dict(form).names))
    unknown = [name for name in names if name not in known]
    if unknown:
        has = ", ".join(map(repr, known)) or "one, without a name: leave out --sink"
        raise MaintenanceError(
            f"the pipeline on record has no sink {unknown[0]!r}; it has {has}. Nothing was recorded."
        )
    # A name is meant as the run that planned last has it: what a clear has by it may be the table of another by now.
    latest = [forms_in(form) for form in reversed(recorded)]
    return {name: next(form[name] for form in latest if name in form) for name in names}


def _missing(batch: BatchSummary, active: list[Forgetting]) -> list[int]:
    return [one.number for one in active if one.mark not in batch.forgotten]


def _as_text(active: list[Forgetting], batches: list[BatchSummary], *, location: str, show: bool) -> list[str]:
    rows = [
        (
            str(one.number),
            show_time(one.at_ms),
            one.by,
            ", ".join(one.sinks) or "all",
            one.condition if show else "*** (--show)",
            f"{sum(one.number in _missing(batch, active) for batch in batches):,}",
        )
        for one in active
    ]
    lines = [text_table(("entry", "since", "by", "sinks", "where", "batches before it"), rows)]
    if not batches:
        return [*lines, f"No published batch of the log was made before them. {_of_the_log(location)}"]
    shown = [
        (str(batch.key), ", ".join(map(str, _missing(batch, active))), batch.run.dag_id if batch.run else "-",
         show_run(batch.run))
        for batch in batches[:_SHOWN]
    ]  # fmt: skip
    lines += ["", "These batches were published before, and may have such rows:", ""]
    lines.append(text_table(("batch", "entries", "DAG", "run"), shown))
    if len(batches) > _SHOWN:
        lines.append(f"and {len(batches) - _SHOWN:,} more; --json lists all.")
    lines.append(
        "Clear the task of such a run (its DAG's grid, or `airflow tasks clear`): the replay leaves the rows out. What "
        "a replay put out is kept for its readers until the janitor removes it; the source, and dead letters that did "
        "not parse, are looked at by nobody."
    )
    letters = min((batch.key.id for batch in batches if batch.key.lane == LETTERS), default=None)
    if letters is not None:
        lines.append(
            f"Batches of lane {LETTERS!r} have no task: `microbatch rewind {quote(location)} --lane {LETTERS} "
            f"--to {letters - 1} --drop-output` takes them out, and `microbatch dead-letters {quote(location)} "
            "--replay FILE:FUNCTION` runs their letters again."
        )
    return [*lines, _of_the_log(location)]


def _of_the_log(location: str) -> str:
    """What the list does not tell: which rows a table has by now, no log knows."""
    return (
        "No table was asked: one that was put back to before a clear (RESTORE, a rollback, a backup) has such rows "
        f"again, and `microbatch check {quote(location)} --table` names its batches, to be cleared once more."
    )


def _as_json(
    active: list[Forgetting], batches: list[BatchSummary], *, begins: list[BatchKey], show: bool
) -> dict[str, object]:
    return {
        "log_begins": [str(first) for first in begins],
        "entries": [
            {
                "entry": one.number,
                "since_ms": one.at_ms,
                "by": one.by,
                "sinks": list(one.sinks),
                **({"where": one.condition} if show else {}),
            }
            for one in active
        ],
        "batches": [
            {
                "batch": str(batch.key),
                "entries": _missing(batch, active),
                "dag_id": batch.run.dag_id if batch.run else None,
                "run_id": batch.run.run_id if batch.run else None,
            }
            for batch in batches
        ],
    }


def _say(arguments: argparse.Namespace, text: str) -> None:
    if not arguments.json:
        print(text)
