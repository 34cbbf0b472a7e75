"""SQL conditions for rows by spans of numbers, which MariaDB answers fast however many spans there are: of thousands
of ``BETWEEN`` it would try each on each row."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_provider_microbatch.sources.jdbc.offset import between

_FAR = 10_000
"""So many numbers between two spans are not gone through for rows that are in neither."""

_MOST_RUNS = 50

Span = tuple[int, int]


def within(column: str, spans: Sequence[Span]) -> str:
    """Rows with numbers in the spans.

    :param column: as SQL has it.
    :param spans: first and last, in order.
    """
    if not spans:
        return "1 = 0"
    runs: list[list[Span]] = []
    for span in spans:
        if runs and span[0] - runs[-1][-1][1] <= _FAR:
            runs[-1].append(span)
        else:
            runs.append([span])
    if len(runs) > _MOST_RUNS:
        runs = [list(spans)]
    return " OR ".join(f"({_run(column, run)})" for run in runs)


def _run(column: str, spans: Sequence[Span]) -> str:
    whole = between(column, [(spans[0][0], spans[-1][1])])
    if len(spans) == 1:
        return whole
    # INTERVAL searches, by halves, how many of the bounds a number has reached: an odd number inside of a span.
    bounds = ", ".join(f"{first}, {last + 1}" for first, last in spans)
    return f"{whole} AND interval({column}, {bounds}) % 2 = 1"
