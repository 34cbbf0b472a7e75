"""The versions of each key: a function of its changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow_provider_microbatch.runtime.changes import DELETED
from airflow_provider_microbatch.sinks.file.arguments import RESERVED_COLUMNS
from airflow_provider_microbatch.sinks.merge import Merge
from airflow_provider_microbatch.sinks.merged.order import is_like_next, text_of
from airflow_provider_microbatch.sinks.placed.arrow_types import in_numbers


def versions(changes: Any, merge: Merge, names: Sequence[str]) -> Any:
    """The rows of all versions, each with the columns of the change that began it, and its bounds.

    :param changes: an Arrow table of all changes of their keys, one at most for each key and place in the sequence.
    :param names: the columns of the table. A change that alters none of them begins no version.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    order = pc.sort_indices(changes, sort_keys=[(name, "ascending") for name in merge.distinct_by])
    ordered = changes.take(order).combine_chunks()
    aside = (*merge.keys, *merge.bounds, *RESERVED_COLUMNS)
    told = ordered.select([name for name in ordered.column_names if name in names and name not in aside])
    rows = in_numbers(told).to_pylist()
    # What readers see of a change: nothing of a deletion.
    states = [
        None if is_deleted else text_of(row)
        for row, is_deleted in zip(rows, ordered.column(DELETED).to_pylist(), strict=True)
    ]
    goes_on = [False, *(is_like_next(ordered, merge.keys).to_pylist() if len(rows) > 1 else [])]
    starts, ends = list[int](), list[int | None]()
    held: str | None = None
    for at, state in enumerate(states):
        held = held if goes_on[at] else None
        if state == held:
            continue
        if held is not None:
            ends[-1] = at
        if state is not None:
            starts.append(at)
            ends.append(None)
        held = state
    sequence = ordered.column(merge.sequence_by[0])
    made = ordered.take(pa.array(starts, pa.int64()))
    for name, places in zip(merge.bounds, (starts, ends), strict=True):
        made = made.append_column(name, sequence.take(pa.array(places, pa.int64())))
    return made
