"""The columns by which operators of a streaming query keep their state: Spark reads them by their places, and compares
nothing but types."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from hashlib import sha256
from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from airflow_provider_microbatch.runtime.query_plan import (
    IN_ORDER,
    PROCESSOR,
    below,
    each,
    keeps_state,
    source_of,
    without_numbers,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger(__name__)

_AS_THEY_ARE: Mapping[str, str] = MappingProxyType({})
_BETWEEN = "\x1f"
_ID = r"#(\d+)L?(?:-T\d+ms)?"
_COLUMN = re.compile(rf"[\w.$]*{_ID}")
"""A column in Spark's text: its id, with the name before it as far as that is a word."""
_LAST = re.compile(rf"{_ID}$")
_DEFINED = re.compile(rf"(.*) AS .*{_ID}", re.DOTALL)
_DIGITS = str.maketrans("0123456789", "ghijklmnop")
_LONGEST = 1000
"""Characters of a column's definition that are told as they are."""


def kept_columns(result: DataFrame, *, called: Mapping[str, str] = _AS_THEY_ARE) -> list[list[list[str]]] | None:
    """Of the operators that keep state, in the order of the plan: the columns by which they do so, in lists of those of
    which one may be taken for another. None where Spark cannot say: then no change of an order is seen.

    :param result: the frame that the transform made of the streams.
    :param called: names by which sources go in what is told, by the names that they have, where these are others.
    """
    try:
        planned = result._jdf.queryExecution()
        # As Spark runs it: a join keeps no column that nobody reads, and sums lie in the order in which they are shown.
        whole = planned.sparkSession().sessionState().optimizer().execute(planned.analyzed().clone())
        names = _Names(whole, called)
        return [names.kept_by(node) for node in below(whole) if keeps_state(node)]
    except Exception as error:  # any of Spark's rules: a batch is made without this look
        log.warning("By which columns state is kept cannot be told, nor whether they change their order: %s", error)
        return None


class _Names:
    """Names of columns that are the same in each query: by the columns of streams that they are made of. Names that
    Spark's optimizer gives, or a transform, say nothing.

    :param whole: the plan.
    :param called: see :func:`kept_columns`.
    """

    def __init__(self, whole: Any, called: Mapping[str, str]) -> None:
        self._known = dict[str, str]()
        self._made = dict[str, str]()
        self._beside = dict[str, list[str]]()
        """Of a union, which has the ids of its first branch, the columns of the others."""
        uses = Counter[str]()
        for node in below(whole):
            self._made |= _made_by(node)
            source = source_of(node)
            if source is not None:
                source = called.get(source, source)
                uses[source] += 1
                stream = source if uses[source] == 1 else f"{source} {uses[source]}"
                self._known |= {id: f"{name}~{stream}" for name, id in _named_in(node.output())}
            elif node.getClass().getSimpleName() == "Union":
                first, *others = (child.output() for child in each(node.children()))
                same = zip(*(_told(columns).split(_BETWEEN) for columns in others), strict=True)
                for (_, id), beside in zip(_named_in(first), same, strict=False):
                    self._beside.setdefault(id, []).extend(beside)

    def kept_by(self, node: Any) -> list[list[str]]:
        """The columns by which a node keeps its state."""
        kind = node.getClass().getSimpleName()
        if kind == "Join":
            left, right = node.left().output(), node.right().output()
            equal = list(self._equal_in(node))
            # Also by side: each one's rows lie by its own keys, with whichever of the other's they are compared.
            sides = [[one for one, _ in equal], [other for _, other in equal]]
            return [self._texts(left), self._texts(right), list(map(" = ".join, equal)), *sides]
        if kind == "Aggregate":
            made = dict[str, Any]()
            for one in chain.from_iterable(map(_aggregates_in, each(node.aggregateExpressions()))):
                made.setdefault(str(one.canonicalized()), one)  # those that say the same are one for Spark
            return [self._texts(node.groupingExpressions()), _once(map(self._text, made.values()))]
        if kind.startswith("Deduplicate"):
            keys = self._texts(node.keys())
            # As one, whose own order says nothing: it is told apart from those of other operators all the same.
            return [keys if len(keys) <= IN_ORDER else [", ".join(sorted(keys))]]
        if kind.startswith(PROCESSOR) and kind.endswith(("InPySpark", "InPandas")):
            return [self._texts(node.leftAttributes())]
        return [self._texts(node.groupingAttributes())] if kind.startswith((PROCESSOR, "FlatMapGroups")) else []

    def _texts(self, expressions: Any) -> list[str]:
        return _once(map(self._named, _told(expressions).split(_BETWEEN)))

    def _text(self, expression: Any) -> str:
        return self._named(expression.toString())

    def _named(self, text: str) -> str:
        return _COLUMN.sub(lambda column: self._origin(column[0].partition("#")[0], column[1]), text)

    def _origin(self, name: str, id: str) -> str:
        beside, made = self._beside.pop(id, None), self._made.pop(id, None)
        if beside is None and made is None:
            return self._known.get(id, name)
        told = self._known.get(id, name) if made is None else self._named(made)
        if beside is not None:
            # Whichever branch comes first: rows of each are kept by the same columns.
            told = f"union({'|'.join(sorted({told, *map(self._named, beside)}))})"
        # Kept, since a column may be made of others many times over.
        self._known[id] = told if len(told) <= _LONGEST else _shortened(told)
        return self._known[id]

    def _equal_in(self, join: Any) -> Iterator[tuple[str, str]]:
        """What a join's condition says to be equal: the keys of the left side and of the right one, in their order."""
        left, right = join.left().outputSet(), join.right().outputSet()
        for one in _all_of(join.condition().get() if join.condition().isDefined() else None):
            if one.getClass().getSimpleName() in ("EqualTo", "EqualNullSafe"):
                sides = [one.left(), one.right()]
                if any(side.foldable() for side in sides):
                    continue
                if not sides[0].references().subsetOf(left):
                    sides.reverse()
                # What takes columns of both sides is looked at when a row is found, and is no key.
                if sides[0].references().subsetOf(left) and sides[1].references().subsetOf(right):
                    yield self._text(sides[0]), self._text(sides[1])


