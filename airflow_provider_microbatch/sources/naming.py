"""Errors of a source say which one has them: a pipeline may have several."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from airflow_provider_microbatch.exceptions import IntervalError, SourceError

T = TypeVar("T")


def asked_of(name: str, question: Callable[[], T]) -> T:
    """Its answer.

    :param name: of the source.
    :raises SourceError: what it raises, with the name before it unless that is in it; an IntervalError likewise.
    """
    try:
        return question()
    except (SourceError, IntervalError) as error:
        if repr(name) in str(error):
            raise
        raise type(error)(f"source {name!r}: {error}") from error
