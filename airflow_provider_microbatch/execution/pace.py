"""How large the next batch may be so that it takes about ``target_seconds``: the measured rate, carried on."""

from __future__ import annotations

import logging

from airflow_provider_microbatch.checkpoint.checkpoint import Lane
from airflow_provider_microbatch.sources import Limit

log = logging.getLogger(__name__)

MEASURED_BATCHES = 3
"""So many of the newest committed batches make the rate: enough to even out one slow batch, few enough to follow."""

LARGEST_STEP = 4.0
"""The next batch is at most so many times the last one: a rate that was measured on little says little about much."""


def limits(lane: Lane, *, target_seconds: float) -> dict[str, Limit]:
    """What each source may add to the next batch. A source without a measured rate has no entry: its own limits hold.

    A batch has a share that does not grow with its files, so the rate of small batches is too low and the next one
    is too small, but larger than the last: the size climbs to the target.

    :param lane: its newest commit entries hold what was measured.
    :param target_seconds: how long Spark shall work on a batch.
    """
    newest = lane.commit_log.latest_id()
    if newest is None:
        return {}
    files: dict[str, list[int]] = {}
    seconds: dict[str, float] = {}
    for number in range(newest, max(-1, newest - MEASURED_BATCHES), -1):
        entry = lane.commit_log.get(number)
        progress = entry.progress if entry is not None else {}
        total_ms = (progress.get("durationMs") or {}).get("total")
        if not total_ms:
            continue
        for name, figures in (progress.get("sources") or {}).items():
            count = figures.get("files")
            if count:
                files.setdefault(name, []).append(count)
                seconds[name] = seconds.get(name, 0.0) + total_ms / 1000
    found = {}
    for name, counts in files.items():
        rate = sum(counts) / seconds[name]
        wanted = min(rate * target_seconds, counts[0] * LARGEST_STEP)
        found[name] = Limit(files=max(1, int(wanted)))
        log.info("source %s: %.1f files a second; at most %s in the next batch", name, rate, found[name].files)
    return found
