"""Positions in topics, and their text: Spark's own, byte for byte, so that a streaming query goes on from it.

``{"orders":{"0":23,"1":7}}``: the next offset to be read, by topic and partition. Spark puts it together in hash maps
of Scala 2.13 (``JsonUtils.partitionOffsets``), so the order of its keys is that of these: by hash, not by name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TypeVar

from airflow_provider_microbatch.checkpoint.entries import Offset
from airflow_provider_microbatch.exceptions import CorruptEntryError

Partition = tuple[str, int]
"""Topic and number."""

Position = Mapping[Partition, int]
"""By partition the next offset to be read."""

K = TypeVar("K")

_CAPACITY, _LOAD = 16, 0.75


def render(position: Position) -> Offset:
    """The text of a position."""
    by_topic: dict[str, dict[int, int]] = {}
    puts: list[str] = []
    for topic, number in sorted(position):
        by_topic.setdefault(topic, {})[number] = position[topic, number]
        puts.append(topic)
    topics = _in_scala_order(puts, {topic: _string_hash(topic) for topic in by_topic})
    parts = {topic: _in_scala_order(list(by_topic[topic]), {one: one for one in by_topic[topic]}) for topic in topics}
    ordered = {topic: {str(number): by_topic[topic][number] for number in parts[topic]} for topic in topics}
    return json.dumps(ordered, separators=(",", ":"), ensure_ascii=False)


def parse(offset: Offset, *, where: str) -> dict[Partition, int]:
    """The position of a text.

    :param where: what has the text, for messages.
    :raises CorruptEntryError: if it is no position.
    """
    try:
        found = {
            (topic, int(number)): value
            for topic, partitions in json.loads(offset).items()
            for number, value in partitions.items()
        }
    except (ValueError, AttributeError, TypeError):
        found = None
    if found is None or any(type(at) is not int or at < 0 or number < 0 for (_, number), at in found.items()):
        raise CorruptEntryError(
            f'{where}: {offset!r:.300} is no position in topics. One looks like {{"orders":{{"0":23,"1":7}}}}: the '
            "next offset to be read, by topic and partition."
        )
    return found


def named(partition: Partition) -> str:
    """As Kafka's own tools call it: ``orders-3``."""
    return f"{partition[0]}-{partition[1]}"


def _in_scala_order(puts: Sequence[K], hashes: Mapping[K, int]) -> list[K]:
    """The keys as a ``scala.collection.mutable.HashMap`` gives them back into which they were put one by one."""
    size = _CAPACITY
    held: set[K] = set()
    for key in puts:
        if len(held) + 1 >= int(size * _LOAD):
            size *= 2
        held.add(key)
    improved = {key: _signed(value ^ ((value & 0xFFFFFFFF) >> 16)) for key, value in hashes.items()}
    # Its buckets in order, and each in the order of the hashes, which are signed.
    return sorted(dict.fromkeys(puts), key=lambda key: (improved[key] & (size - 1), improved[key]))


def _string_hash(text: str) -> int:
    """Java's ``String.hashCode``."""
    value = 0
    for unit in memoryview(text.encode("utf-16-le")).cast("H"):
        value = (31 * value + unit) & 0xFFFFFFFF
    return _signed(value)


def _signed(value: int) -> int:
    value &= 0xFFFFFFFF
    return value - 0x100000000 if value >= 0x80000000 else value
