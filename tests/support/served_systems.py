"""Systems whose source, store or sink is a server's. ``make chaos`` has them beside those of
:mod:`tests.support.systems`; the simulator has not: it takes back and hides what has landed, which no server does."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from airflow_provider_microbatch import connections
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.graph import JobGraph
from airflow_provider_microbatch.pipeline import Pipeline
from airflow_provider_microbatch.sinks import OpenSink, Sink
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sinks.kafka import KafkaSink
from airflow_provider_microbatch.sinks.kafka.opened import OpenKafka
from airflow_provider_microbatch.sinks.kafka.transaction import Transaction
from airflow_provider_microbatch.sources import OpenSource, Source
from airflow_provider_microbatch.sources.file import FileSource
from airflow_provider_microbatch.sources.file.open import OpenFileSource
from airflow_provider_microbatch.sources.kafka import KafkaSource
from airflow_provider_microbatch.sources.kinesis import KinesisSource
from airflow_provider_microbatch.sources.tablestore import TablestoreSource
from tests.support import kafka, kinesis, tablestore
from tests.support.system import FilesOnPosix, Row, System
from tests.support.systems import SYSTEMS as OF_THIS_MACHINE
from tests.support.systems import SplitWiseFiles
from tests.support.tablestore_tunnels import PUT


class KafkaTopics(FilesOnPosix):
    """Topics of a real broker, each unit one record; the table is of files. What is committed stays in the topic."""

    has_clock: ClassVar[bool] = False

    def source(self, name: str, *, limit: int | None = None, cleans: bool = False, archive: str = "archive") -> Source:
        # A definition out of the checkpoint may name no server of its own.
        connections.find_by(kafka.connection)
        return KafkaSource(conn_id="kafka", topics=[self._topic(name)], max_rows=limit, packages=[])

    def prepare(self, source: str) -> None:
        kafka.running().topic(name=self._topic(source), partitions=2)

    def land(self, source: str, ids: Sequence[int], *, at_ms: int | None = None) -> None:
        kafka.running().send(self._topic(source), [json.dumps(list(ids))], partition=ids[0] % 2, at_ms=at_ms)

    def not_given_up(self, source: str) -> list[str]:
        return []

    def _topic(self, source: str) -> str:
        return f"{self._root.parent.name}-{self._root.name}-{source}"


class FilesIntoTopic(FilesOnPosix):
    """Files that land, and a topic of a real broker. What was replayed is in it twice: a consumer that heeds the
    headers takes the newest attempt's records of each batch."""

    def sink(self) -> Sink:
        connections.find_by(kafka.connection)
        stages = str(self._root / "stages")
        return KafkaSink(self._topic, conn_id="kafka", stages=stages, on_replay="append", transaction_seconds=5)

    def prepare(self, source: str) -> None:
        super().prepare(source)
        if self._topic not in kafka.running().admin().list_topics(timeout=30).topics:
            kafka.running().topic(name=self._topic, partitions=2)

    def published(self) -> Sequence[Mapping[BatchKey, list[Row]]]:
        from tests.support.kafka_stages import settled

        found = dict[BatchKey, dict[int, dict[int, Row]]]()
        for record in settled(self._topic):
            lane, _, number = record.headers["microbatch-batch"].partition("/")
            attempts = found.setdefault(BatchKey(lane, int(number)), {})
            rows = attempts.setdefault(int(record.headers["microbatch-attempt"]), {})
            row = int(record.headers["microbatch-row"])
            assert row not in rows, f"{record.headers} twice"
            rows[row] = json.loads(record.value or b"")
        return [{key: list(attempts[max(attempts)].values()) for key, attempts in found.items()}]

    def take_away(self) -> bool:
        return False

    def operations(self) -> Sequence[tuple[type, type, str]]:
        return ((OpenSink, OpenKafka, "sink"), (OpenSource, OpenFileSource, "source"))

    def publish_steps(self) -> Sequence[tuple[Any, str, str]]:
        return ((Transaction, "mark", "rename"), (Transaction, "commit", "exchange"))

    @property
    def _topic(self) -> str:
        return f"{self._root.parent.name}-{self._root.name}-lake"


