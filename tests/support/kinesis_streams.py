"""Streams as Kinesis has them, where moto falls short: shards that are closed come to an end, their records stay in
them when they are split or merged, records go, iterators expire, and requests are refused now and then."""

from __future__ import annotations

import bisect
import itertools
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

FIRST = 49_600_000_000_000_000_000_000_000_000
HASHES = 2**128


class RefusedError(Exception):
    """:param kind: the name of the error of Kinesis."""

    def __init__(self, kind: str, message: str = "") -> None:
        super().__init__(message or kind)
        self.kind = kind


@dataclass
class Shard:
    """One shard; what was trimmed is no more among its records."""

    id: str
    hashes: tuple[int, int]
    parents: tuple[str, ...] = ()
    closed: bool = False
    closed_at: float = 0.0
    records: list[dict[str, Any]] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    reads: list[float] = field(default_factory=list)


class Stream:
    """:param name: no space is in it.
    :param shards: how many there are at first.

    :ivar sparse: how many answers without records an iterator has before each record.
    :ivar reads_a_second: how often a shard's records can be asked for; 0: as often as one likes.
    """

    def __init__(self, name: str, shards: int) -> None:
        self.name = name
        self.shards: dict[str, Shard] = {}
        self.expired: set[str] = set()
        self.retention_hours = 24
        self.refusals = 0
        self.sparse = 0
        self.reads_a_second = 0
        self.iterators = 0
        self.made = time.time()
        self.requests: dict[str, int] = {}
        self._last = FIRST
        edges = [HASHES * number // shards for number in range(shards + 1)]
        for begin, end in itertools.pairwise(edges):
            self._add((begin, end - 1))

    def ask(self, operation: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """Answer a request, whose name is that of the method but for its case."""
        self.requests[operation] = self.requests.get(operation, 0) + 1
        if operation in ("GetRecords", "GetShardIterator") and self.refusals:
            self.refusals -= 1
            raise RefusedError("ProvisionedThroughputExceededException", "Rate exceeded")
        answers = {
            "DescribeStreamSummary": self._summary,
            "ListShards": self._list,
            "PutRecord": self._put,
            "SplitShard": self._split,
            "MergeShards": self._merge,
            "GetShardIterator": self._iterator,
            "GetRecords": self._records,
        }
        return answers[operation](given)

    def trim(self, shard: str, count: int) -> None:
        """Retention takes the oldest records of a shard."""
        del self.shards[shard].records[:count], self.shards[shard].numbers[:count]

    def expire(self, shard: str) -> None:
        """Retention takes a shard."""
        self.trim(shard, len(self.shards[shard].records))
        self.expired.add(shard)

    def age(self, ms: int) -> None:
        """Everything came that much earlier."""
        for shard in self.shards.values():
            shard.closed_at -= ms / 1000
            for record in shard.records:
                record["ApproximateArrivalTimestamp"] -= ms / 1000

    def retain(self) -> None:
        """Retention takes what is too old, and shards that were closed so long ago."""
        oldest = time.time() - self.retention_hours * 3600
        for shard in self.shards.values():
            self.trim(shard.id, sum(one["ApproximateArrivalTimestamp"] < oldest for one in shard.records))
            if shard.closed and shard.closed_at < oldest:
                self.expire(shard.id)

    def open_shards(self) -> list[Shard]:
        """By their hashes."""
        return sorted((one for one in self.shards.values() if not one.closed), key=lambda one: one.hashes)

    def _add(self, hashes: tuple[int, int], *parents: str) -> None:
        shard = Shard(id=f"shardId-{len(self.shards):012}", hashes=hashes, parents=parents)
        self.shards[shard.id] = shard

    def _summary(self, given: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "StreamDescriptionSummary": {
                "StreamName": self.name,
                "StreamARN": f"arn:aws:kinesis:us-east-1:123456789012:stream/{self.name}",
                "StreamStatus": "ACTIVE",
                "RetentionPeriodHours": self.retention_hours,
                "StreamCreationTimestamp": self.made,
                "EnhancedMonitoring": [],
                "OpenShardCount": len(self.open_shards()),
            }
        }

    def _list(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Two a page, so that there is another page."""
        there = [shard for shard in self.shards.values() if shard.id not in self.expired]
        begin = int(str(given.get("NextToken", "0")).rpartition(" ")[2])
        token = {"NextToken": f"{self.name} {begin + 2}"} if begin + 2 < len(there) else {}
        return {"Shards": [self._listed(shard) for shard in there[begin : begin + 2]], **token}

    @staticmethod
    def _listed(shard: Shard) -> dict[str, Any]:
        names = dict(zip(("ParentShardId", "AdjacentParentShardId"), shard.parents, strict=False))
        closed = {"EndingSequenceNumber": str(FIRST * 2)} if shard.closed else {}
        return {
            "ShardId": shard.id,
            "HashKeyRange": {"StartingHashKey": str(shard.hashes[0]), "EndingHashKey": str(shard.hashes[1])},
            "SequenceNumberRange": {"StartingSequenceNumber": str(FIRST), **closed},
            **names,
        }

    def _put(self, given: Mapping[str, Any]) -> dict[str, Any]:
        place = int(given.get("ExplicitHashKey", hash(given["PartitionKey"]) % HASHES))
        shard = next(one for one in self.open_shards() if one.hashes[0] <= place <= one.hashes[1])
        self._last += 7
        shard.records.append(
            {
                "SequenceNumber": str(self._last),
                "ApproximateArrivalTimestamp": time.time(),
                "Data": given["Data"],
                "PartitionKey": given["PartitionKey"],
            }
        )
        shard.numbers.append(self._last)
        return {"ShardId": shard.id, "SequenceNumber": str(self._last)}

    def _split(self, given: Mapping[str, Any]) -> dict[str, Any]:
        shard, begin = self._of(given["ShardToSplit"]), int(given["NewStartingHashKey"])
        if shard.closed or not shard.hashes[0] < begin <= shard.hashes[1]:
            raise RefusedError("InvalidArgumentException")
        shard.closed, shard.closed_at = True, time.time()
        self._add((shard.hashes[0], begin - 1), shard.id)
        self._add((begin, shard.hashes[1]), shard.id)
        return {}

    def _merge(self, given: Mapping[str, Any]) -> dict[str, Any]:
        one, other = self._of(given["ShardToMerge"]), self._of(given["AdjacentShardToMerge"])
        if one.closed or other.closed or one.hashes[1] + 1 != other.hashes[0]:
            raise RefusedError("InvalidArgumentException")
        one.closed = other.closed = True
        one.closed_at = other.closed_at = time.time()
        self._add((one.hashes[0], other.hashes[1]), one.id, other.id)
        return {}

    def _iterator(self, given: Mapping[str, Any]) -> dict[str, Any]:
        shard, kind = self._of(given["ShardId"]), given["ShardIteratorType"]
        if kind == "TRIM_HORIZON":
            at = 0
        elif kind == "LATEST":
            at = self._last + 1
        elif kind == "AT_TIMESTAMP":
            later = (
                int(one["SequenceNumber"])
                for one in shard.records
                if one["ApproximateArrivalTimestamp"] >= given["Timestamp"]
            )
            at = next(later, self._last + 1)
        else:
            at = int(given["StartingSequenceNumber"]) + (kind == "AFTER_SEQUENCE_NUMBER")
            if not FIRST < at <= self._last + 1:
                raise RefusedError("InvalidArgumentException", "no such sequence number")
        return {"ShardIterator": f"{self.name} {self.iterators}/{shard.id}/{at}/{self.sparse}"}

    def _records(self, given: Mapping[str, Any]) -> dict[str, Any]:
        made, name, at, empty = given["ShardIterator"].partition(" ")[2].split("/")
        if int(made) != self.iterators:
            raise RefusedError("ExpiredIteratorException", "Iterator expired")
        shard = self._of(name)
        self._limit(shard)
        begin = bisect.bisect_left(shard.numbers, int(at))
        found = shard.records[begin : begin + given.get("Limit", 10_000)]
        empties = self.sparse
        if int(empty) and found:
            found, empties = [], int(empty) - 1  # as a shard does whose records are far apart
        after = int(found[-1]["SequenceNumber"]) + 1 if found else int(at)
        left = shard.records[begin + len(found) :]
        over = shard.closed and not left
        behind = max(1, round((time.time() - left[0]["ApproximateArrivalTimestamp"]) * 1000)) if left else 0
        token = {} if over else {"NextShardIterator": f"{self.name} {self.iterators}/{name}/{after}/{empties}"}
        return {"Records": found, "MillisBehindLatest": behind, **token}

    def _limit(self, shard: Shard) -> None:
        if not self.reads_a_second:
            return
        shard.reads = [one for one in shard.reads if one > time.monotonic() - 1]
        if len(shard.reads) >= self.reads_a_second:
            raise RefusedError("ProvisionedThroughputExceededException", "Rate exceeded for shard")
        shard.reads.append(time.monotonic())

    def _of(self, shard: str) -> Shard:
        if shard not in self.shards or shard in self.expired:
            raise RefusedError("ResourceNotFoundException", f"Shard {shard} does not exist")
        return self.shards[shard]
