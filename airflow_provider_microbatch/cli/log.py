"""``microbatch log``: list the newest batches of a checkpoint, a line a batch."""

from __future__ import annotations

import argparse
import json

from airflow_provider_microbatch.cli.opening import check_lane, open_checkpoint
from airflow_provider_microbatch.cli.table import batch_table, show_lag
from airflow_provider_microbatch.execution.summary import summaries

NAME = "log"
HELP = "list the newest batches: state, attempt, offsets, files, rows, seconds, run"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command alone."""
    parser.add_argument(
        "--lanes", action="store_true", help="also list the batches of the lanes of data intervals, by interval"
    )
    parser.add_argument("-n", type=_count, default=20, metavar="COUNT", help="how many batches (default: %(default)s)")


def run(arguments: argparse.Namespace) -> int:
    """Print the batches, oldest first.

    :return: exit status, always 0.
    :raises CheckpointError: if the checkpoint cannot be read.
    """
    checkpoint = open_checkpoint(arguments.location, sources=arguments.sources)
    lane = check_lane(checkpoint, arguments.lane)
    ids = checkpoint.lane(lane).offset_log.ids()[-arguments.n :]
    batches = summaries(checkpoint, lane=lane, start=ids[0], end=ids[-1]) if ids else []
    others = [name for name in checkpoint.lanes() if name != lane]
    if arguments.lanes:
        for other in others:
            batches += summaries(checkpoint, lane=other)
    given_up = {batch.key: checkpoint.deliveries.given_up(batch.key) for batch in batches}
    if arguments.json:
        listed = [batch.to_dict() for batch in batches]
        for batch, found in zip(listed, given_up.values(), strict=True):
            if found:
                batch["hooks_given_up"] = [str(one) for one in found]
        print(json.dumps(listed, ensure_ascii=False, indent=2))
        return 0
    if batches:
        print(batch_table(batches))
        newest = next((batch for batch in reversed(batches) if batch.lag), None)
        if newest is not None:
            print(f"lag after batch {newest.key}: {show_lag(newest.lag)}")
        for one in (one for found in given_up.values() for one in found):
            print(" ".join(str(one).split()))
    else:
        print(f"No batch was planned yet in lane {lane} of {checkpoint.location}.")
    if others and not arguments.lanes:
        print(f"{len(others)} other lane{'s' if len(others) > 1 else ''}; --lanes lists their batches.")
    return 0


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 on")
    return int(text)
