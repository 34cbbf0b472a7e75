"""Whether two of several sinks write to one table, or one within the other's."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations

from airflow_provider_microbatch.sinks import Sink


def first_overlap(sinks: Mapping[str, Sink]) -> tuple[str, str] | None:
    """Names of the first two sinks that readers of one table would come upon, in the order of ``sinks``; None if each
    has a table of its own."""
    locations = {name: sink.location() for name, sink in sinks.items()}
    for (name, one), (second, other) in combinations(sinks.items(), 2):
        if one.is_same_place(other) or other.is_same_place(one):
            return name, second
        if one.would_show(locations[second]) or other.would_show(locations[name]):
            return name, second
    return None
