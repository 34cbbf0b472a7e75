"""Whose rows a table may not have without a record of their batches when a batch comes in, and what is told of them."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from airflow_provider_microbatch.checkpoint.key import BatchKey, is_lane, is_name, is_whole
from airflow_provider_microbatch.sinks import ExpectedBatch
from airflow_provider_microbatch.sinks.file.arguments import RESERVED_COLUMNS

_NAMED = 20
"""How many batches, and how many lanes, are named at most."""


@dataclass(frozen=True)
class Asked:
    """The batches that are asked for.

    :param key: one of them.
    :param others: of a batch, whether it is one of the others; None: there are none. With a batch all later ones of its
        lane are.
    :param back: more of them, one by one: those of which rows may be there again.
    :param passed: what was gone through and has no rows of them, by its path: nobody changes a file. Gone through again
        at each try of a commit, others would commit meanwhile, for good.
    """

    key: BatchKey
    others: Callable[[BatchKey], bool] | None = None
    back: frozenset[BatchKey] = frozenset()
    passed: set[str] = field(default_factory=set)

    @property
    def only(self) -> BatchKey | None:
        """The batch, if no other is asked for."""
        return self.key if self.others is None and not self.back else None

    def may_be_in(self, lanes: tuple[Any, Any], ids: tuple[Any, Any]) -> bool:
        """Whether a file may have rows of them, by the least and the greatest value of either column in it; None: not
        known. Bounds of a text may be cut short: only where both are one, they are the lane's whole name."""
        (lane, other), (low, high) = lanes, ids
        if not is_name(lane) or lane != other or not is_whole(low) or not is_whole(high) or high < 0:
            return True
        ids_of_lane = self._ids.get(lane, ())
        at = bisect_left(ids_of_lane, low)
        named = at < len(ids_of_lane) and ids_of_lane[at] <= high
        return named or self.is_other(BatchKey(lane, high))

    @cached_property
    def _ids(self) -> Mapping[str, Sequence[int]]:
        """Of each lane those that are named one by one, ascending: each file asks, and they may be all of a table's."""
        found = defaultdict[str, list[int]](list)
        for one in (self.key, *self.back):
            found[one.lane].append(one.id)
        return {lane: sorted(ids) for lane, ids in found.items()}

    def of(self, rows: Mapping[BatchKey, int]) -> dict[BatchKey, int]:
        """The rows of those that are asked for."""
        return {key: count for key, count in rows.items() if key == self.key or key in self.back or self.is_other(key)}

    def is_other(self, key: BatchKey) -> bool:
        """Whether the batch, and all later ones of its lane, are asked for."""
        return self.others is not None and self.others(key)

    def are_between(self, low: BatchKey, high: BatchKey) -> bool:
        """Whether all batches between two of a lane are asked for."""
        return self.is_other(low) or all(BatchKey(low.lane, id) in self.back for id in range(low.id + 1, high.id))


def asked_by(
    batch: ExpectedBatch,
    epoch: int,
    *,
    is_in: Callable[[BatchKey], bool],
    has_any: Callable[[], bool],
    back: frozenset[BatchKey] = frozenset(),
) -> Asked | None:
    """What an attempt asks for before its batch comes in; None for nothing.

    Before a table's first batch, no row may be of a batch that the checkpoint has yet to make: a copy has those of
    batches that a checkpoint which begins anew makes again, each of them later for the first time. Behind that, only an
    attempt that is not the first asks, for rows of its batch that somebody has put in by hand: to ask of each new
    batch, all files would be gone through.

    Batches that were taken out do not count: where all were, rows that somebody has copied there would not be looked
    for, and each of their batches would come beside them.

    :param is_in: whether the table has a batch.
    :param has_any: whether it has any, for which all of its record may have to be read.
    :param back: batches that were taken out, and of which it may have rows again since somebody has put it back to what
        it was before: asked for by each attempt, whatever the checkpoint has committed under their numbers since.
    """
    own = batch.key
    likely = (BatchKey(own.lane, id) for id in (own.id - 1, own.id) if id >= 0)

    def is_yet_to_come(key: BatchKey) -> bool:
        if key.lane == own.lane:
            return key.id >= own.id and not batch.is_past(key)
        # A lane that this checkpoint never had may be another pipeline's, whose rows are in the table too.
        return is_lane(key.lane) and batch.is_past(BatchKey(key.lane, 0)) and not batch.is_past(key)

    if not any(map(is_in, likely)) and not has_any():
        return Asked(own, is_yet_to_come, back)
    return None if epoch == 1 and not back else Asked(own, back=back)


def without_record(asked: Asked, found: Mapping[BatchKey, int], *, where: str, log: str, table: str) -> str:
    """That a table has rows of batches of which its log has no record, with the ways on: made again, they would be
    there twice.

    :param asked: what was asked for.
    :param found: the batches, with the number of the rows of each.
    :param where: the table.
    :param log: what has no record of them, with its verb.
    :param table: the table in a statement of SQL.
    """
    lane, number = RESERVED_COLUMNS
    keys, lanes = sorted(found), len({key.lane for key in found})
    which = f"batch {keys[0]}" if len(keys) == 1 else f"batches {', '.join(map(str, keys[:_NAMED]))}"
    more = f" There are rows of {lanes - _NAMED:,} more lanes: so it is with these." if lanes > _NAMED else ""
    return (
        f"{where} has {sum(found.values()):,} rows of {which}{' …' if len(keys) > _NAMED else ''}, and {log} no record "
        f"of {'it' if len(keys) == 1 else 'them'}: somebody has put them there (CREATE TABLE AS SELECT copies rows "
        "alone; a rollback to before a `rewind` brings back what that took out), maybe those of other batches, too, "
        "and made again they would be twice in the table. Lead the sink to the table that has the record; or take the "
        f"rows out (DELETE FROM {table} WHERE {_condition(asked, keys)}), then clear the task that was refused, if one "
        f"was.{more} Rows of another pipeline, which are to stay: have them be nobody's (UPDATE {table} SET {lane} = "
        f"NULL, {number} = NULL WHERE …); that pipeline would put them in beside that, if it made their batches again."
    )


def _condition(asked: Asked, keys: Sequence[BatchKey]) -> str:
    """The condition of the rows of the batches, and of none that is not asked for.

    :param keys: ascending.
    """
    lane, number = RESERVED_COLUMNS
    spans = defaultdict[tuple[int, int], list[str]](list)
    for name in list(dict.fromkeys(key.lane for key in keys))[:_NAMED]:
        for span in _spans(asked, [key for key in keys if key.lane == name]):
            spans[span].append(f"'{name}'")
    found = list[str]()
    # What comes in later than this was told is none of it.
    for (low, high), of in sorted(spans.items()):
        which = f"= {of[0]}" if len(of) == 1 else f"IN ({', '.join(of)})"
        ids = f"= {low}" if low == high else f"BETWEEN {low} AND {high}"
        found.append(f"{lane} {which} AND {number} {ids}")
    return found[0] if len(found) == 1 else " OR ".join(f"({one})" for one in found)


def _spans(asked: Asked, keys: Sequence[BatchKey]) -> Iterator[tuple[int, int]]:
    """First and last number of each run of these batches of a lane, with none between that is not asked for."""
    first = last = keys[0]
    for key in keys[1:]:
        if not asked.are_between(last, key):
            yield first.id, last.id
            first = key
        last = key
    yield first.id, last.id
