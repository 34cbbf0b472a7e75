"""The beginning of the first batch: on record before the batch is planned, as in Spark's own source.

``sources/<name>/0`` is the initial offset of Spark's Kafka source: a byte 0 (for Spark 2.1, SPARK-19517), then ``v1``
and the position. If the checkpoint of a streaming query is taken over, the query has written the entry; a query that
takes over a checkpoint of this package finds the entry of this package.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from airflow_provider_microbatch.checkpoint.entries import Offset
from airflow_provider_microbatch.exceptions import CorruptEntryError, SourceError
from airflow_provider_microbatch.kafka.cluster import Cluster, Partition, named
from airflow_provider_microbatch.sources.kafka import EARLIEST, LATEST, KafkaSource
from airflow_provider_microbatch.sources.kafka.offsets import parse, render
from airflow_provider_microbatch.stores import Store

_ENTRY = "0"
_HEAD = b"\x00v1\n"
_EARLIEST, _LATEST = -2, -1


def entry_of_beginning(position: Offset) -> dict[str, str]:
    """The log of Spark's Kafka source, by file name, of a query whose first batch begins at the position."""
    return {_ENTRY: _HEAD.decode() + position}


class Beginning:
    """:param log: Spark's source log."""

    def __init__(self, log: Store) -> None:
        self._log = log

    def get(self) -> Offset | None:
        """The text of the position; None if none is on record yet. Writes nothing.

        :raises CorruptEntryError: if the entry is torn.
        """
        data = self._log.get(_ENTRY)
        if data is None:
            return None
        where = f"{self._log.location}/{_ENTRY}"
        if not data.startswith(_HEAD):
            raise CorruptEntryError(
                f"{where} is torn, or not of a Kafka source: {data[:40]!r}. Restore it from a backup of the checkpoint."
            )
        return render(parse(data.removeprefix(_HEAD).decode(), where=where))

    def pin(self, position: Mapping[Partition, int]) -> Offset:
        """Put the position on record unless one is; return the recorded one."""
        self._log.put_if_absent(_ENTRY, _HEAD + render(position).encode())
        found = self.get()
        assert found is not None, "it was put there, and nobody removes it"
        return found


def beginning(
    source: KafkaSource, partitions: Iterable[Partition], cluster: Callable[[], Cluster], *, name: str
) -> dict[Partition, int]:
    """Return the position where the source begins, as of now.

    :param name: name of the source, for messages.
    :raises SourceError: if ``start`` names offsets that do not exist, or does not name an offset for every partition.
    """
    wanted = list(partitions)
    if source.start == EARLIEST:
        return cluster().earliest(wanted)
    latest = cluster().latest(wanted)
    if source.start == LATEST:
        return latest
    if source.begins_ms is not None:
        since = cluster().since(wanted, source.begins_ms)
        # Uncommitted records lie behind the end, and belong to no past time: the partition begins at its end then.
        return {one: latest[one] if at is None else min(latest[one], at.offset) for one, at in since.items()}
    return _given(source, wanted, earliest=cluster().earliest(wanted), latest=latest, name=name)


def _given(
    source: KafkaSource,
    wanted: list[Partition],
    *,
    earliest: Mapping[Partition, int],
    latest: Mapping[Partition, int],
    name: str,
) -> dict[Partition, int]:
    assert isinstance(source.start, Mapping)
    given = {(topic, int(number)): at for topic, numbers in source.start.items() for number, at in numbers.items()}
    for what, them in (("names", given.keys() - set(wanted)), ("does not name", set(wanted) - given.keys())):
        if them:
            which = "which is not there" if what == "names" else "which is there"
            raise SourceError(
                f"source {name!r}: start {what} {', '.join(map(named, sorted(them)))}, {which}. Give it an offset for "
                "each partition; -2 is the earliest and -1 the latest."
            )
    found = {}
    for one, at in given.items():
        found[one] = earliest[one] if at == _EARLIEST else latest[one] if at == _LATEST else at
        if not earliest[one] <= found[one] <= latest[one]:
            raise SourceError(
                f"source {name!r}: start has offset {at} for {named(one)}, which has {earliest[one]} to {latest[one]}."
            )
    return found
