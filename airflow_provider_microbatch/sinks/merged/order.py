"""Which of the changes of a key is the newest: by the changes alone, whenever and in which batch they came."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from airflow_provider_microbatch.runtime.changes import DELETED
from airflow_provider_microbatch.sinks.file.arguments import RESERVED_COLUMNS
from airflow_provider_microbatch.sinks.merge import Merge
from airflow_provider_microbatch.sinks.placed.arrow_types import values_of


def newest(changes: Any, merge: Merge) -> Any:
    """The newest change of each key; where each version of a key is a row, of each key and place in the sequence. Of
    changes that are the same in all columns it is the first.

    :param changes: an Arrow table without nulls in the columns that order.
    """
    import pyarrow.compute as pc

    ranked = list(dict.fromkeys((*merge.keys, *merge.sequence_by, DELETED)))
    order = pc.sort_indices(changes, sort_keys=[(name, "ascending") for name in ranked])
    if len(order) < 2:
        return changes
    ordered = changes.select(ranked).take(order).combine_chunks()
    same_key, same_rank = (is_like_next(ordered, names) for names in (merge.distinct_by, ranked))
    places, ranks = order.to_pylist(), same_rank.to_pylist()
    chosen, tied = list[int](), list[list[int]]()
    for at, goes_on in enumerate([*same_key.to_pylist(), False]):
        if goes_on:
            continue
        first = at
        while first and ranks[first - 1]:
            first -= 1
        if first == at:
            chosen.append(places[at])
        else:
            tied.append(sorted(places[first : at + 1]))
    chosen += _by_text(changes, tied)
    return changes.take(sorted(chosen))


def is_like_next(ordered: Any, names: Sequence[str]) -> Any:
    """For each row but the last one whether it has the same values as the next one."""
    import pyarrow.compute as pc

    found = None
    for name in names:
        column = ordered.column(name)
        same = pc.equal(column.slice(0, len(column) - 1), column.slice(1))
        found = same if found is None else pc.and_(found, same)
    return found


def _by_text(changes: Any, tied: Sequence[Sequence[int]]) -> Iterator[int]:
    """Of each group of places the one whose change has the text that sorts last."""
    if not tied:
        return
    rest = sorted(name for name in changes.column_names if name not in (*RESERVED_COLUMNS, DELETED))
    rows = iter(values_of(changes.select(rest).take([place for group in tied for place in group])))
    for group in tied:
        texts = [text_of(next(rows)) for _ in group]
        yield group[texts.index(max(texts))]


def text_of(row: Mapping[str, Any]) -> str:
    """By this changes are told apart that the sequence does not tell apart."""
    # Behind each value the same sign, also behind the last: else one more column, null in both, could turn them around.
    return json.dumps([*row.values(), None], ensure_ascii=False, default=str)
