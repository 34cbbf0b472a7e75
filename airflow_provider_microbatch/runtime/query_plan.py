"""Spark's plan of a streaming query, in the driver's own JVM: which of its operators keep state, and which of the
batch's sources lie where in it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SOURCE = "microbatchsource"
"""Option of a stream that names its source in the query's plan."""

PROCESSOR = "TransformWithState"
"""What the names of nodes of ``transformWithState`` begin with, in each of its forms."""

_KEEPING = (
    "Aggregate",
    "Distinct",
    "Deduplicate",
    "DeduplicateWithinWatermark",
    "Join",
    "FlatMapGroupsWithState",
    "FlatMapGroupsInPandasWithState",
    "GlobalLimit",
)
"""Nodes that keep state, where all that they are made of is streams."""

_OF_ONE_QUERY = re.compile(
    r"#\d+L?|@[0-9a-f]+|/0x[0-9a-f]+|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|(?<=CTERelationRef )\d+"
)
"""Ids that are others in each query: of expressions, of objects in memory, of watermarks and of parts by name."""
_LEAF = re.compile(r"^(\W*)Streaming(?:Execution)?Relation.*$", re.MULTILINE)


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


def keeps_state(node: Any) -> bool:
    """Whether Spark keeps state of what has come so far, for the node."""
    kind, children = node.getClass().getSimpleName(), node.children()
    streams = [children.apply(number).isStreaming() for number in range(children.size())]
    # Beside the stream of a processor there is its initial state, which is none.
    return (kind in _KEEPING and all(streams)) or (kind.startswith(PROCESSOR) and any(streams))


def places_of(nodes: Sequence[Any]) -> list[list[list[Any]]]:
    """The operators that keep state, in an order of the plan: Spark knows each by its turn. Of each the sources of its
    rows and a digest of how they are made; of a join those of each side."""
    below = SourcesBelow(nodes)
    found = []
    for node in filter(keeps_state, nodes):
        parts = [node.left(), node.right()] if node.getClass().getSimpleName() == "Join" else [node]
        found.append([[below.of(part), digest_of(part)] for part in parts])
    return found


def digest_of(part: Any) -> str:
    """A digest of how rows of a part of the plan are made of its sources, without what one query alone has."""
    text = _LEAF.sub(r"\1source", part.treeString())
    return sha256(_OF_ONE_QUERY.sub("", text).encode()).hexdigest()[:16]
