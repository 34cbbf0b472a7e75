"""``microbatch import``: have a pipeline go on from a copy of a streaming query's checkpoint, or of an export."""

from __future__ import annotations

import argparse

from airflow_provider_microbatch.cli.maintaining import add_dry_run, maintain
from airflow_provider_microbatch.cli.opening import open_checkpoint_store, open_location
from airflow_provider_microbatch.upkeep.commands.exchange import plan_import
from airflow_provider_microbatch.upkeep.commands.plan import Drafting, Plan

NAME = "import"
HELP = "copy the checkpoint of a Structured Streaming query, or an export, and make it a pipeline's"


def add_origin(parser: argparse.ArgumentParser) -> None:
    """Add the argument that comes before the location."""
    parser.add_argument("origin", metavar="SOURCE", help="the checkpoint to copy; it is only read")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command alone."""
    parser.add_argument("--pipeline", required=True, metavar="NAME", help="name of the pipeline that goes on from it")
    add_dry_run(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the plan, and copy.

    :return: exit status, always 0.
    :raises MicroBatchError: if the command is refused; nothing was changed then.
    """
    origin = open_checkpoint_store(arguments.origin, sources=arguments.sources).location
    store = open_location(arguments.location)

    def make(drafting: Drafting) -> Plan:
        return plan_import(drafting, source=origin, pipeline=arguments.pipeline)

    command = f"{NAME} {origin} --pipeline {arguments.pipeline}"
    return maintain(
        arguments, store=store, command=command, make=make, dry_run=arguments.dry_run, told=(origin,), once=True
    )  # fmt: skip
