"""Spark's plan of a streaming query, in the driver's own JVM: which of the batch's sources lie where in it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SOURCE = "microbatchsource"
"""Option of a stream that names its source in the query's plan."""


def nodes_of(result: DataFrame) -> Iterator[Any]:
    """The nodes of the analyzed plan."""
    left = [result._jdf.queryExecution().analyzed()]
    while left:
        node = left.pop()
        yield node
        children = node.children()
        left += [children.apply(number) for number in range(children.size())]


def source_of(leaf: Any) -> str | None:
    """The source that a leaf streams from; None if it is none of the batch's."""
    kind = leaf.getClass().getSimpleName()
    if not kind.startswith("StreamingRelation"):
        return None
    name = (leaf.dataSource().options() if kind == "StreamingRelation" else leaf.extraOptions()).get(SOURCE)
    if hasattr(name, "getOrElse"):  # an option of Scala's map
        name = name.get() if name.isDefined() else None
    return None if name is None else str(name)


def sources_below(node: Any) -> list[str]:
    """The sources that a node's rows are made of, in the order of their names."""
    leaves = node.collectLeaves()
    return sorted({name for number in range(leaves.size()) if (name := source_of(leaves.apply(number))) is not None})


def sides_of(nodes: Iterable[Any]) -> list[list[list[str]]]:
    """The sources on the left and on the right of each join of two streams."""
    joins = (node for node in nodes if node.getClass().getSimpleName() == "Join")
    return [
        [sources_below(node.left()), sources_below(node.right())]
        for node in joins
        if node.left().isStreaming() and node.right().isStreaming()
    ]
