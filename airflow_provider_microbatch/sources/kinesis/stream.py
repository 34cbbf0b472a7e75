"""A stream as a server of channels, requested by boto3 and without a JVM."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cached_property
from typing import Any, TypeVar

from airflow_provider_microbatch.connections import Connect
from airflow_provider_microbatch.exceptions import SourceError
from airflow_provider_microbatch.lifetime import Close, shared
from airflow_provider_microbatch.runtime.channels import At
from airflow_provider_microbatch.runtime.kinesis import client, code_of, iterator_of, patiently
from airflow_provider_microbatch.sources.channels import Channel, Look
from airflow_provider_microbatch.sources.channels.graph import Position
from airflow_provider_microbatch.sources.kinesis import LATEST, KinesisSource
from airflow_provider_microbatch.sources.kinesis.access import Access

T = TypeVar("T")

_HOUR_MS = 3_600_000
_KEEPS_HOURS = 8_760  # no stream keeps a record longer
_LOOKS = 10  # requests that find nothing and are not at the tip, before a batch shall look
_PAUSE = 0.2  # seconds between requests for the records of one shard: Kinesis takes five a second, of all its readers


class Stream:
    """A Kinesis stream. Kinesis keeps no progress of its readers: the logs of the checkpoint are the record.

    :param source: its definition.
    :param connect: finds its connection.
    :param clock_ms: the time, milliseconds since the epoch.
    """

    splits = "shards"
    keeps_ms = _KEEPS_HOURS * _HOUR_MS
    has_origins = False

    def __init__(self, source: KinesisSource, *, connect: Connect, clock_ms: Callable[[], int]) -> None:
        self._source = source
        self._connect = connect
        self._clock_ms = clock_ms

    def retention_ms(self) -> int:
        """The stream's retention setting."""
        hours: int = self._listed(max_age=float("inf")).summary["RetentionPeriodHours"]
        return hours * _HOUR_MS

    def channels(self, *, max_age: float) -> Mapping[str, Channel]:
        """All shards that the stream lists, including those that have ended."""
        return self._listed(max_age=max_age).shards

    def identity(self) -> str:
        """Its ARN, which has region and account, and when it was created."""
        summary = self._listed(max_age=float("inf")).summary
        made: datetime = summary["StreamCreationTimestamp"]
        return f"{summary['StreamARN']} of {made.astimezone(UTC).isoformat()}"

    def beginning(self, channels: Mapping[str, Channel]) -> Position | None:
        """The beginning by the definition's ``start``. A shard closed before the first plan has no later records."""
        begins_ms = self._source.begins_ms
        if self._source.start == LATEST:
            now_ms = self._now_ms()
            return {
                one.id: {"rows": 0, "finished": True, "seen": now_ms} if one.closed else {"rows": 0, "begin": now_ms}
                for one in channels.values()
            }
        return None if begins_ms is None else {shard: {"rows": 0, "begin": begins_ms} for shard in channels}

    def look(self, channel: str, at: At) -> Look:
        """Takes one request, by an iterator that is kept from look to look; several for a shard with few records."""
        kept, place = self._held.iterators, (at.get("after"), at.get("begin"))
        before, iterator = kept.pop(channel, (place, None))
        iterator = iterator if before == place else None
        for number in range(_LOOKS):
            if number:
                time.sleep(_PAUSE)
            try:
                if iterator is None:
                    iterator = self._iterator(channel, at, inclusive=False)
                answer = self._next(iterator)
            except _ExpiredError:
                iterator = None
                continue
            behind = answer.get("MillisBehindLatest", 0)
            if answer["Records"] or answer.get("NextShardIterator") is None:
                arrived = [one["ApproximateArrivalTimestamp"].timestamp() for one in answer["Records"]]
                since = max(0, self._clock_ms() - round(arrived[0] * 1000)) if arrived else 0
                return Look(is_new=True, behind_ms=max(behind, since))
            iterator = answer["NextShardIterator"]
            if behind == 0:
                kept[channel] = (place, iterator)
                return Look(is_new=False, behind_ms=0)
        # Not at the tip, and nothing found yet: a batch will find out.
        return Look(is_new=True, behind_ms=behind)

    def why_gone(self, channel: str, end: At) -> str | None:
        """Looks for the last record of a range, which goes last. An answer without records says nothing while it is
        behind the tip; who has had no other within ``timeout`` cannot tell, and a user decides."""
        if "after" not in end:
            return None
        timeout = self._source.timeout
        deadline = time.monotonic() + timeout
        try:
            answer = self._next(self._iterator(channel, end, inclusive=True))
            while not answer["Records"] and answer.get("NextShardIterator") and answer.get("MillisBehindLatest", 0):
                if time.monotonic() > deadline:
                    return f"record {end['after']} may be gone: Kinesis does not tell within timeout={timeout:g}"
                time.sleep(_PAUSE)
                answer = self._next(answer["NextShardIterator"])
            found = answer["Records"]
        except _RefusedError:
            found = []
        is_there = any(one["SequenceNumber"] == end["after"] for one in found)
        return None if is_there else f"record {end['after']} is gone: retention has removed it"

    def why_no_place(self, at: At) -> str | None:
        """Checks that sequence numbers are digits."""
        after = at.get("after", "0")
        return None if after.isdecimal() and after.isascii() and len(after) <= 128 else f"{after!r:.100} is no number"

    def client(self) -> tuple[str, Mapping[str, Any]]:
        """The client and its arguments, none of them secret."""
        return "airflow_provider_microbatch.runtime.kinesis:Shards", {
            **self._arguments,
            "stream": self._source.stream,
        }

    def secrets(self) -> Mapping[str, str]:
        """The secrets of the connection."""
        return self._access.secrets

    def origin(self, channel: str) -> tuple[str, bool]:
        """Unused: a shard is read from its oldest record."""
        raise NotImplementedError

    def push(self, position: Position) -> None:
        """Do nothing: Kinesis keeps no position."""

    def lacks(self, position: Position) -> tuple[()]:
        """None, since Kinesis keeps no position."""
        return ()

    def _now_ms(self) -> int:
        """The moment by Kinesis' clock, which stamps what arrives, in whole seconds: if the clock here is ahead, what
        arrives until Kinesis' is there would be in no batch."""
        answer = self._ask(lambda kinesis: kinesis.describe_stream_summary(StreamName=self._source.stream))
        date: str | None = answer["ResponseMetadata"]["HTTPHeaders"].get("date")
        return self._clock_ms() if date is None else round(parsedate_to_datetime(date).timestamp()) * 1000

    def _listed(self, *, max_age: float) -> _Listing:
        listed = self._held.listed
        if listed is None or time.monotonic() - listed.asked > max_age:
            asked = time.monotonic()
            shards = self._ask(self._list)
            # Behind the shards: so shards of a stream that was removed since are not taken for those of this one.
            found = self._ask(lambda kinesis: kinesis.describe_stream_summary(StreamName=self._source.stream))
            self._held.listed = listed = _Listing(asked=asked, shards=shards, summary=found["StreamDescriptionSummary"])
        return listed

    def _list(self, kinesis: Any) -> Mapping[str, Channel]:
        found: dict[str, Channel] = {}
        asked: dict[str, Any] = {"StreamName": self._source.stream}
        while True:
            answer = kinesis.list_shards(**asked)
            for shard in answer["Shards"]:
                parents = (shard.get("ParentShardId"), shard.get("AdjacentParentShardId"))
                found[shard["ShardId"]] = Channel(
                    id=shard["ShardId"],
                    parents=tuple(parent for parent in parents if parent is not None),
                    closed="EndingSequenceNumber" in shard["SequenceNumberRange"],
                )
            if answer.get("NextToken") is None:
                return found
            asked = {"NextToken": answer["NextToken"]}

    def _iterator(self, channel: str, at: At, *, inclusive: bool) -> str:
        return self._ask(lambda kinesis: iterator_of(kinesis, self._source.stream, channel, at, inclusive=inclusive))

    def _next(self, iterator: str) -> Any:
        """One request by itself: one that is refused is made again, and those before it are not."""
        return self._ask(lambda kinesis: kinesis.get_records(ShardIterator=iterator, Limit=1))

    def _ask(self, question: Callable[[Any], T]) -> T:
        """:raises SourceError: if Kinesis does not answer as it should."""
        # Create the client first: if boto3 is missing, that raises a SourceError, and the import below would not.
        held = self._held
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            with held.lock:
                return patiently(lambda: question(held.client), timeout=self._source.timeout)
        except ClientError as error:
            kind = _ERRORS.get(code_of(error), SourceError)
            raise kind(f"{self._source.location()}: Kinesis refuses: {error}") from error
        except BotoCoreError as error:
            raise SourceError(f"{self._source.location()}: Kinesis did not answer as it should: {error}") from error

    @cached_property
    def _access(self) -> Access:
        conn_id = self._source.conn_id
        return Access() if conn_id is None else Access.of_connection(self._connect(conn_id))

    @property
    def _arguments(self) -> dict[str, Any]:
        return {
            "region": self._source.region or self._access.region,
            "endpoint": self._access.endpoint,
            "timeout": self._source.timeout,
        }

    @cached_property
    def _held(self) -> _Held:
        arguments, secrets = self._arguments, self._access.secrets
        key = (__name__, self._source.stream, *arguments.values(), *sorted(secrets.items()))
        return shared(key, lambda: _opened(arguments, secrets))


class _RefusedError(SourceError):
    """Kinesis does not know such a place."""


class _ExpiredError(SourceError):
    """The iterator is too old."""


_ERRORS = {"InvalidArgumentException": _RefusedError, "ExpiredIteratorException": _ExpiredError}


@dataclass(frozen=True, kw_only=True)
class _Listing:
    """:param asked: by the monotonic clock, seconds.
    :param summary: of the stream, as Kinesis describes it.
    """

    asked: float
    shards: Mapping[str, Channel]
    summary: Mapping[str, Any]


class _Held:
    """A client, and the facts that it has learned about one stream. Only one thread at a time makes a request."""

    def __init__(self, kinesis: Any) -> None:
        self.client = kinesis
        self.lock = threading.RLock()
        self.listed: _Listing | None = None
        self.iterators: dict[str, tuple[tuple[Any, ...], str | None]] = {}


def _opened(arguments: Mapping[str, Any], secrets: Mapping[str, str]) -> tuple[_Held, Close]:
    try:
        kinesis = client(arguments, secrets)
    except Exception as error:  # an error of boto3, which may be missing, or has no region
        raise SourceError(f"no client for Kinesis can be made: {error}") from error
    return _Held(kinesis), kinesis.close
