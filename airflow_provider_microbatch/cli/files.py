"""``microbatch files``: list the files of a table's published batches, for programs that read them by themselves."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from airflow_provider_microbatch.sinks.file.published import published_files
from airflow_provider_microbatch.stores.location import scheme_of

NAME = "files"
HELP = "list the files of the batches that are published in a table of files, on a disk or in a bucket"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command."""
    parser.add_argument("table", metavar="TABLE", help="as the pipeline's FileSink has it: a path, or s3://conn_id@…")
    parser.add_argument("--lane", help="only this lane's (default: all)")
    parser.add_argument("--json", action="store_true", help="print a JSON object a line, with lane and batch")


def run(arguments: argparse.Namespace) -> int:
    """Print one address a line.

    :return: exit status, always 0.
    :raises MicroBatchError: if the location is not a table, or cannot be read.
    """
    table = arguments.table if scheme_of(arguments.table) else str(Path(arguments.table).absolute())
    for one in published_files(table, lane=arguments.lane):
        told = {"lane": one.key.lane, "batch_id": one.key.id, "file": one.address}
        print(json.dumps(told) if arguments.json else one.address)
    return 0
