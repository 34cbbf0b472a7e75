"""``microbatch janitor``: clean up after dead attempts, from the checkpoint alone."""

from __future__ import annotations

import argparse
import json

from airflow_provider_microbatch.cli.opening import non_negative_seconds, open_checkpoint
from airflow_provider_microbatch.engines.lookup import find_engine
from airflow_provider_microbatch.upkeep.janitor import GRACE_SECONDS, Janitor

NAME = "janitor"
HELP = "drop stages of dead attempts, call hooks that nobody called, apply retention; exit status 1: some is left"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command alone."""
    parser.add_argument("--dry-run", action="store_true", help="say what would be done, and do nothing")
    parser.add_argument(
        "--grace",
        type=non_negative_seconds,
        default=GRACE_SECONDS,
        metavar="SECONDS",
        help="keep output that a replay put out this long (default: %(default).0f)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the janitor once and print its actions.

    :return: exit status: 0, or 1 if something could not be cleaned up.
    :raises CheckpointError: if the checkpoint cannot be read.
    """
    report = Janitor(
        checkpoint=open_checkpoint(arguments.location, sources=arguments.sources),
        engine_of=find_engine,
        grace_seconds=arguments.grace,
        dry_run=arguments.dry_run,
    ).run()
    if arguments.json:
        print(json.dumps(report.to_dict(), ensure_ascii=False, indent=2))
    else:
        for action in report.actions:
            why = f" ({' '.join(action.why.split())})" if action.why else ""
            print(f"{action.kind}: {action.what}{why}")
        counted = len(report.actions)
        found = f"{counted} action{'s' if counted > 1 else ''}" if counted else "nothing to do"
        print(f"{report.location}: {found}{', dry run: nothing was done' if report.dry_run else ''}")
    return 1 if report.failed else 0