def _made_by(node: Any) -> Iterator[tuple[str, str]]:
    """Ids of the columns that a node makes, and Spark's text of what it makes them of."""
    kind = node.getClass().getSimpleName()
    if kind in ("Project", "Aggregate"):
        defined = _told(node.projectList() if kind == "Project" else node.aggregateExpressions())
        yield from ((one[2], one[1]) for one in map(_DEFINED.fullmatch, defined.split(_BETWEEN)) if one is not None)
    elif kind == "Generate":
        for turn, (_, id) in enumerate(_named_in(node.generatorOutput())):
            yield id, f"{node.generator().toString()} at {turn}"
    elif kind == "Expand":
        passed = {id for _, id in _named_in(node.child().output())}
        rows = (_told(row).split(_BETWEEN) for row in each(node.projections()))
        for (_, id), *column in zip(_named_in(node.output()), *rows, strict=True):
            if id not in passed:
                # By each set of columns to group by the same, or null.
                yield id, f"one of {'|'.join(one for one in dict.fromkeys(column) if one != 'null')}"
    elif kind.endswith("EvalPython"):
        ids = (id for _, id in _named_in(node.resultAttrs()))
        yield from zip(ids, _told(node.udfs()).split(_BETWEEN), strict=False)


def _all_of(condition: Any) -> Iterator[Any]:
    if condition is None:
        return
    if condition.getClass().getSimpleName() == "And":
        yield from _all_of(condition.left())
        yield from _all_of(condition.right())
    else:
        yield condition


def _aggregates_in(expression: Any) -> Iterator[Any]:
    if expression.getClass().getSimpleName() in ("AggregateExpression", "PythonUDAF"):
        yield expression
        return
    for child in each(expression.children()):
        yield from _aggregates_in(child)


def _shortened(told: str) -> str:
    """Digits by all of it, and letters by what stays without its numbers: so do the letters."""
    whole, bare = (sha256(text.encode()).hexdigest() for text in (told, without_numbers(told)))
    return f"{int(whole, 16)}{bare.translate(_DIGITS)}"


def _once(texts: Iterator[str]) -> list[str]:
    return list(dict.fromkeys(texts))


def _told(expressions: Any) -> str:
    return str(expressions.mkString(_BETWEEN))


def _named_in(columns: Any) -> Iterator[tuple[str, str]]:
    """Name and id of each."""
    for column in _told(columns).split(_BETWEEN):
        last = _LAST.search(column)
        if last is not None:
            yield column[: last.start()], last[1]
