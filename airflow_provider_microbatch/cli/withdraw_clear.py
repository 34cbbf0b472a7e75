"""``microbatch withdraw-clear``: a clear of a batch that nobody will answer."""

from __future__ import annotations

import argparse

from airflow_provider_microbatch.cli.maintaining import add_dry_run, maintain
from airflow_provider_microbatch.cli.opening import add_batch, asked_batch, open_checkpoint, open_checkpoint_store
from airflow_provider_microbatch.upkeep.commands.plan import Drafting, Plan
from airflow_provider_microbatch.upkeep.commands.withdraw_clear import plan_withdraw_clear

NAME = "withdraw-clear"
HELP = "a clear of this batch waits for an answer that nobody will give, since its run was deleted: end the wait"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of this command alone."""
    add_batch(parser)
    add_dry_run(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print which clears wait, and withdraw them.

    :return: exit status, always 0.
    :raises MicroBatchError: if it is refused; nothing was changed then.
    """
    store = open_checkpoint_store(arguments.location, sources=arguments.sources)
    checkpoint = open_checkpoint(arguments.location, sources=arguments.sources)
    key = asked_batch(arguments, checkpoint)

    def make(drafting: Drafting) -> Plan:
        return plan_withdraw_clear(drafting, key)

    return maintain(arguments, store=store, command=f"{NAME} {key}", make=make, dry_run=arguments.dry_run)
