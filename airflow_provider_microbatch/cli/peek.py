"""``microbatch peek``: show the first rows that the next batch would read. The command starts a Spark of this process;
the checkpoint is only read."""

from __future__ import annotations

import argparse
import json

from airflow_provider_microbatch.cli.opening import check_lane, open_checkpoint, open_checkpoint_store
from airflow_provider_microbatch.cli.setting import positive
from airflow_provider_microbatch.exceptions import SourceError
from airflow_provider_microbatch.upkeep.next_read import NextRead, next_read

NAME = "peek"
HELP = "show the first rows of what the next batch reads of a source, by a Spark of this process; changes nothing"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command alone."""
    parser.add_argument("--source", metavar="NAME", help="the source; may be left out if there is only one")
    parser.add_argument(
        "--rows", type=positive, default=20, metavar="N", help="so many rows at most (default: %(default)s)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the range and its first rows.

    :return: exit status, always 0.
    :raises CheckpointError: if the checkpoint, or its record of the sources, is of no use here.
    :raises SourceError: if the source cannot be asked, or Spark cannot read the range.
    """
    check_lane(open_checkpoint(arguments.location, sources=arguments.sources), arguments.lane)
    store = open_checkpoint_store(arguments.location, sources=arguments.sources)
    found = next_read(store, arguments.source, lane=arguments.lane, names=arguments.sources)
    if not arguments.json:
        print(_told(found))
    rows = []
    if found.read is not None:
        from airflow_provider_microbatch.runtime.peek import as_json, first_rows

        try:
            with first_rows(found.read, rows=arguments.rows, conf=found.conf, given=found.secrets) as frame:
                if arguments.json:
                    rows = as_json(frame)
                else:
                    frame.show(arguments.rows, truncate=60)
        except BrokenPipeError:
            raise
        except Exception as error:  # any error of Spark, the reader or the user's code
            said = str(error).strip().splitlines() or [""]
            raise SourceError(f"the range cannot be read here: {type(error).__name__}: {said[0]}") from error
    if arguments.json:
        print(json.dumps(_as_json(found, rows), ensure_ascii=False, indent=2))
    return 0


def _told(found: NextRead) -> str:
    state = "is planned and not committed" if found.is_planned else "would be planned now"
    told = f"batch {found.batch} {state}: {found.start or '-'} → {found.end or '-'}"
    if found.read is None:
        return f"{told}\n{found.absent or 'nothing new'}"
    return f"{told}{f', {found.read.amount}' if found.read.amount else ''}"


def _as_json(found: NextRead, rows: list[object]) -> dict[str, object]:
    return {
        "batch": str(found.batch),
        "planned": found.is_planned,
        "start": found.start,
        "end": found.end,
        "absent": found.absent,
        "rows": rows,
    }
