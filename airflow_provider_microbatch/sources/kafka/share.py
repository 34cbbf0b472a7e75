"""Shares a limit among partitions: in proportion to how far each is behind, as Spark's ``maxOffsetsPerTrigger``."""

from __future__ import annotations

import math
from collections.abc import Collection

from airflow_provider_microbatch.kafka.cluster import Partition, Position


def limited(start: Position, end: Position, most: int | None) -> dict[Partition, int]:
    """Return the end of a range of at most ``most`` offsets, at or before ``end``.

    A small partition is not starved by large ones: as in Spark, its share is at least one offset. Where these shares
    exceed the limit, Spark goes beyond the limit; here the largest shares are reduced. If there are more partitions
    than offsets in the limit, the next ones in turn get one each: were it the farthest behind, one that gets little
    would never be read beside busy ones.

    :param start: has all partitions of ``end``.
    :param most: None for no limit.
    """
    behind = {one: offset - start[one] for one, offset in end.items() if offset > start[one]}
    total = sum(behind.values())
    if most is None or total <= most:
        return dict(end)
    if len(behind) > most:
        taken = _in_turn(behind, start)[:most]
        return {one: start[one] + (one in taken) for one in end}
    shares = {one: _share(size, most, total) for one, size in behind.items()}
    over = sum(shares.values()) - most
    for one in sorted(shares, key=lambda one: -shares[one]):
        spared = max(0, min(over, shares[one] - 1))
        shares[one] -= spared
        over -= spared
    return {one: start[one] + shares.get(one, 0) for one in end}


def _in_turn(behind: Collection[Partition], start: Position) -> list[Partition]:
    """The partitions, beginning at the one whose turn it is. The turn is told by the position alone, so that a plan
    that is made again is the same: each offset that is read moves the turn by one partition."""
    everything = sorted(start)
    turn = sum(start.values()) % len(everything)
    return [one for one in everything[turn:] + everything[:turn] if one in behind]


def _share(size: int, most: int, total: int) -> int:
    exact = size * most / total
    return min(size, math.ceil(exact) if exact < 1 else math.floor(exact))
