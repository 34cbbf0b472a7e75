"""Names of a batch as people see them: in squares of the grid, on the command line, in log lines."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_provider_microbatch.checkpoint.key import LIVE, BatchKey

_NAMED = 5
"""Number of batches that a message names."""


def batch_label(key: BatchKey) -> str:
    """``batch 5``; for another lane than the live one ``batch <lane>/0``."""
    return f"batch {key.id if key.lane == LIVE else key}"


def attempt_label(key: BatchKey, epoch: int) -> str:
    """``batch 5 · attempt 2``, while one is at work."""
    return f"{batch_label(key)} · attempt {epoch}"


def done_label(key: BatchKey, *, rows: int | None, letters: int = 0) -> str:
    """``batch 5 · 1,000 rows``, and its dead letters if there are any.

    :param rows: published; None if that is not known.
    :param letters: dead letters.
    """
    told = "" if rows is None else f" · {rows_label(rows)}"
    return f"{batch_label(key)}{told}{letters_label(letters)}"


def aside_label(key: BatchKey) -> str:
    """``batch 5 · set aside``."""
    return f"{batch_label(key)} · set aside"


def rows_label(count: int) -> str:
    """``1,000 rows``."""
    return f"{count:,} row{'' if count == 1 else 's'}"


def letters_label(count: int) -> str:
    """The words of a label about dead letters, behind the rest: ``· 3 dead letters``; empty for none."""
    return f" · {count:,} dead letter{'' if count == 1 else 's'}" if count else ""


def names_of(keys: Sequence[BatchKey]) -> str:
    """``batches live/5, live/7``, the first few of them."""
    more = f" and {len(keys) - _NAMED} more" if len(keys) > _NAMED else ""
    return f"batch{'es' if len(keys) > 1 else ''} {', '.join(map(str, keys[:_NAMED]))}{more}"
