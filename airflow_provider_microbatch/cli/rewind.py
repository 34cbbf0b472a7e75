"""``microbatch rewind``: make an earlier batch the newest one; the data of later batches is read and published
again."""

from __future__ import annotations

import argparse

from airflow_provider_microbatch.checkpoint.key import LIVE, check_name
from airflow_provider_microbatch.cli.maintaining import add_dry_run, maintain
from airflow_provider_microbatch.cli.opening import open_checkpoint_store
from airflow_provider_microbatch.upkeep.commands.plan import Drafting, Plan
from airflow_provider_microbatch.upkeep.commands.rewind import plan_rewind

NAME = "rewind"
HELP = "make batch N the newest one; later batches are taken out of the table and run again"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command alone."""
    parser.add_argument(
        "--to", type=_batch, required=True, metavar="N", help="the batch that is the newest then; -1: none is left"
    )
    parser.add_argument("--drop-output", action="store_true", help="take the later batches out of the table")
    parser.add_argument(
        "--allow-skip",
        action="store_true",
        help="a source's own log is damaged, files are gone that on_missing='skip' leaves out, neither table nor "
        "source has a batch any more, the next run would stop where batch N ended, or a table that was put back "
        "(RESTORE) alone has it, or a topic, or a class on record, is gone for good: read again what is still there, "
        "and lose what is not",
    )
    add_dry_run(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the plan, and rewind.

    :return: exit status, always 0.
    :raises MicroBatchError: if the command is refused; nothing was changed then.
    """
    store = open_checkpoint_store(arguments.location, sources=arguments.sources)
    lane = check_name(arguments.lane, what="lane")
    command = f"{NAME} --to {arguments.to}" + (" --drop-output" if arguments.drop_output else "")
    command += (" --allow-skip" if arguments.allow_skip else "") + (f" --lane {lane}" if lane != LIVE else "")

    def make(drafting: Drafting) -> Plan:
        return plan_rewind(
            drafting,
            lane=lane,
            to=arguments.to,
            drop_output=arguments.drop_output,
            allow_skip=arguments.allow_skip,
        )

    # A lane may be gone with its batches: typed again after a kill, it would be no lane.
    return maintain(arguments, store=store, command=command, make=make, dry_run=arguments.dry_run, once=True)


def _batch(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = -2
    if number < -1:
        raise argparse.ArgumentTypeError(f"{text!r} is no batch: give its number, or -1")
    return number
