"""``microbatch class-archive``: write a class archive, with which each spark-submit starts faster."""

from __future__ import annotations

import argparse
import json
import logging
from dataclasses import asdict
from pathlib import Path

from airflow_provider_microbatch.cli.setting import setting
from airflow_provider_microbatch.engines.environment import SPARK_SUBMIT

NAME = "class-archive"
HELP = "Write Spark's classes to a file from which each spark-submit on machines like this one starts faster."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command."""
    parser.add_argument("folder", type=Path, metavar="DIR", help="where it lies when spark-submit uses it")
    parser.add_argument("--spark-binary", default=SPARK_SUBMIT, metavar="NAME",
                        help="name of the spark-submit program (default: %(default)s)")  # fmt: skip
    parser.add_argument("--conf", type=setting, action="append", default=[], metavar="KEY=VALUE",
                        help="a setting of Spark, such as spark.driver.extraClassPath; may be given again")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Make the archive, and print how to use it.

    :return: exit status, always 0.
    """
    from airflow_provider_microbatch.engines import class_archive

    logging.basicConfig(level=logging.INFO, format="microbatch: %(message)s")
    folder: Path = arguments.folder.absolute()
    made = class_archive.make(folder, conf=dict(arguments.conf), binary=arguments.spark_binary)
    if arguments.json:
        print(json.dumps(asdict(made)))
        return 0
    extra = json.dumps({class_archive.EXTRA: str(folder)})
    print(
        f"{folder / made.file}: {made.bytes:,} bytes, classes of Spark {made.spark}\n"
        f"Put this into the extra of the connections of type spark: {extra}"
    )
    return 0
