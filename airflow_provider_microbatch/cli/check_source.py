"""``microbatch check-source``: try a source of one's own against what every source promises."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from airflow_provider_microbatch.cli.setting import positive
from airflow_provider_microbatch.exceptions import DefinitionError
from airflow_provider_microbatch.registry import load_class

NAME = "check-source"
HELP = (
    "try a source of your own against what every source promises; exit status 0: all kept, 1: not, 2: cannot be tried"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of this command."""
    parser.add_argument(
        "source", metavar="MODULE:CLASS", help="the class; its module is looked for in the working directory too"
    )
    parser.add_argument("--set", type=_setting, action="append", default=[], metavar="NAME=VALUE",
                        help="a field of the source, as JSON or as a text; may be given again")  # fmt: skip
    parser.add_argument("--batches", type=positive, default=3, metavar="N",
                        help="so many ranges are planned and read at most (default: %(default)s)")  # fmt: skip
    parser.add_argument("--rows", type=positive, default=100, metavar="N",
                        help="so many rows each shall have at most (default: %(default)s)")  # fmt: skip
    parser.add_argument("--commit", action="store_true", help="call its commit too, for what was read here")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Print a verdict a line.

    :return: exit status: 0 if every promise that could be tried is kept, 1 if one is not, or there was no data to try.
    :raises DefinitionError: if there is no such source.
    """
    from airflow_provider_microbatch.sources.trial import FAILED, NOT_TRIED, OK, Trial, verdicts
    from airflow_provider_microbatch.stores.location import open_store

    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    source = _made(arguments.source, dict(arguments.set))
    with tempfile.TemporaryDirectory(prefix="microbatch-check-source-") as folder:
        trial = Trial(
            source,
            store=open_store(folder),
            batches=arguments.batches,
            rows=arguments.rows,
            commits=arguments.commit,
        )
        found = []
        for verdict in verdicts(trial):
            found.append(verdict)
            if not arguments.json:
                print(
                    f"{verdict.state:<10} {verdict.case}" + (f"\n{'':11}{verdict.message}" if verdict.message else "")
                )
    counts = {state: sum(verdict.state == state for verdict in found) for state in (OK, FAILED, NOT_TRIED)}
    tried = any(verdict.state == OK and verdict.case.startswith("a range read twice") for verdict in found)
    if arguments.json:
        print(json.dumps([dataclasses.asdict(verdict) for verdict in found], ensure_ascii=False, indent=2))
    else:
        print(f"{arguments.source}: {', '.join(f'{count} {state}' for state, count in counts.items())}")
    return 0 if tried and not counts[FAILED] else 1


def _made(path: str, fields: dict[str, Any]) -> Any:
    from airflow_provider_microbatch.sources import Source
    from airflow_provider_microbatch.sources.python import PythonSource

    loaded = load_class(path)
    if not issubclass(loaded, Source):
        return PythonSource(path, options={name: _text(value) for name, value in fields.items()})
    try:
        return loaded(**fields)
    except DefinitionError:
        raise
    except Exception as error:  # a constructor of the user's
        raise DefinitionError(f"{path} cannot be made of {sorted(fields)}: {type(error).__name__}: {error}") from error


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _setting(text: str) -> tuple[str, Any]:
    name, separator, value = text.partition("=")
    if not name or not separator:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME=VALUE")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value
