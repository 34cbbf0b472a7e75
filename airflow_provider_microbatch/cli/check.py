"""``microbatch check``: verify every entry of a checkpoint, not only the newest entries, which each run verifies."""

from __future__ import annotations

import argparse
import dataclasses
import json

from airflow_provider_microbatch.checkpoint.verify import find_given_up, find_unfinished, find_unfit, verify_all
from airflow_provider_microbatch.cli.opening import non_negative_seconds, open_checkpoint
from airflow_provider_microbatch.execution.left import STANDING_SECONDS, find_left, find_standing
from airflow_provider_microbatch.execution.retention import find_held
from airflow_provider_microbatch.execution.set_aside import find_aside
from airflow_provider_microbatch.execution.unread import find_unread
from airflow_provider_microbatch.upkeep.source_check import check_sources, find_without_batch
from airflow_provider_microbatch.upkeep.table_check import check_table

NAME = "check"
HELP = "verify all logs; exit status 0: nothing found, 1: findings, 2: cannot be read"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command alone."""
    parser.add_argument(
        "--table",
        action="store_true",
        help="ask the table for every committed batch, not only for some; also one that it takes a server to ask",
    )
    parser.add_argument(
        "--standing",
        type=non_negative_seconds,
        default=STANDING_SECONDS,
        metavar="SECONDS",
        help="so long a planned batch may wait with nobody at it before that is a finding (default: %(default).0f)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Print each finding with its repair.

    :return: exit status: 0 if nothing was found, else 1.
    :raises CheckpointError: if the checkpoint cannot be read at all.
    """
    checkpoint = open_checkpoint(arguments.location, sources=arguments.sources)
    findings = find_unfinished(checkpoint) + verify_all(checkpoint) + find_given_up(checkpoint) + find_unfit(checkpoint)
    findings += find_held(checkpoint) + find_left(checkpoint) + check_sources(checkpoint)
    findings += find_standing(checkpoint, seconds=arguments.standing) + find_unread(checkpoint)
    findings += find_aside(checkpoint)
    findings += find_without_batch(checkpoint)
    table = check_table(checkpoint, everything=arguments.table)
    findings += table.findings
    if arguments.json:
        print(json.dumps([dataclasses.asdict(finding) for finding in findings], ensure_ascii=False, indent=2))
        return 1 if findings else 0
    for finding in findings:
        print(f"{finding.kind}: {finding.where}\n  {finding.message}\n  repair: {finding.repair}")
    counted = "nothing wrong" if not findings else f"{len(findings)} finding{'s' if len(findings) > 1 else ''}"
    lanes = ", ".join(
        f"{lane}: {len(checkpoint.lane(lane).offset_log.ids())} planned, "
        f"{len(checkpoint.lane(lane).commit_log.ids())} committed"
        for lane in checkpoint.lanes()
    )
    asked = f"table: {table.asked} of {table.of} asked for" if table.unasked is None else "table: not asked"
    print(f"{checkpoint.location}: {counted} ({lanes}; {asked})")
    for note in table.notes:
        print(f"note: {note}")
    if table.unasked is not None and table.of:
        print(f"the table was not asked: {table.unasked}")
    return 1 if findings else 0
