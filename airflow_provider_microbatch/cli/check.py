"""``microbatch check``: verify every entry of a checkpoint, not only the newest ones that each run looks at."""

from __future__ import annotations

import argparse
import dataclasses
import json

from airflow_provider_microbatch.checkpoint.verify import find_unfinished, verify_all
from airflow_provider_microbatch.cli.opening import open_checkpoint

NAME = "check"
HELP = "verify all logs; exit status 0: nothing found, 1: findings, 2: cannot be read"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """This command has no arguments of its own."""


def run(arguments: argparse.Namespace) -> int:
    """Print each finding with its repair.

    :return: exit status: 0 if nothing was found, else 1.
    :raises CheckpointError: if the checkpoint cannot be read at all.
    """
    checkpoint = open_checkpoint(arguments.location, sources=arguments.sources)
    findings = find_unfinished(checkpoint) + verify_all(checkpoint)
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
    print(f"{checkpoint.location}: {counted} ({lanes})")
    return 1 if findings else 0
