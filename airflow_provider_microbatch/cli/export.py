"""``microbatch export``: make a copy from which a Structured Streaming query goes on."""

from __future__ import annotations

import argparse

from airflow_provider_microbatch.cli.maintaining import add_dry_run, maintain
from airflow_provider_microbatch.cli.opening import open_checkpoint_store, open_location
from airflow_provider_microbatch.upkeep.commands.exchange import plan_export
from airflow_provider_microbatch.upkeep.commands.plan import Drafting, Plan

NAME = "export"
HELP = "copy the checkpoint to where a Structured Streaming query goes on from it"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command alone."""
    parser.add_argument("target", metavar="TARGET", help="where the copy goes; nothing may be there")
    parser.add_argument(
        "--allow-skip",
        action="store_true",
        help="lose the ranges of batches that are set aside, and what intervals have taken and not committed",
    )
    add_dry_run(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the plan, and copy.

    :return: exit status, always 0.
    :raises MicroBatchError: if the command is refused; nothing was changed then.
    """
    store = open_checkpoint_store(arguments.location, sources=arguments.sources)
    target = open_location(arguments.target).location

    def make(drafting: Drafting) -> Plan:
        return plan_export(drafting, target=target, allow_skip=arguments.allow_skip)

    command = f"{NAME} {target}" + (" --allow-skip" if arguments.allow_skip else "")
    return maintain(
        arguments, store=store, command=command, make=make, dry_run=arguments.dry_run, told=(target,), once=True
    )  # fmt: skip
