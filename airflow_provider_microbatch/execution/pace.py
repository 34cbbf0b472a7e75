"""How large the next batch may be so that it takes about ``target_seconds``: the measured rate, carried on."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_microbatch.checkpoint.checkpoint import Lane
from airflow_provider_microbatch.sources import ReadLimit

log = logging.getLogger(__name__)

MEASURED_BATCHES = 3
"""Number of newest committed batches that make the rate: enough to even out a slow one, few enough to follow."""

LARGEST_STEP = 4.0
"""How many times as large as the last batch the next may be: a rate of little data says little about much."""


@dataclass(frozen=True, kw_only=True)
class _Measured:
    """How long Spark worked on a batch, and on how much of each source."""

    seconds: float
    figures: Mapping[str, Mapping[str, Any]]


def limits(lane: Lane, *, splits: Mapping[str, str], target_seconds: float) -> dict[str, ReadLimit]:
    """The read limit of each source for the next batch. A source without a measured rate has no entry: its own limits
    hold.

    Counted are a source's splits; its rows, or bytes, if it cannot tell its splits. A part of a batch's time does not
    grow with its size, so the rate of small batches is too low and the next batch is too small, but larger than the
    last: the size climbs to the target.

    :param lane: the lane whose newest commit entries hold the measurements.
    :param splits: by source, its name for its splits in these entries.
    :param target_seconds: how long Spark shall work on a batch.
    """
    measured = _measured(lane)
    return {
        name: limit
        for name, word in splits.items()
        if (limit := _limit_of(name, word, measured, target_seconds)) is not None
    }


def _measured(lane: Lane) -> list[_Measured]:
    """The newest committed batches that Spark worked on, the newest first."""
    newest = lane.commit_log.latest_id()
    numbers = range(-1 if newest is None else newest, max(-1, (newest or 0) - MEASURED_BATCHES), -1)
    entries = [entry for number in numbers if (entry := lane.commit_log.get(number)) is not None]
    return [
        _Measured(seconds=total_ms / 1000, figures=entry.progress.get("sources") or {})
        for entry in entries
        if (total_ms := (entry.progress.get("durationMs") or {}).get("total"))
    ]


def _limit_of(name: str, word: str, measured: Sequence[_Measured], target_seconds: float) -> ReadLimit | None:
    for kind, told in (("splits", word), ("rows", "rows"), ("bytes", "bytes")):
        found = [((batch.figures.get(name) or {}).get(told), batch.seconds) for batch in measured]
        counts = [(count, seconds) for count, seconds in found if count]
        if not counts:
            continue
        rate = sum(count for count, _ in counts) / sum(seconds for _, seconds in counts)
        most = max(1, int(min(rate * target_seconds, counts[0][0] * LARGEST_STEP)))
        log.info("source %s: %.1f %s a second; at most %s in the next batch", name, rate, told, most)
        return ReadLimit(**{kind: most})
    return None
