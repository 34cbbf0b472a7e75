"""Puts the name of a source into its errors, since a pipeline may have several sources."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from airflow_provider_microbatch.exceptions import IntervalError, SourceError

T = TypeVar("T")


def asked_of(name: str, question: Callable[[], T]) -> T:
    """Return the answer of ``question``.

    :param name: name of the source.
    :raises SourceError: the error of ``question``, with the name before its text unless the text has the name; likewise
        for an IntervalError.
    """
    try:
        return question()
    except (SourceError, IntervalError) as error:
        if repr(name) in str(error):
            raise
        raise type(error)(f"source {name!r}: {error}") from error
