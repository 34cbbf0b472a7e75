"""``microbatch set-offset``: set where the next batch begins in a source."""

from __future__ import annotations

import argparse
import json

from airflow_provider_microbatch.checkpoint.set_offset_command import set_offset_command
from airflow_provider_microbatch.cli.maintaining import add_dry_run, maintain
from airflow_provider_microbatch.cli.opening import check_lane, open_checkpoint, open_checkpoint_store
from airflow_provider_microbatch.upkeep.commands.plan import Drafting, Plan
from airflow_provider_microbatch.upkeep.commands.set_offset import plan_set_offset

NAME = "set-offset"
HELP = "have the next batch begin elsewhere in a source; says what is skipped or read twice"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command alone."""
    parser.add_argument("--source", required=True, metavar="NAME", help="name of the source in the pipeline")
    parser.add_argument(
        "--offset",
        required=True,
        type=_offset,
        metavar="JSON",
        help="its position, as `microbatch show` prints the source's offsets; null: its beginning",
    )
    parser.add_argument("--allow-skip", action="store_true", help="lose what lies between")
    parser.add_argument("--allow-reread", action="store_true", help="have what lies between in the table twice")
    add_dry_run(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the plan, and set the offset.

    :return: exit status, always 0.
    :raises MicroBatchError: if the command is refused; nothing was changed then.
    """
    store = open_checkpoint_store(arguments.location, sources=arguments.sources)
    lane = check_lane(open_checkpoint(arguments.location, sources=arguments.sources), arguments.lane)
    offset = None if arguments.offset == "null" else arguments.offset
    command = set_offset_command(
        location=None,
        source=arguments.source,
        offset=offset,
        lane=lane,
        skip=arguments.allow_skip,
        reread=arguments.allow_reread,
    )

    def make(drafting: Drafting) -> Plan:
        return plan_set_offset(
            drafting,
            lane=lane,
            source=arguments.source,
            offset=offset,
            allow_skip=arguments.allow_skip,
            allow_reread=arguments.allow_reread,
        )

    return maintain(arguments, store=store, command=command, make=make, dry_run=arguments.dry_run)


def _offset(text: str) -> str:
    try:
        value = json.loads(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no JSON, as in '{{\"logOffset\":7}}'") from None
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
