"""``microbatch withdraw-clear``: a clear of a batch that nobody will answer."""

from __future__ import annotations

import argparse

from airflow_provider_microbatch.cli.maintaining import add_dry_run, maintain_batch
from airflow_provider_microbatch.cli.opening import add_batch
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
    return maintain_batch(arguments, command=NAME, make=plan_withdraw_clear)
