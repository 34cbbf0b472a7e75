"""``microbatch rename-source``: record that a source of the pipeline has a new name."""

from __future__ import annotations

import argparse

from airflow_provider_microbatch.cli.maintaining import add_dry_run, maintain
from airflow_provider_microbatch.cli.opening import open_checkpoint_store
from airflow_provider_microbatch.upkeep.commands.plan import Drafting, Plan
from airflow_provider_microbatch.upkeep.commands.rename_source import plan_rename_source

NAME = "rename-source"
HELP = "a source has a new name: its position, log and state become those of the new one, in all lanes"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command alone."""
    parser.add_argument("old", metavar="OLD", help="the name that the checkpoint knows")
    parser.add_argument("new", metavar="NEW", help="the name that the pipeline has for it now")
    add_dry_run(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the plan, and rename.

    :return: exit status, always 0.
    :raises MicroBatchError: if the command is refused; nothing was changed then.
    """
    store = open_checkpoint_store(arguments.location, sources=arguments.sources)

    def make(drafting: Drafting) -> Plan:
        return plan_rename_source(drafting, old=arguments.old, new=arguments.new)

    command = f"{NAME} {arguments.old} {arguments.new}"
    return maintain(arguments, store=store, command=command, make=make, dry_run=arguments.dry_run)
