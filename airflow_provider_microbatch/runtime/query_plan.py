"""Spark's plan of a streaming query, in the driver's own JVM: which of its operators keep state, and which of the
batch's sources lie where in it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from itertools import chain
from typing import TYPE_CHECKING, Any

from airflow_provider_microbatch.runtime.python_functions import told

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SOURCE = "microbatchsource"
"""Option of a stream that names its source in the query's plan."""

PROCESSOR = "TransformWithState"
"""What the names of nodes of ``transformWithState`` begin with, in each of its forms."""

IN_ORDER = 4
"""More columns of a deduplication are in another order in each version of Spark, whichever they are given in."""

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
    r"(?<=[^\s(,\[])#\d+L?|(?<=\w)@[0-9a-f]{5,8}\b|/0x[0-9a-f]+|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
    r"|(?<=CTERelationRef )\d+|(?<=CTERelationDef )\d+"
)
"""Ids that are others in each query: of expressions, of objects in memory, of watermarks and of parts by name. An id
stands behind a name; a text that a transform compares with may look so too, and is then told without its end."""
_ALIAS = re.compile(r"^\W*SubqueryAlias .*\n", re.MULTILINE)
_BRANCH = re.compile(r"^[ :+-]+", re.MULTILINE)
_NUMBER = re.compile(r"-?\d+")
_MOST = "spark.sql.debug.maxToStringFields"
"""Columns of a node, and arguments and values of an expression, that Spark's text of it names: 25, unless it is set."""
_LEAF = re.compile(r"^(\W*)Streaming(?:Execution)?Relation.*$", re.MULTILINE)


def _nodes_of(result: DataFrame) -> Iterator[Any]:
    """The nodes of the analyzed plan, the whole first."""
    left = [result._jdf.queryExecution().analyzed()]
    while left:
        node = left.pop()
        yield node
        left += each(node.children())


def each(found: Any) -> Iterator[Any]:
    """The elements of a sequence of Scala's."""
    return map(found.apply, range(found.size()))


def below(plan: Any) -> Iterator[Any]:
    """The nodes of a plan, the whole first."""
    yield plan
    for child in each(plan.children()):
        yield from below(child)


def digest_of(text: str) -> str:
    """A text that is told to the next batch, which compares it and does not read it."""
    return sha256(text.encode()).hexdigest()[:16]


