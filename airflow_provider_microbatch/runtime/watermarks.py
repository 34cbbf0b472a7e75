"""Watermarks of a query's streams, each by itself, across batches that are each a query of their own.

Spark keeps the watermark of each stream in a query's memory, and in its checkpoint that of the query alone. So a query
that begins anew takes a stream without rows in its batch for one that never had any, and the query's watermark, the
least of all, stands still: for ever, where streams have rows in different batches. An attempt tells each of them with
its state, and the next one goes on from there, by the rule of Spark's ``WatermarkTracker``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from airflow_provider_microbatch.runtime.query_plan import SourcesBelow, digest_of

POLICY = "spark.sql.streaming.multipleWatermarkPolicy"


def names_of(nodes: Sequence[Any]) -> dict[str, str]:
    """Names of the watermarks of a plan, by Spark's ids of them, which are others in each query: the sources that lie
    below, the column and the delay, and, where several have these, how their rows are made. So the order in which the
    transform names them does not count. With another delay it is another watermark: by the one of before, rows would be
    late that the new delay waits for.

    :param nodes: of Spark's analyzed plan.
    """
    found, made, sources = dict[str, str](), dict[str, str](), SourcesBelow(nodes)
    for node in nodes:
        if node.getClass().getSimpleName() == "EventTimeWatermark":
            name = f"{_together(sources.of(node))}: {node.eventTime().name()} - {node.delay().toString()}"
            found.setdefault(node.nodeId().toString(), name)
            made.setdefault(node.nodeId().toString(), digest_of(node))
    alike = Counter(found.values())
    # Streams that are made alike too have each other's rows: whichever is which is all one.
    told = {id: f"{name} ({made[id]})" if alike[name] > 1 else name for id, name in found.items()}
    return {id: _distinct(name, at, list(told.values())) for at, (id, name) in enumerate(told.items())}


def renamed(before: Mapping[str, int], of: Callable[[str], str]) -> dict[str, int]:
    """The watermarks of before, with their sources' names of now.

    :param of: tells the name of now of a source that had another.
    """
    parts = ((name.partition(": "), at) for name, at in before.items())
    return {_together(sorted(map(of, names.split("+")))) + colon + rest: at for (names, colon, rest), at in parts}


def _together(sources: Iterable[str]) -> str:
    return "+".join(sources)


def _distinct(name: str, at: int, names: list[str]) -> str:
    before = names[:at].count(name)
    return f"{name}#{before + 1}" if before else name


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
    children = plan.children()
    for number in range(children.size()):
        yield from _below(children.apply(number))
