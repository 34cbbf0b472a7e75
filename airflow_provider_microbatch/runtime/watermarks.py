"""Watermarks of a query's streams, each by itself, across batches that are each a query of their own.

Spark keeps the watermark of each stream in a query's memory, and in its checkpoint that of the query alone. So a query
that begins anew takes a stream without rows in its batch for one that never had any, and the query's watermark, the
least of all, stands still: for ever, where streams have rows in different batches. An attempt tells each of them with
its state, and the next one goes on from there, by the rule of Spark's ``WatermarkTracker``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any, TypeVar

from airflow_provider_microbatch.runtime.query_plan import Query, each

V = TypeVar("V")

POLICY = "spark.sql.streaming.multipleWatermarkPolicy"


@dataclass(frozen=True)
class Streams:
    """The streams of a plan that have a watermark.

    :param names: by Spark's ids of the watermarks, which are others in each query. With another delay it is another
        watermark: by the one of before, rows would be late that the new delay waits for.
    :param made: by name, a digest of how the stream's rows are made.
    """

    names: Mapping[str, str]
    made: Mapping[str, str]


def streams_of(query: Query, before: Mapping[str, str]) -> Streams:
    """The streams, by names that stay the same from batch to batch: the sources that lie below, the column and the
    delay; where several have these, a turn, which is that of before of the one whose rows are made alike.

    :param before: what :attr:`Streams.made` was in the batch before.
    """
    alike = dict[str, dict[str, str]]()
    for node in query.nodes:
        if node.getClass().getSimpleName() == "EventTimeWatermark":
            name = f"{_together(query.sources(node))}: {node.eventTime().name()} - {node.delay().toString()}"
            alike.setdefault(name, {}).setdefault(node.nodeId().toString(), query.digest(node))
    names, made = dict[str, str](), dict[str, str]()
    for name, ids in alike.items():
        left = {turn: was for turn, was in before.items() if turn == name or turn.startswith(f"{name}#")}
        new = (turn for turn in _turns(name) if turn not in before)
        turns = dict[str, str]()
        for id, digest in ids.items():
            known = next((turn for turn, was in left.items() if was == digest), None)
            if known is not None:
                turns[id] = known
                del left[known]
        rest = [id for id in ids if id not in turns]
        # One that nobody knows goes on from no other's watermark: its rows would be late by it.
        turns |= zip(rest, list(left) if len(left) == len(rest) else new, strict=False)
        names |= turns
        made |= {turns[id]: digest for id, digest in ids.items()}
    return Streams(names=names, made=made)


def _turns(name: str) -> Iterator[str]:
    yield name
    yield from (f"{name}#{turn}" for turn in count(2))


def renamed(before: Mapping[str, V], of: Callable[[str], str]) -> dict[str, V]:
    """Values by the names of streams, with their sources' names of now.

    :param of: tells the name of now of a source that had another.
    """
    parts = ((name.partition(": "), value) for name, value in before.items())
    return {_together(sorted(map(of, names.split("+")))) + colon + rest: value for (names, colon, rest), value in parts}


def _together(sources: Iterable[str]) -> str:
    return "+".join(sources)


def moved_on(before: Mapping[str, int], names: Mapping[str, str], executed: Any) -> dict[str, int]:
    """The watermarks after a batch, milliseconds since the epoch, without those of streams that never had a row.

    :param before: those before it.
    :param executed: Spark's plan of the batch as it was executed.
    """
    found = {name: before[name] for name in names.values() if name in before}
    for node in _below(executed):
        if node.getClass().getSimpleName() == "EventTimeWatermarkExec":
            name, seen = names.get(node.nodeId().toString()), node.eventTimeStats().value()
            if name is not None and seen.count() > 0:
                at = int(seen.max()) - int(node.delayMs())
                found[name] = max(at, found.get(name, at))
    return found


def of_query(own: int, found: Mapping[str, int], names: Mapping[str, str], *, policy: str) -> int:
    """The query's watermark by those of its streams, milliseconds since the epoch; it never goes back.

    :param own: what Spark has for the query's watermark, by this batch alone.
    :param policy: Spark's setting of that name, ``min`` or ``max``.
    """
    values = found.values()
    if policy == "max":
        return max([own, *values])
    return own if len(values) < len({*names.values()}) or not values else max(own, min(values))


def _below(plan: Any) -> Iterator[Any]:
    yield plan
    for child in each(plan.children()):
        yield from _below(child)
