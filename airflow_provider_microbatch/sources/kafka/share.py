"""Shares a limit among partitions: in proportion to how far each is behind, as Spark's ``maxOffsetsPerTrigger``."""

from __future__ import annotations

import math

from airflow_provider_microbatch.kafka.cluster import Partition, Position


def limited(start: Position, end: Position, most: int | None) -> dict[Partition, int]:
    """Return the end of a range of at most ``most`` offsets, at or before ``end``.

    A small partition is not starved by large ones: as in Spark, its share is at least one offset. Where these shares
    exceed the limit, Spark goes beyond the limit; here the largest shares are reduced. If there are more partitions
    than offsets in the limit, the partitions that are farthest behind get one each.

    :param start: has all partitions of ``end``.
    :param most: None for no limit.
    """
    behind = {one: offset - start[one] for one, offset in end.items() if offset > start[one]}
    total = sum(behind.values())
    if most is None or total <= most:
        return dict(end)
    shares = {one: _share(size, most, total) for one, size in behind.items()}
    over = sum(shares.values()) - most
    for kept, order in ((1, sorted(shares, key=lambda one: -shares[one])), (0, sorted(shares, key=behind.__getitem__))):
        for one in order:
            spared = max(0, min(over, shares[one] - kept))
            shares[one] -= spared
            over -= spared
    return {one: start[one] + shares.get(one, 0) for one in end}


def _share(size: int, most: int, total: int) -> int:
    exact = size * most / total
    return min(size, math.ceil(exact) if exact < 1 else math.floor(exact))