class Job(SplitWiseFiles):
    """Files that are halved, read by a pipeline of a job graph: divided, then transformed; its neighbour in the graph
    has a checkpoint and a table of its own, and nobody runs it."""

    def checkpoint(self) -> str:
        return str(self._root / "checkpoints" / "orders")

    def in_job(self, sources: Mapping[str, Source], *, transform: str, **arguments: Any) -> Pipeline:
        """The pipeline of these sources."""
        with JobGraph("job", checkpoint=str(self._root / "checkpoints"), **arguments) as job:
            nodes = [job.source(name, source, parallelism=2) for name, source in sources.items()]
            job.sink("orders", job.transform(*nodes, transform, parallelism=3), self.sink())
            beside = job.source("beside", FileSource(str(self._root / "landing" / "beside"), schema="id long"))
            job.sink("beside", beside, FileSink(str(self._root / "beside"), format="json"))
            job.configure("beside", split_wise=False, hooks=())
        return job.by_name()["orders"]


class KinesisShards(FilesOnPosix):
    """Shards of a stream that are split and merged as records come; the table is of files."""

    has_clock: ClassVar[bool] = False

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        kinesis.endpoint()  # of whoever makes the world, since the server ends with who starts it

    def source(self, name: str, *, limit: int | None = None, cleans: bool = False, archive: str = "archive") -> Source:
        connections.find_by(kinesis.connection)
        return KinesisSource(
            self._stream(name).name,
            conn_id=kinesis.CONN_ID,
            max_records=limit or 10_000,
            idle_seconds=0,
            discover_seconds=0,
        )

    def prepare(self, source: str) -> None:
        self._stream(source).create(2)

    def land(self, source: str, ids: Sequence[int], *, at_ms: int | None = None) -> None:
        stream = self._stream(source)
        there = stream.open_shards()
        if ids[0] % 5 == 2 and len(there) < 4:
            stream.split(there[ids[0] % len(there)])
        elif ids[0] % 5 == 3 and len(there) > 1:
            stream.merge(*there[:2])
        stream.send([json.dumps(list(ids))], at=ids[0] % 7 / 7)

    def not_given_up(self, source: str) -> list[str]:
        return []

    def _stream(self, source: str) -> kinesis.Stream:
        return kinesis.Stream(name=f"{self._root.parent.name}-{self._root.name}-{source}")


class TunnelChannels(FilesOnPosix):
    """Channels of a tunnel, whose table's log is split and merged as changes come; the table is of files."""

    has_clock: ClassVar[bool] = False

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        tablestore.endpoint()  # of whoever makes the world, since the server ends with who starts it

    def source(self, name: str, *, limit: int | None = None, cleans: bool = False, archive: str = "archive") -> Source:
        connections.find_by(tablestore.connection)
        table = self._table(name)
        return TablestoreSource(
            table.name,
            table.tunnel,
            conn_id=tablestore.CONN_ID,
            max_records=limit or 10_000,
            idle_seconds=0,
            discover_seconds=0,
        )

    def prepare(self, source: str) -> None:
        table = self._table(source)
        table.create(2)
        table.set_tunnel("page", 3)

    def land(self, source: str, ids: Sequence[int], *, at_ms: int | None = None) -> None:
        table = self._table(source)
        there = table.open_shards()
        if ids[0] % 5 == 2 and len(there) < 4:
            table.arrange("split", there[ids[0] % len(there)])
        elif ids[0] % 5 == 3 and len(there) > 1:
            table.arrange("merge", *there[:2])
        table.write(PUT, {"id": ids[0]}, {"ids": json.dumps(list(ids))}, at=ids[0] % 7 / 7)

    def not_given_up(self, source: str) -> list[str]:
        return []

    def _table(self, source: str) -> tablestore.Table:
        return tablestore.Table(name=f"of-{self._root.parent.name}-{self._root.name}-{source}", shards=None)


SYSTEMS: Mapping[str, Callable[[Path], System]] = {
    **OF_THIS_MACHINE,
    "jobs": Job,
    "kafka": KafkaTopics,
    "kafka-sink": FilesIntoTopic,
    "kinesis": KinesisShards,
    "tablestore": TunnelChannels,
}
