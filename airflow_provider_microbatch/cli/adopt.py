"""``microbatch adopt``: the output in the table under a batch's number counts as that batch."""

from __future__ import annotations

import argparse
from functools import partial

from airflow_provider_microbatch.cli.maintaining import add_dry_run, maintain_batch
from airflow_provider_microbatch.cli.opening import add_batch
from airflow_provider_microbatch.upkeep.commands.adopt import plan_adopt

NAME = "adopt"
HELP = "have what another checkpoint, or a lost life of this one, published as a batch count as this one's"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command alone."""
    add_batch(parser)
    parser.add_argument(
        "--allow-skip",
        action="store_true",
        help="adopt also what nothing proves to be made of what is planned, which is lost if it was not",
    )
    add_dry_run(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print whose output it is and which data is then not read, and adopt the output.

    :return: exit status, always 0.
    :raises MicroBatchError: if the command is refused; nothing was changed then.
    """
    command = f"{NAME} --allow-skip" if arguments.allow_skip else NAME
    return maintain_batch(arguments, command=command, make=partial(plan_adopt, allow_skip=arguments.allow_skip))
