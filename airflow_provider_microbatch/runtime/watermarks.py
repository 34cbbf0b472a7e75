"""Watermarks of a query's streams, each by itself, across batches that are each a query of their own.

Spark keeps the watermark of each stream in a query's memory, and in its checkpoint that of the query alone. So a query
that begins anew takes a stream without rows in its batch for one that never had any, and the query's watermark, the
least of all, stands still: for ever, where streams have rows in different batches. An attempt tells each of them with
its state, and the next one goes on from there, by the rule of Spark's ``WatermarkTracker``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from airflow_provider_microbatch.runtime.query_plan import Query, below

POLICY = "spark.sql.streaming.multipleWatermarkPolicy"


@dataclass(frozen=True)
class Streams:
    """The streams of a plan that have a watermark.

    :param names: by Spark's ids of the watermarks, which are others in each query. With another delay it is another
        watermark: by the one of before, rows would be late that the new delay waits for.
    :param made: in the order of the plan, name and digests of how the stream's rows are made.
    """

    names: Mapping[str, str]
    made: Sequence[Sequence[str]]


def streams_of(query: Query, before: Sequence[Sequence[str]]) -> Streams:
    """The streams, by names that stay the same from batch to batch: the sources that lie below, the column and the
    delay; where several have these, a turn, which is that of before of the one whose rows are made alike.

    :param before: what :attr:`Streams.made` was in the batch before.
    """
    alike = dict[str, dict[str, list[str]]]()
    for node in query.nodes:
        if node.getClass().getSimpleName() == "EventTimeWatermark":
            name = f"{_together(query.sources(node))}: {node.eventTime().name()} - {node.delay().toString()}"
            alike.setdefault(name, {}).setdefault(node.nodeId().toString(), query.digests(node))
    names, made = dict[str, str](), list[Sequence[str]]()
    for name, now in alike.items():
        were = {turn: was for turn, *was in before if turn == name or turn.startswith(f"{name}#")}
        names |= turns_of(name, were, now)
        made += ((names[id], *digests) for id, digests in now.items())
    return Streams(names=names, made=made)


def turns_of(name: str, were: Mapping[str, Sequence[str]], now: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """The turns of streams that have a name in common, by their ids.

    :param were: by turn, in the order of the plan, the digests of the batch before.
    :param now: by id, in the order of the plan, the digests of this one.
    """
    turns, left = dict[str, str](), dict(were)
    for level in range(min(len(digests) for digests in [*were.values(), *now.values()])):
        for id in (id for id in now if id not in turns):
            known = next((turn for turn, was in left.items() if was[level] == now[id][level]), None)
            if known is not None:
                turns[id] = known
                del left[known]
    if not turns and len(left) == len(now):
        return dict(zip(now, left, strict=True))  # a transform may write something else into all, in each batch
    # One that nobody knows goes on from no other's watermark: its rows would be late by it.
    return turns | dict(zip((id for id in now if id not in turns), _new(name, were), strict=False))


def _new(name: str, were: Collection[str]) -> Iterator[str]:
    return (turn for turn in _turns(name) if turn not in were)


def _turns(name: str) -> Iterator[str]:
    yield name
    yield from (f"{name}#{turn}" for turn in count(2))


def renamed(name: str, of: Callable[[str], str]) -> str:
    """The name of a stream, with its sources' names of now.

    :param of: tells the name of now of a source that had another.
    """
    sources, colon, rest = name.partition(": ")
    return _together(sorted(map(of, sources.split("+")))) + colon + rest


def _together(sources: Iterable[str]) -> str:
    return "+".join(sources)


def moved_on(before: Mapping[str, int], names: Mapping[str, str], executed: Any) -> dict[str, int]:
    """The watermarks after a batch, milliseconds since the epoch, without those of streams that never had a row.

    :param before: those before it.
    :param executed: Spark's plan of the batch as it was executed.
    """
    found = {name: before[name] for name in names.values() if name in before}
    for node, latest in latest_events(executed):
        name = names.get(node.nodeId().toString())
        if name is not None:
            at = latest - int(node.delayMs())
            found[name] = max(at, found.get(name, at))
    return found


def latest_events(executed: Any) -> Iterator[tuple[Any, int]]:
    """The nodes of a plan that had rows for a watermark, each with their greatest time, milliseconds since the epoch.

    :param executed: Spark's plan of the batch as it was executed.
    """
    for node in below(executed):
        if node.getClass().getSimpleName() == "EventTimeWatermarkExec":
            seen = node.eventTimeStats().value()
            if seen.count() > 0:
                yield node, int(seen.max())


def of_query(own: int, found: Mapping[str, int], names: Mapping[str, str], *, policy: str) -> int:
    """The query's watermark by those of its streams, milliseconds since the epoch; it never goes back.

    :param own: what Spark has for the query's watermark, by this batch alone.
    :param policy: Spark's setting of that name, ``min`` or ``max``.
    """
    values = found.values()
    if policy == "max":
        return max([own, *values])
    return own if len(values) < len({*names.values()}) or not values else max(own, min(values))
