"""A topic of a real broker, a checkpoint and a Kafka source over them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from airflow_provider_microbatch.checkpoint.key import LIVE, BatchKey
from airflow_provider_microbatch.clock import now_ms
from airflow_provider_microbatch.connections import Connect, Connection
from airflow_provider_microbatch.runtime.job import Read
from airflow_provider_microbatch.sources import OpenSource, SourceContext
from airflow_provider_microbatch.sources.intervals import HeldRange
from airflow_provider_microbatch.sources.kafka import KafkaSource
from airflow_provider_microbatch.stores.posix import PosixStore
from tests.support.kafka import Broker, running

Records = dict[tuple[str, int], list[int]]
"""Offsets by topic and partition."""


class World:
    """:param root: the checkpoint goes below it.
    :param partitions: how many the topic has.
    """

    def __init__(self, root: Path, *, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
        self.root = root
        self.broker: Broker = running()
        self.topic = self.broker.topic(partitions=partitions, config=config)
        self.log = PosixStore(root / "checkpoint" / "sources" / "orders")
        self.state = PosixStore(root / "checkpoint" / "microbatch" / "sources" / "orders")
        self.live: list[HeldRange] = []
        self.lanes: dict[str, list[HeldRange]] = {}

    def source(self, **arguments: Any) -> KafkaSource:
        """The definition; of the topic, if nothing else is said."""
        if not {"pattern", "partitions", "topics"} & arguments.keys():
            arguments["topics"] = [self.topic]
        if "conn_id" not in arguments:
            arguments.setdefault("bootstrap_servers", self.broker.address)
        return KafkaSource(**{"timeout": 60, "packages": [], **arguments})

    def open(
        self,
        *,
        lane: str = LIVE,
        connect: Connect | None = None,
        clock_ms: Callable[[], int] = now_ms,
        **arguments: Any,
    ) -> OpenSource:
        """A fresh process's view of the source."""
        context = SourceContext(
            name="orders",
            log=self.log,
            state=self.state,
            clock_ms=clock_ms,
            lane=lane,
            connect=connect or _none,
        )
        return self.source(**arguments).open(context)

    def send(self, count: int = 1, *, partition: int = 0, at_ms: int | None = None, topic: str | None = None) -> None:
        """So many records; durable on return."""
        values = [f"{partition}-{number}" for number in range(count)]
        self.broker.send(topic or self.topic, values, partition=partition, at_ms=at_ms)

    def plan(self, **arguments: Any) -> tuple[str | None, str | None]:
        """The next batch of the live lane, as it comes into its offset log."""
        source = self.open(**arguments)
        start = self.live[-1].end if self.live else None
        end = source.latest_offset(start)
        if end != start:
            start = source.initial_offset() if start is None else start
            self.live.append(HeldRange(key=BatchKey(LIVE, len(self.live)), start=start, end=end))
        return start, end

    @property
    def held(self) -> dict[str, Sequence[HeldRange]]:
        """What the logs of all lanes have."""
        return {LIVE: list(self.live), **self.lanes}

    def at(self, *offsets: int) -> str:
        """The position with these offsets of the topic's partitions."""
        return json.dumps({self.topic: {str(n): at for n, at in enumerate(offsets)}}, separators=(",", ":"))


def offsets(read: Read) -> Records:
    """What a read has Spark read."""
    found: Records = {}
    for layer in read.arguments["layers"]:
        for topic, pieces in layer.items():
            for number, (start, end) in pieces.items():
                found.setdefault((topic, int(number)), []).extend(range(start, end))
    return found


def _none(conn_id: str) -> Connection:
    raise AssertionError(f"nobody needs {conn_id}")
