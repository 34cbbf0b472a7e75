"""``microbatch check-source``: try a user's own source against the promises of every source."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from airflow_provider_microbatch.cli.setting import positive
from airflow_provider_microbatch.cli.trying import add_setting, made, tell
from airflow_provider_microbatch.registry import load_class

NAME = "check-source"
HELP = (
    "try a source of your own against what every source promises; exit status 0: all kept, 1: not, 2: cannot be tried"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command."""
    parser.add_argument(
        "source", metavar="MODULE:CLASS", help="the class; its module is looked for in the working directory too"
    )
    add_setting(parser, "source")
    parser.add_argument("--batches", type=positive, default=3, metavar="N",
                        help="so many ranges are planned and read at most (default: %(default)s)")  # fmt: skip
    parser.add_argument("--rows", type=positive, default=100, metavar="N",
                        help="so many rows each shall have at most (default: %(default)s)")  # fmt: skip
    parser.add_argument("--commit", action="store_true", help="call its commit too, for what was read here")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Print one verdict a line.

    :return: exit status: 0 if every promise that could be tried is kept, 1 if one is not, or there was no data to try.
    :raises DefinitionError: if there is no such source.
    """
    from airflow_provider_microbatch.sources.trial import Trial, verdicts
    from airflow_provider_microbatch.stores.location import open_store
    from airflow_provider_microbatch.upkeep.commands.draft import Draft

    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    source = _made(arguments.source, dict(arguments.set))
    with tempfile.TemporaryDirectory(prefix="microbatch-check-source-") as folder:
        trial = Trial(
            source,
            store=Draft(open_store(folder)),
            batches=arguments.batches,
            rows=arguments.rows,
            commits=arguments.commit,
        )
        return tell(arguments.source, verdicts(trial), needed="a range read twice", as_json=arguments.json)


def _made(path: str, fields: dict[str, Any]) -> Any:
    from airflow_provider_microbatch.sources import Source
    from airflow_provider_microbatch.sources.python import PythonSource

    loaded = load_class(path)
    if not issubclass(loaded, Source):
        return PythonSource(path, options={name: _text(value) for name, value in fields.items()})
    return made(path, loaded, fields)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
