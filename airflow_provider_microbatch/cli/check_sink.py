"""``microbatch check-sink``: try a user's own sink against the promises of every such sink."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from airflow_provider_microbatch.cli.trying import add_setting, made, tell
from airflow_provider_microbatch.exceptions import DefinitionError
from airflow_provider_microbatch.registry import load_class

NAME = "check-sink"
HELP = (
    "try a sink of your own (ForeachSink) against what it has to promise, in the target that its fields name: give it "
    "one of its own; exit status 0: all kept, 1: not, 2: cannot be tried"
)
ROWS: Sequence[Mapping[str, Any]] = ({"id": 1, "note": "a"}, {"id": 2, "note": "b"}, {"id": 3, "note": None})


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command."""
    parser.add_argument(
        "sink", metavar="MODULE:CLASS", help="the class; its module is looked for in the working directory too"
    )
    add_setting(parser, "sink")
    parser.add_argument("--rows", type=Path, metavar="FILE", help="rows that it takes, two at least, as lines of JSON "
                        f"(default: {json.dumps(ROWS[0])}, …)")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Print one verdict a line.

    :return: exit status: 0 if every promise that could be tried is kept, 1 if one is not, or if the output of the sink
        could not be seen.
    :raises DefinitionError: if there is no such sink.
    """
    from airflow_provider_microbatch.sinks.foreach import ForeachSink
    from airflow_provider_microbatch.sinks.trial import Trial, verdicts

    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    loaded = load_class(arguments.sink)
    if not issubclass(loaded, ForeachSink):
        raise DefinitionError(f"{arguments.sink} is no ForeachSink.")
    sink = made(arguments.sink, loaded, dict(arguments.set))
    trial = Trial(sink, rows=ROWS if arguments.rows is None else _rows(arguments.rows))
    return tell(arguments.sink, verdicts(trial), needed="rows are there", as_json=arguments.json)


def _rows(path: Path) -> Sequence[Mapping[str, Any]]:
    try:
        found = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise DefinitionError(f"{path} has no rows as lines of JSON: {error}") from error
    if len(found) < 2 or not all(isinstance(row, dict) for row in found):
        raise DefinitionError(f"{path} must have two rows at least, each a JSON object on a line of its own.")
    return found