def without_numbers(text: str) -> str:
    """A text of Spark's, whatever a transform writes of the batch's own values into it, Spark of the time of day, or
    PySpark to number the variables of lambda functions."""
    return _NUMBER.sub("", text)


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

    :param result: the frame that the transform made of the streams.
    """

    def __init__(self, result: DataFrame) -> None:
        self.nodes: Sequence[Any] = list(_nodes_of(result))
        jvm: Any = result.sparkSession._jvm
        self._conf = jvm.org.apache.spark.sql.internal.SQLConf.get()  # Spark's texts are made by this one
        self._python = jvm.org.apache.spark.sql.catalyst.trees.TreePattern.PYTHON_UDF()
        self._told = dict[str, str]()
        parts = (node for node in self.nodes if node.getClass().getSimpleName() == "CTERelationDef")
        self._named = {part.id(): part.child() for part in parts}

    @contextmanager
    def told_in_full(self) -> Iterator[None]:
        """Digests and columns are asked for within: Spark's texts leave nothing out."""
        is_set, before = self._conf.contains(_MOST), str(self._conf.maxToStringFields())
        self._conf.setConfString(_MOST, str(2**31 - 1))
        try:
            yield
        finally:
            if is_set:
                self._conf.setConfString(_MOST, before)
            else:
                self._conf.unsetConf(_MOST)

    def places(self) -> list[list[list[Any]]]:
        """The operators that keep state, in an order of the plan: Spark knows each by its turn. Of each operator, or of
        each side of a join: the sources of its rows, and the digests of how they are made; see :meth:`digests`. In a
        chain each is made of those below it, and of others when they change places: so the last digest is of a
        processor's own code alone."""
        return [
            [
                [self.sources(part), *(digests := self.digests(part)), self._code_of(part) or digests[0]]
                for part in _parts_of(node)
            ]
            for node in self._walk(self.nodes[0])
            if keeps_state(node)
        ]

    def sources(self, node: Any) -> list[str]:
        """The sources that rows of a node are made of, in the order of their names."""
        return sorted(set(filter(None, map(source_of, self._leaves(node)))))

    def digests(self, node: Any) -> list[str]:
        """Digests of how rows of a node are made of its sources: of all; of what is there without names that may stand
        for a side, and not for what is in it; without numbers and functions, of which a transform may write the batch's
        own; and without all of these."""
        whole = self._text(node)
        bare = _BRANCH.sub("", _ALIAS.sub("", whole))
        functions = "\n".join(["", *self._functions(node)])
        texts = (whole + functions, bare + functions, without_numbers(whole), without_numbers(bare))
        return list(map(digest_of, texts))

    def _walk(self, node: Any) -> Iterator[Any]:
        part = node.plan() if node.getClass().getSimpleName() == "WithCTE" else self._part(node)
        if part is not None:
            yield from self._walk(part)
        else:
            yield node
            for child in each(node.children()):
                yield from self._walk(child)

    def _leaves(self, node: Any) -> Iterator[Any]:
        for leaf in each(node.collectLeaves()):
            part = self._part(leaf)
            yield from (leaf,) if part is None else self._leaves(part)

    def _text(self, node: Any) -> str:
        text = _OF_ONE_QUERY.sub("", _LEAF.sub(r"\1source", node.treeString()))
        leaves = list(each(node.collectLeaves()))
        named = (part for part in map(self._part, leaves) if part is not None)
        return "\n".join([text, *filter(None, map(_folders_of, leaves)), *map(self._text, named)])

    def _code_of(self, node: Any) -> str:
        """A digest of the code of a processor; empty for any other node."""
        if not is_processor(node):
            return ""
        return digest_of("\n".join(chain.from_iterable(map(self._functions_in, each(node.expressions())))))

    def _functions(self, node: Any) -> Iterator[str]:
        """Digests of the Python functions by which rows of a node are made, in the order of the plan."""
        for below in self._walk(node) if self.nodes[0].containsPattern(self._python) else ():
            for expression in each(below.expressions()):
                yield from self._functions_in(expression)

    def _functions_in(self, expression: Any) -> Iterator[str]:
        if not expression.containsPattern(self._python):
            return
        if expression.getClass().getSimpleName() in ("PythonUDF", "PythonUDAF"):
            command = expression.func().command()
            id = f"{command.length()} {command.hashCode()}"  # a function may be in many places, and large
            if id not in self._told:
                numbers = str(command.mkString(",")).split(",")
                self._told[id] = told(bytes(int(number) % 256 for number in numbers))
            yield self._told[id]
        for child in each(expression.children()):
            yield from self._functions_in(child)

    def _part(self, node: Any) -> Any:
        """The part of the query that a node stands for by its name; None if it stands for itself."""
        return self._named[node.cteId()] if node.getClass().getSimpleName() == "CTERelationRef" else None


def is_processor(node: Any) -> bool:
    """Whether the node is one of ``transformWithState``, in any of its forms."""
    return bool(node.getClass().getSimpleName().startswith(PROCESSOR))


def _parts_of(node: Any) -> list[Any]:
    return [node.left(), node.right()] if node.getClass().getSimpleName() == "Join" else [node]


def keeps_state(node: Any) -> bool:
    """Whether Spark keeps state of what has come so far, for the node."""
    kind, streams = node.getClass().getSimpleName(), [child.isStreaming() for child in each(node.children())]
    # Beside the stream of a processor there is its initial state, which is none.
    return (kind in _KEEPING and all(streams)) or (kind.startswith(PROCESSOR) and any(streams))


def _folders_of(leaf: Any) -> str:
    """Where the files lie that are read beside the streams, of which Spark's text names the columns alone."""
    if leaf.getClass().getSimpleName() != "LogicalRelation":
        return ""
    relation = leaf.relation()
    is_of_files = relation.getClass().getSimpleName() == "HadoopFsRelation"
    return str(relation.location().rootPaths().mkString("\n")) if is_of_files else ""
