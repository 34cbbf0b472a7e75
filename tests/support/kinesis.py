"""Kinesis for tests: a server of the tests' own that speaks its protocol, and moto's. Each is started when it is first
needed, one for a session and all processes that it starts. What comes into a stream, boto3 puts there."""

from __future__ import annotations

import functools
import json
import os
import urllib.request
import uuid
from collections.abc import Sequence
from typing import Any

from airflow_provider_microbatch.connections import Connection
from tests.support.child_server import started
from tests.support.kinesis_server import TARGET
from tests.support.kinesis_streams import HASHES

CONN_ID = "kinesis"
KEY, SECRET = "AKIATESTS", "a-secret-of-the-tests"
OURS, MOTO = "tests.support.kinesis_server", "tests.support.kinesis_moto"


def endpoint(server: str = OURS) -> str:
    """The address of the server, which runs by now."""
    known = f"MICROBATCH_TESTS_{server.rpartition('.')[2].upper()}"
    if known not in os.environ:
        os.environ[known] = f"http://127.0.0.1:{started(server)}"
    return os.environ[known]


def connection(conn_id: str = CONN_ID, *, server: str = OURS) -> Connection:
    """An Airflow connection that leads there."""
    extra = {"region_name": "us-east-1", "endpoint_url": endpoint(server)}
    return Connection(conn_id=conn_id, conn_type="aws", login=KEY, password=SECRET, extra=extra)


@functools.cache
def client(server: str = OURS) -> Any:
    """Of boto3."""
    import boto3

    return boto3.client(
        "kinesis",
        endpoint_url=endpoint(server),
        region_name="us-east-1",
        aws_access_key_id=KEY,
        aws_secret_access_key=SECRET,
    )


class Stream:
    """A new stream, or one of that name.

    :param shards: how many it has at first.
    """

    def __init__(self, *, shards: int = 1, name: str | None = None, server: str = OURS) -> None:
        self.name = name or f"orders-{uuid.uuid4().hex[:8]}"
        self.server = server
        self._client = client(server)
        if name is None:
            self.create(shards)

    def create(self, shards: int) -> None:
        """Make it."""
        self._client.create_stream(StreamName=self.name, ShardCount=shards)

    def send(self, values: Sequence[str], *, at: float = 0.0) -> None:
        """Put records, one after the other.

        :param at: which part of the hashes they go to, from 0 to 1.
        """
        for value in values:
            self._client.put_record(
                StreamName=self.name, Data=value.encode(), PartitionKey=value, ExplicitHashKey=str(int(HASHES * at))
            )

    def split(self, shard: str) -> None:
        """Into halves."""
        begin, end = self._hashes(shard)
        self._client.split_shard(
            StreamName=self.name, ShardToSplit=shard, NewStartingHashKey=str((begin + end) // 2 + 1)
        )

    def merge(self, one: str, other: str) -> None:
        """Two that lie beside each other."""
        self._client.merge_shards(StreamName=self.name, ShardToMerge=one, AdjacentShardToMerge=other)

    def shards(self) -> list[dict[str, Any]]:
        """All that are listed."""
        found: list[dict[str, Any]] = []
        for page in self._client.get_paginator("list_shards").paginate(StreamName=self.name):
            found += page["Shards"]
        return found

    def open_shards(self) -> list[str]:
        """Ids, by their hashes."""
        there = [one for one in self.shards() if "EndingSequenceNumber" not in one["SequenceNumberRange"]]
        return [one["ShardId"] for one in sorted(there, key=lambda one: int(one["HashKeyRange"]["StartingHashKey"]))]

    def remove(self) -> None:
        """The stream goes."""
        self._client.delete_stream(StreamName=self.name)

    def arrange(self, what: str, *arguments: Any) -> None:
        """Call a method of the server's :class:`~tests.support.kinesis_streams.Stream`."""
        self._ask(what, arguments=list(arguments))

    def set(self, what: str, value: Any) -> None:
        """Set something that it has."""
        self._ask(what, set=value)

    def requests(self) -> dict[str, int]:
        """How many there were, by their names."""
        return self._ask("requests")

    def _hashes(self, shard: str) -> tuple[int, int]:
        (found,) = (one["HashKeyRange"] for one in self.shards() if one["ShardId"] == shard)
        return int(found["StartingHashKey"]), int(found["EndingHashKey"])

    def _ask(self, what: str, **given: Any) -> dict[str, Any]:
        body = json.dumps({"StreamName": self.name, **given}).encode()
        request = urllib.request.Request(endpoint(OURS), body, {"X-Amz-Target": f"{TARGET}{what}"})
        with urllib.request.urlopen(request, timeout=30) as answer:
            found: dict[str, Any] = json.load(answer)
        return found
