"""A pipeline whose table is a topic of the tests' broker, on the inline engine."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from airflow_provider_microbatch import connections
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sinks.kafka import KafkaSink
from airflow_provider_microbatch.sinks.several import Sinks
from tests.execution.world import World
from tests.support import kafka
from tests.support.kafka_stages import settled


class TopicWorld(World):
    """Files that land, and a topic with two partitions.

    :param given: arguments of the sink.
    """

    def __init__(self, root: Path, **given: Any) -> None:
        connections.find_by(kafka.connection)
        super().__init__(root)
        self.topic = kafka.running().topic(partitions=2)
        self.name_sink(**given)

    def name_sink(self, **given: Any) -> None:
        """From here on the DAG file has these arguments of the sink."""
        defaults = {"conn_id": "kafka", "stages": str(self.root / "stages"), "transaction_seconds": 5}
        self.options["sink"] = KafkaSink(self.topic, **{**defaults, **given})

    @property
    def marks(self) -> str:
        return f"{self.topic}-microbatch"

    def put_marks(self, found: Iterable[tuple[bytes | None, bytes | None]]) -> None:
        """Somebody else writes into the topic of the marks."""
        producer = kafka.running().producer()
        for key, value in found:
            producer.produce(self.marks, value, key=key, partition=0)
        assert producer.flush(30) == 0

    def ids(self) -> list[int]:
        """What a consumer of committed records finds, as often as it is there."""
        return sorted(json.loads(record.value or b"")["id"] for record in settled(self.topic))


def beside_a_table(world: TopicWorld, *, first: str) -> Sinks:
    """The world's topic and a table, in the order in which they are published.

    :param first: "files" or "topic".
    """
    sinks = {"files": FileSink(str(world.lake), format="json"), "topic": world.options["sink"]}
    return Sinks({name: sinks[name] for name in sorted(sinks, key=lambda name: name != first)})
