"""Verdicts on the promises that a user's own sources and sinks have to keep, each tried as a case."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from airflow_provider_microbatch.definition import Definition
from airflow_provider_microbatch.exceptions import MicroBatchError

Tried = TypeVar("Tried")

OK, FAILED, NOT_TRIED = "ok", "FAILED", "not tried"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The outcome of one case.

    :param case: the promise, as a sentence.
    :param state: the outcome: ``OK``, ``FAILED`` or ``NOT_TRIED``.
    :param message: what went wrong, or why the case could not be tried.
    """

    case: str
    state: str
    message: str = ""


class Broken(Exception):
    """A promise is not kept; the message says how."""


class NotTried(Exception):
    """A case has nothing to be tried with; the message says what the case needs."""


def check_travels(definition: Definition) -> None:
    """:raises Broken: if a definition is not the same after it is rebuilt from its own JSON."""
    plain = definition.to_dict()
    try:
        text = json.dumps(plain)
    except TypeError as error:
        raise Broken(f"its fields are no JSON values: {error}") from error
    back = Definition.from_dict(json.loads(text), known=definition.classes(), any_server=True)
    if back != definition:
        raise Broken(f"made again of its own JSON it is {back!r}, and not {definition!r}: write tuples as lists")


def verdicts(cases: Sequence[Callable[[Tried], None]], trial: Tried) -> Iterator[Verdict]:
    """Try each case, in order; the name of a case is the sentence that it promises.

    :param trial: what the cases are tried on.
    """
    for case in cases:
        sentence = case.__name__.replace("_", " ")
        try:
            case(trial)
        except NotTried as reason:
            yield Verdict(case=sentence, state=NOT_TRIED, message=str(reason))
        except (Broken, MicroBatchError) as error:
            yield Verdict(case=sentence, state=FAILED, message=str(error))
        except Exception as error:  # the user's code
            yield Verdict(case=sentence, state=FAILED, message=f"{type(error).__name__}: {error}")
        else:
            yield Verdict(case=sentence, state=OK)
