"""Positions in topics, and their text: byte for byte the text of Spark, so that a streaming query can go on from it.

``{"orders":{"0":23,"1":7}}``: the next offset to be read, by topic and partition. Spark builds the text from hash maps
of Scala 2.13 (``JsonUtils.partitionOffsets``), so the order of its keys is the order of these maps: by hash, not by
name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TypeVar

from airflow_provider_microbatch.checkpoint.entries import Offset
from airflow_provider_microbatch.exceptions import CorruptEntryError
from airflow_provider_microbatch.kafka.cluster import Partition, Position

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
    """Parse the text of a position.

    :param where: the place of the text, for messages.
    :raises CorruptEntryError: if the text is not a position.
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


def _in_scala_order(puts: Sequence[K], hashes: Mapping[K, int]) -> list[K]:
    """The keys in the order of a ``scala.collection.mutable.HashMap`` into which they were put one by one."""
    size = _CAPACITY
    held: set[K] = set()
    for key in puts:
        if len(held) + 1 >= int(size * _LOAD):
            size *= 2
        held.add(key)
    improved = {key: _signed(value ^ ((value & 0xFFFFFFFF) >> 16)) for key, value in hashes.items()}
    # The buckets in order, and the keys of each in the order of their hashes, which are signed.
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
