"""``microbatch copy``: move a checkpoint to another place; no run goes on at the old place."""

from __future__ import annotations

import argparse

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.cli.maintaining import add_dry_run, maintain
from airflow_provider_microbatch.cli.opening import open_checkpoint_store, open_location
from airflow_provider_microbatch.engines.lookup import find_engine
from airflow_provider_microbatch.upkeep.commands.copy import go_on, is_done, plan_copy
from airflow_provider_microbatch.upkeep.commands.plan import Drafting, Plan

NAME = "copy"
HELP = "move the checkpoint to another place (file, sql, …), where the pipeline goes on; the old one is closed"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command alone."""
    parser.add_argument("target", metavar="TARGET", help="where it moves to; nothing may be there")
    add_dry_run(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the plan, and move the checkpoint.

    :return: exit status, always 0.
    :raises MicroBatchError: if the command is refused; nothing was changed then.
    """
    target = open_location(arguments.target).location
    store = open_checkpoint_store(arguments.location, sources=arguments.sources, leaving_for=target)
    maintenance = Checkpoint(store).maintenance
    moved = maintenance.places.moved()
    if moved is not None and maintenance.unfinished() is None:
        if not arguments.dry_run and not is_done(moved):
            go_on(store, moved, engine_of=find_engine)
        print(f"{'done' if is_done(moved) else 'to be finished'}: {moved}")
        return 0

    def make(drafting: Drafting) -> Plan:
        return plan_copy(drafting, target=target)

    return maintain(
        arguments,
        store=store,
        command=f"{NAME} {target}",
        make=make,
        dry_run=arguments.dry_run,
        told=(target,),
        once=True,
    )
