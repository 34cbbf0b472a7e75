"""Reads shards of Kinesis by boto3, where Spark runs; the planner uses the same client.

Calls and their limits: https://docs.aws.amazon.com/kinesis/latest/APIReference/API_GetRecords.html
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, TypeVar

from airflow_provider_microbatch.runtime.channels import At, ChannelError, Page, may_lack

SCHEMA = (
    "partitionKey string, data binary, stream string, shardId string, sequenceNumber string, "
    "approximateArrivalTimestamp timestamp"
)
MOST = 10_000
"""The most records that one request can return."""

_BUSY = ("ProvisionedThroughputExceededException", "LimitExceededException", "KMSThrottlingException")
T = TypeVar("T")


def client(arguments: Mapping[str, Any], secrets: Mapping[str, str]) -> Any:
    """A client of boto3. Values that are in neither argument boto3 takes from its usual places: the environment, its
    files, the instance.

    :param arguments: ``region``, ``endpoint`` and ``timeout``, seconds; the first two may be None.
    :param secrets: arguments of boto3's session by their names, such as ``aws_secret_access_key``.
    :raises ModuleNotFoundError: if boto3 is not installed.
    """
    try:
        import boto3
        from botocore.config import Config
    except ImportError as error:
        raise ModuleNotFoundError(
            f"a KinesisSource is read by boto3, which is not installed here ({error}). It is needed where Airflow runs "
            "and where Spark's executors do. Run: pip install 'airflow-provider-microbatch[kinesis]'"
        ) from error
    timeout = arguments["timeout"]
    config = Config(
        connect_timeout=min(10.0, timeout), read_timeout=timeout, retries={"mode": "standard", "max_attempts": 3}
    )
    session = boto3.Session(region_name=arguments["region"], **secrets)
    return session.client("kinesis", endpoint_url=arguments["endpoint"], config=config)


@lru_cache(maxsize=8)
def _client_of_the_process(
    region: str | None, endpoint: str | None, timeout: float, secrets: tuple[tuple[str, str], ...]
) -> Any:
    """The client, made once a process: a Spark worker reads many partitions, and making a client takes longer than
    reading one."""
    return client({"region": region, "endpoint": endpoint, "timeout": timeout}, dict(secrets))


def patiently(call: Callable[[], T], *, timeout: float, sleep: Callable[[float], None] = time.sleep) -> T:
    """The answer of the call. Kinesis now and then refuses a request for a stream with other readers; the request is
    then repeated.

    :param timeout: seconds after which a refusal is raised.
    """
    from botocore.exceptions import ClientError

    deadline, pause = time.monotonic() + timeout, 0.2
    while True:
        try:
            return call()
        except ClientError as error:
            if code_of(error) not in _BUSY or time.monotonic() + pause > deadline:
                raise
        sleep(pause * random.uniform(0.5, 1.5))
        pause = min(pause * 2, 5.0)


def code_of(error: Any) -> str:
    """The error code with which a request was refused."""
    return str(error.response.get("Error", {}).get("Code", ""))


def iterator_of(kinesis: Any, stream: str, shard: str, at: At, *, inclusive: bool) -> str:
    """An iterator over the shard, from the record at the place on, or from the record behind it.

    :param inclusive: whether the iterator begins with the record at the place.
    :raises botocore.exceptions.ClientError: if Kinesis refuses.
    """
    asked: dict[str, Any] = {"ShardIteratorType": "TRIM_HORIZON"}
    if "after" in at:
        kind = "AT_SEQUENCE_NUMBER" if inclusive else "AFTER_SEQUENCE_NUMBER"
        asked = {"ShardIteratorType": kind, "StartingSequenceNumber": at["after"]}
    elif "begin" in at:
        asked = {"ShardIteratorType": "AT_TIMESTAMP", "Timestamp": at["begin"] / 1000}
    found: str = kinesis.get_shard_iterator(StreamName=stream, ShardId=shard, **asked)["ShardIterator"]
    return found


class Shards:
    """The shards of a stream, as channels.

    :param arguments: ``stream``, those of :func:`client`, and ``retention_ms``, how long a record is kept.
    """

    def __init__(self, arguments: Mapping[str, Any], secrets: Mapping[str, str]) -> None:
        self._stream: str = arguments["stream"]
        self._retention_ms: int = arguments["retention_ms"]
        self._timeout: float = arguments["timeout"]
        self._client = _client_of_the_process(
            *(arguments[name] for name in ("region", "endpoint", "timeout")), tuple(sorted(secrets.items()))
        )

    def pages(self, channel: str, at: At, *, most: Callable[[], int]) -> Iterator[Page]:
        """Read from the last record that was read: if that record still exists, the records behind it exist too. Where
        it is gone, or none was read yet, the moment of the last look tells."""
        from botocore.exceptions import ClientError

        here, iterator, checked = dict(at), self._iterator(channel, at), False
        while True:
            asked_ms = _now_ms()
            try:
                answer = self._records(iterator, most())
            except ClientError as error:
                if code_of(error) != "ExpiredIteratorException":
                    raise
                iterator = self._iterator(channel, here)
                continue
            records, behind = answer["Records"], answer.get("MillisBehindLatest", 0)
            iterator, gap, last_gone = answer.get("NextShardIterator"), False, False
            at_tip = behind == 0
            if not checked and (records or at_tip or iterator is None):
                checked, is_there = True, bool(records) and records[0]["SequenceNumber"] == at.get("after")
                gap = not is_there and may_lack(at, now_ms=asked_ms, retention_ms=self._retention_ms)
                last_gone = not is_there and "after" in at
            # If the record at the place is gone, Kinesis may begin before the place.
            new = [one for one in records if not self._is_read(one["SequenceNumber"], here)]
            if new:
                here = {"after": new[-1]["SequenceNumber"]}
            yield Page(
                rows=[(one["SequenceNumber"], self._row(channel, one)) for one in new],
                seen=asked_ms if at_tip else _ms(records[-1]) if records else 0,
                came=_ms(records[-1]) if records else 0,
                at_tip=at_tip,
                ended=iterator is None,
                gap=gap,
                last_gone=last_gone,
            )
            if iterator is None:
                return

    def is_past(self, place: str, other: str) -> bool:
        """Whether one sequence number is behind another: sequence numbers of a shard grow."""
        return int(place) > int(other)

    def batch(self, rows: Sequence[Sequence[Any]]) -> Any:
        """The rows in the columns of :data:`SCHEMA`."""
        import pyarrow as pa

        kinds = [pa.string(), pa.binary(), pa.string(), pa.string(), pa.string(), pa.timestamp("us", tz="UTC")]
        names = [column.split()[0] for column in SCHEMA.split(", ")]
        arrays = [pa.array(values, kind) for values, kind in zip(zip(*rows, strict=True), kinds, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, names=names)

    def _is_read(self, number: str, here: At) -> bool:
        return "after" in here and not self.is_past(number, here["after"])

    def _iterator(self, channel: str, at: At) -> str:
        from botocore.exceptions import ClientError

        def ask(at: At) -> str:
            return patiently(
                lambda: iterator_of(self._client, self._stream, channel, at, inclusive=True), timeout=self._timeout
            )

        try:
            return ask(at)
        except ClientError as error:
            if code_of(error) == "ResourceNotFoundException":
                raise ChannelError(f"stream {self._stream}, {channel}: is not there any more: {error}") from error
            if code_of(error) != "InvalidArgumentException" or "after" not in at:
                raise
        # The record is gone. Records that were read already are skipped by their numbers.
        return ask({})

    def _records(self, iterator: str, most: int) -> Any:
        limit = max(1, min(most, MOST))
        return patiently(
            lambda: self._client.get_records(ShardIterator=iterator, Limit=limit), timeout=self._timeout
        )  # fmt: skip

    def _row(self, channel: str, record: Mapping[str, Any]) -> tuple[Any, ...]:
        arrived: datetime = record["ApproximateArrivalTimestamp"]
        return (
            record["PartitionKey"],
            record["Data"],
            self._stream,
            channel,
            record["SequenceNumber"],
            arrived.astimezone(UTC),
        )


def _ms(record: Mapping[str, Any]) -> int:
    arrived: datetime = record["ApproximateArrivalTimestamp"]
    return round(arrived.timestamp() * 1000)


def _now_ms() -> int:
    return round(time.time() * 1000)
