"""``microbatch repair``: mend a broken checkpoint, as far as this loses and doubles no row."""

from __future__ import annotations

import argparse
from functools import partial

from airflow_provider_microbatch.cli.maintaining import add_dry_run, maintain
from airflow_provider_microbatch.cli.opening import open_checkpoint_store
from airflow_provider_microbatch.upkeep.commands.repair import plan_repair

NAME = "repair"
HELP = "mend torn and missing entries without losing or doubling a row; exit status 1: something is left"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command alone."""
    parser.add_argument(
        "--give-up",
        action="store_true",
        help="before that: do none of the steps that a killed command has left, nor what is left of a retention that "
        "was killed an hour ago or longer",
    )
    add_dry_run(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the repairs and everything that cannot be repaired.

    :return: exit status: 0, or 1 if something cannot be repaired.
    :raises MicroBatchError: if the command is refused; nothing was changed then.
    """
    store = open_checkpoint_store(arguments.location, sources=arguments.sources)
    return maintain(
        arguments,
        store=store,
        command=NAME,
        make=partial(plan_repair, give_up=arguments.give_up),
        dry_run=arguments.dry_run,
        give_up=arguments.give_up,
    )
