"""``microbatch withdraw-clear``: withdraw a clear of a batch that no run will answer."""

from __future__ import annotations

import argparse

from airflow_provider_microbatch.cli.maintaining import add_dry_run, maintain_batch
from airflow_provider_microbatch.cli.opening import add_batch
from airflow_provider_microbatch.upkeep.commands.withdraw_clear import plan_withdraw_clear

NAME = "withdraw-clear"
HELP = "a clear of this batch waits for an answer that nobody will give, since its run was deleted: end the wait"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command alone."""
    add_batch(parser)
    add_dry_run(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the clears that wait, and withdraw them.

    :return: exit status, always 0.
    :raises MicroBatchError: if the command is refused; nothing was changed then.
    """
    return maintain_batch(arguments, command=NAME, make=plan_withdraw_clear)
