"""Spark's plan of a streaming query, in the driver's own JVM: which of its operators keep state, and which of the
batch's sources lie where in it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
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
    r"|(?<=CTERelationDef )\d+"
)
"""Ids that are others in each query: of expressions, of objects in memory, of watermarks and of parts by name."""
_NUMBER = re.compile(r"-?\d+")
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


class Query:
    """A query, with the parts that its transform names (``WITH``) in the places where it names them, as Spark runs it.

    :param nodes: of the analyzed plan, the whole first.
    """

    def __init__(self, nodes: Sequence[Any]) -> None:
        self._whole = nodes[0]
        parts = (node for node in nodes if node.getClass().getSimpleName() == "CTERelationDef")
        self._named = {part.id(): part.child() for part in parts}

    def places(self) -> list[list[list[Any]]]:
        """The operators that keep state, in an order of the plan: Spark knows each by its turn. Of each operator, or of
        each side of a join: the sources of its rows, a digest of how they are made, and one in which no number counts,
        since a transform may name the batch's own."""
        found = []
        for node in filter(keeps_state, self._walk(self._whole)):
            parts = [node.left(), node.right()] if node.getClass().getSimpleName() == "Join" else [node]
            texts = ((part, self._text(part)) for part in parts)
            found.append([[self.sources(part), _digest(text), _digest(_NUMBER.sub("", text))] for part, text in texts])
        return found

    def sources(self, node: Any) -> list[str]:
        """The sources that rows of a node are made of, in the order of their names."""
        return sorted(set(filter(None, map(source_of, self._leaves(node)))))

    def digest(self, node: Any) -> str:
        """A digest of how rows of a node are made of its sources, without what one query alone has."""
        return _digest(self._text(node))

    def _walk(self, node: Any) -> Iterator[Any]:
        kind = node.getClass().getSimpleName()
        if kind == "WithCTE":
            yield from self._walk(node.plan())
        elif kind == "CTERelationRef":
            yield from self._walk(self._named[node.cteId()])
        else:
            yield node
            children = node.children()
            for number in range(children.size()):
                yield from self._walk(children.apply(number))

    def _leaves(self, node: Any) -> Iterator[Any]:
        leaves = node.collectLeaves()
        for leaf in (leaves.apply(number) for number in range(leaves.size())):
            if leaf.getClass().getSimpleName() == "CTERelationRef":
                yield from self._leaves(self._named[leaf.cteId()])
            else:
                yield leaf

    def _text(self, node: Any) -> str:
        text = _OF_ONE_QUERY.sub("", _LEAF.sub(r"\1source", node.treeString()))
        leaves = node.collectLeaves()
        refs = (leaf for leaf in (leaves.apply(number) for number in range(leaves.size())))
        named = [self._named[one.cteId()] for one in refs if one.getClass().getSimpleName() == "CTERelationRef"]
        return "\n".join([text, *map(self._text, named)])


def keeps_state(node: Any) -> bool:
    """Whether Spark keeps state of what has come so far, for the node."""
    kind, children = node.getClass().getSimpleName(), node.children()
    streams = [children.apply(number).isStreaming() for number in range(children.size())]
    # Beside the stream of a processor there is its initial state, which is none.
    return (kind in _KEEPING and all(streams)) or (kind.startswith(PROCESSOR) and any(streams))


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:16]
