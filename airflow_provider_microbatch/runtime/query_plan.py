"""Spark's plan of a streaming query, in the driver's own JVM: which of the batch's sources lie where in it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
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


class SourcesBelow:
    """The sources that rows of a node are made of, also where the transform names a part of it (``WITH``).

    :param nodes: of the analyzed plan.
    """

    def __init__(self, nodes: Iterable[Any]) -> None:
        self._named = {node.id(): node for node in nodes if node.getClass().getSimpleName() == "CTERelationDef"}

    def of(self, node: Any) -> list[str]:
        """In the order of their names."""
        return sorted(set(self._of(node)))

    def _of(self, node: Any) -> Iterator[str]:
        leaves = node.collectLeaves()
        for leaf in (leaves.apply(number) for number in range(leaves.size())):
            if leaf.getClass().getSimpleName() == "CTERelationRef":
                yield from self._of(self._named[leaf.cteId()])
            elif (name := source_of(leaf)) is not None:
                yield name


def sides_of(nodes: Sequence[Any]) -> list[list[list[str]]]:
    """The sources on the left and on the right of each join of two streams."""
    below = SourcesBelow(nodes)
    joins = (node for node in nodes if node.getClass().getSimpleName() == "Join")
    return [
        [below.of(node.left()), below.of(node.right())]
        for node in joins
        if node.left().isStreaming() and node.right().isStreaming()
    ]
