"""The common part of the commands that try a user's own class."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from airflow_provider_microbatch.exceptions import DefinitionError
from airflow_provider_microbatch.verdict import FAILED, NOT_TRIED, OK, Verdict

T = TypeVar("T")


def add_setting(parser: argparse.ArgumentParser, what: str) -> None:
    """Add the argument for the fields of the class."""
    parser.add_argument("--set", type=_setting, action="append", default=[], metavar="NAME=VALUE",
                        help=f"a field of the {what}, as JSON or as a text; may be given again")  # fmt: skip


def made(path: str, loaded: Callable[..., T], fields: dict[str, Any]) -> T:
    """An object of the class with these fields.

    :raises DefinitionError: if the object cannot be made.
    """
    try:
        return loaded(**fields)
    except DefinitionError:
        raise
    except Exception as error:  # the user's own constructor
        raise DefinitionError(f"{path} cannot be made of {sorted(fields)}: {type(error).__name__}: {error}") from error


def tell(path: str, verdicts: Iterable[Verdict], *, needed: str, as_json: bool) -> int:
    """Print verdicts as they come.

    :param needed: beginning of the name of the case without which nothing counts as tried.
    :return: exit status: 0 if every promise that could be tried is kept.
    """
    found = []
    for verdict in verdicts:
        found.append(verdict)
        if not as_json:
            print(f"{verdict.state:<10} {verdict.case}" + (f"\n{'':11}{verdict.message}" if verdict.message else ""))
    counts = {state: sum(verdict.state == state for verdict in found) for state in (OK, FAILED, NOT_TRIED)}
    tried = any(verdict.state == OK and verdict.case.startswith(needed) for verdict in found)
    if as_json:
        print(json.dumps([dataclasses.asdict(verdict) for verdict in found], ensure_ascii=False, indent=2))
    else:
        print(f"{path}: {', '.join(f'{count} {state}' for state, count in counts.items())}")
    return 0 if tried and not counts[FAILED] else 1


def _setting(text: str) -> tuple[str, Any]:
    name, separator, value = text.partition("=")
    if not name or not separator:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME=VALUE")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value
