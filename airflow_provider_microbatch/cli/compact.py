"""``microbatch compact``: join the small files of a pipeline's tables."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator

from airflow_provider_microbatch.cli.opening import open_checkpoint
from airflow_provider_microbatch.sinks.compaction import TARGET_BYTES
from airflow_provider_microbatch.upkeep.compaction import TableReport, compact

NAME = "compact"
HELP = "join small files of the pipeline's tables; each batch stays known; exit status 1: a table could not be done"

_NAMED = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command alone."""
    parser.add_argument("--dry-run", action="store_true", help="say what would be done, and do nothing")
    parser.add_argument(
        "--target-bytes",
        type=positive_bytes,
        default=TARGET_BYTES,
        metavar="BYTES",
        help="size that a joined file has at most (default: %(default)s)",
    )


def positive_bytes(text: str) -> int:
    """The bytes of an argument for a size."""
    if not (text.isascii() and text.isdecimal() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of bytes from 1 on")
    return int(text)


def run(arguments: argparse.Namespace) -> int:
    """Compact each table, and print what was done.

    :return: exit status: 0, or 1 if a table could not be compacted to its end.
    :raises CheckpointError: if the checkpoint cannot be read.
    :raises MaintenanceError: while a command is changing the checkpoint.
    """
    checkpoint = open_checkpoint(arguments.location, sources=arguments.sources)
    reports = compact(checkpoint, target_bytes=arguments.target_bytes, dry_run=arguments.dry_run)
    if arguments.json:
        print(json.dumps([report.to_dict() for report in reports], ensure_ascii=False, indent=2))
    else:
        for report in reports:
            print("\n".join(_lines(report, dry_run=arguments.dry_run)))
    return 1 if any(report.failed for report in reports) else 0


def _lines(report: TableReport, *, dry_run: bool) -> Iterator[str]:
    done = report.done
    if report.refused is not None:
        yield f"{report.location}: not compacted: {report.refused}"
        return
    if report.failed is not None:
        yield f"{report.location}: not compacted to its end: {report.failed}"
    elif not done.files_before:
        yield f"{report.location}: nothing to do"
    else:
        size = "" if dry_run else f", {done.bytes_before:,} bytes → {done.bytes_after:,}"
        told = ", dry run: nothing was done" if dry_run else ""
        yield (
            f"{report.location}: {done.files_before:,} files of {len(done.batches):,} batches → "
            f"{done.files_after:,}{size}{told}"
        )
    for why, keys in report.named:
        named = ", ".join(map(str, sorted(keys)[:_NAMED])) + (", …" if len(keys) > _NAMED else "")
        yield f"  left as they are, {len(keys):,} ({named}): {' '.join(why.split())}"
    if report.unnamed:
        yield f"  left as they are, others: for {report.unnamed:,} further reasons"
