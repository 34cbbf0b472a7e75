"""``microbatch start-behind``: have a checkpoint count on behind the batches that its table holds."""

from __future__ import annotations

import argparse

from airflow_provider_microbatch.checkpoint.key import LETTERS, LIVE
from airflow_provider_microbatch.cli.maintaining import add_dry_run, maintain
from airflow_provider_microbatch.cli.opening import open_checkpoint_store
from airflow_provider_microbatch.upkeep.commands.letters_behind import plan_letters_behind
from airflow_provider_microbatch.upkeep.commands.plan import Drafting, Plan
from airflow_provider_microbatch.upkeep.commands.start_behind import plan_start_behind

NAME = "start-behind"
HELP = "have the next batch take a number behind all that the table holds, whoever published it"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command alone."""
    parser.add_argument(
        "--allow-reread",
        action="store_true",
        help="have what was read after the backup that this checkpoint was restored from, or by another one that lay "
        "here, in the table twice",
    )
    parser.add_argument(
        "--lane", choices=(LIVE, LETTERS), default=LIVE, help="lane that counts on (default: %(default)s)"
    )
    parser.add_argument(
        "--allow-skip",
        action="store_true",
        help="of --lane dead-letters: run no dead letters of now again, since what the table has of them is not known",
    )
    add_dry_run(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the plan, and count on.

    :return: exit status, always 0.
    :raises MicroBatchError: if the command is refused; nothing was changed then.
    """
    store = open_checkpoint_store(arguments.location, sources=arguments.sources)
    lane = arguments.lane
    command = NAME + (" --allow-reread" if arguments.allow_reread else "")
    command += (" --allow-skip" if arguments.allow_skip else "") + (f" --lane {lane}" if lane != LIVE else "")

    def make(drafting: Drafting) -> Plan:
        if lane == LETTERS:
            return plan_letters_behind(drafting, allow_skip=arguments.allow_skip)
        return plan_start_behind(drafting, allow_reread=arguments.allow_reread)

    return maintain(arguments, store=store, command=command, make=make, dry_run=arguments.dry_run)
