"""``microbatch add-source``: declare that a source of the pipeline is a new one, though another has vanished."""

from __future__ import annotations

import argparse

from airflow_provider_microbatch.cli.maintaining import add_dry_run, maintain
from airflow_provider_microbatch.cli.opening import open_checkpoint_store
from airflow_provider_microbatch.upkeep.commands.plan import Drafting, Plan
from airflow_provider_microbatch.upkeep.commands.rename_source import plan_add_source

NAME = "add-source"
HELP = "a source is really new and no other one under a new name: all it has is read"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command alone."""
    parser.add_argument("source", metavar="NAME", help="the name that the pipeline has for it")
    add_dry_run(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the plan, and record the new source.

    :return: exit status, always 0.
    :raises MicroBatchError: if the command is refused; nothing was changed then.
    """
    store = open_checkpoint_store(arguments.location, sources=arguments.sources)

    def make(drafting: Drafting) -> Plan:
        return plan_add_source(drafting, name=arguments.source)

    command = f"{NAME} {arguments.source}"
    return maintain(arguments, store=store, command=command, make=make, dry_run=arguments.dry_run)
