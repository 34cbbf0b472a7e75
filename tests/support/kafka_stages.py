"""Stages of a topic's sink as the runtime leaves them, made by hand, and what consumers find in the topic."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from airflow_provider_microbatch.checkpoint.identity import BatchIdentity
from airflow_provider_microbatch.checkpoint.known_tables import KnownTables
from airflow_provider_microbatch.sinks import OpenSink
from airflow_provider_microbatch.sinks.kafka import KafkaSink
from airflow_provider_microbatch.stores.posix import PosixStore
from tests.sinks.stages import BATCH, folder_of
from tests.support.kafka import running

_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_TYPES = {"key": pa.binary(), "value": pa.binary(), "headers": _HEADERS, "partition": pa.int32()}


def write_records(
    sink: OpenSink,
    epoch: int,
    parts: Sequence[Sequence[Mapping[str, Any]]],
    *,
    batch: BatchIdentity = BATCH,
    columns: Sequence[str] = ("value",),
    complete: bool = True,
) -> Path:
    """A stage of these records, a file of each part."""
    folder = folder_of(sink, epoch, batch)
    make_ready(sink)
    folder.mkdir(parents=True)
    listed = {}
    for number, part in enumerate(parts):
        path = folder / f"part-{number:05}-{epoch}.parquet"
        write_file(path, part, columns)
        listed[path.name] = path.stat().st_size
    if complete:
        result = {"batchId": batch.key.id, "epoch": epoch, "numOutputRows": sum(map(len, parts))}
        result |= {"identity": batch.to_dict()} if batch.checkpoint else {}
        lines = [{"result": result}, *({"file": name, "bytes": size} for name, size in listed.items())]
        (folder / "_manifest").mkdir()
        (folder / "_manifest" / "part-00000.txt").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def make_ready(sink: OpenSink) -> None:
    """As before an attempt of a checkpoint, which knows its topics from then on."""
    assert isinstance(sink.definition, KafkaSink)
    known = KnownTables(PosixStore(f"{sink.definition.files.root}.known"))
    sink.make_ready(known, is_there=lambda: True)


def write_stage(
    sink: OpenSink, epoch: int, *, batch: BatchIdentity = BATCH, rows: int = 3, files: int = 1, complete: bool = True
) -> Path:
    """A stage whose records say which attempt wrote them."""
    parts = [[{"value": json.dumps({"id": row, "epoch": epoch}).encode()} for row in range(rows)] for _ in range(files)]
    return write_records(sink, epoch, parts, batch=batch, complete=complete)


def write_file(path: Path, rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> None:
    """A Parquet file of records with these columns."""
    schema = pa.schema([(name, _TYPES[name]) for name in columns])
    parquet.write_table(pa.Table.from_pylist([dict(row) for row in rows], schema=schema), path)


@dataclass(frozen=True, kw_only=True)
class Found:
    """One record, as a consumer finds it."""

    key: bytes | None
    value: bytes | None
    headers: Mapping[str, str]
    partition: int
    offset: int


@contextmanager
def consuming(topic: str, *, isolation: str = "read_committed", partitions: int = 2) -> Iterator[Any]:
    """A consumer of a topic from its beginning, of librdkafka's."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": running().address,
            "group.id": "a-reader",
            "enable.auto.commit": False,
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,
            "log_level": 0,
        }
    )
    try:
        consumer.assign([TopicPartition(topic, one, 0) for one in range(partitions)])
        yield consumer
    finally:
        consumer.close()


def read(topic: str, *, isolation: str = "read_committed", partitions: int = 2) -> list[Found]:
    """What a consumer finds that reads until the end; in the order of each partition."""
    found, ended = list[Found](), set[int]()
    with consuming(topic, isolation=isolation, partitions=partitions) as consumer:
        while len(ended) < partitions:
            message = consumer.poll(1.0)  # consume() would wait for more to its end
            if message is None:
                continue
            if message.error() is not None:
                ended.add(message.partition())
                continue
            names = [name for name, _ in message.headers() or ()]
            assert len(set(names)) == len(names), "each header once"
            found.append(
                Found(
                    key=message.key(),
                    value=message.value(),
                    headers={name: (value or b"").decode() for name, value in message.headers() or ()},
                    partition=message.partition(),
                    offset=message.offset(),
                )
            )
    return sorted(found, key=lambda one: (one.partition, one.offset))


def settled(topic: str, partitions: int = 2) -> list[Found]:
    """The same once no transaction is open."""
    from tests.support.waiting import wait_until

    wait_until(lambda: all(running().is_settled(topic, one) for one in range(partitions)))
    return read(topic, partitions=partitions)
