"""A Kinesis stream as a source: its shards are channels."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

from airflow_provider_microbatch.runtime.kinesis import SCHEMA
from airflow_provider_microbatch.sources import Source, SourceContext
from airflow_provider_microbatch.sources.arguments import moment_ms
from airflow_provider_microbatch.sources.channels import ChannelSource, Server

TRIM_HORIZON, LATEST = "trim_horizon", "latest"

_STREAM = re.compile(r"[a-zA-Z0-9_.-]{1,128}", re.ASCII)
_REGION = re.compile(r"[a-z0-9-]{1,32}", re.ASCII)


@dataclass(frozen=True)
class KinesisSource(ChannelSource):
    """Records of a stream; each is read once, and a shard's records after those of its parent shards.

    Frames have the columns ``partitionKey``, ``data`` (binary), ``stream``, ``shardId``, ``sequenceNumber`` and
    ``approximateArrivalTimestamp``. Records that the Kinesis Producer Library has aggregated are one record.

    :param stream: its name.
    :param conn_id: Airflow connection of type ``aws``: access key and secret as login and password, or in its extra;
        ``aws_session_token``, ``region_name`` and ``endpoint_url`` in its extra. None: credentials are looked up as
        boto3 does, also where Spark's executors run.
    :param region: name of the region, if neither the connection nor the environment names it.
    :param start: where the first batch begins: ``trim_horizon``, the oldest record that is there; ``latest``, as of the
        first plan; or a moment, as ISO 8601 text with its offset from UTC or as milliseconds since the epoch. A shard
        that is created later is read from its first record.
    :raises DefinitionError: for a wrong type or value, naming the field.
    """

    stream: str
    _: KW_ONLY
    conn_id: str | None = None
    region: str | None = None
    start: str | int = TRIM_HORIZON

    schema: ClassVar[str] = SCHEMA

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.stream, str) or not _STREAM.fullmatch(self.stream):
            raise self._wrong(f"{self.stream!r} is no name of a stream: letters, digits, '_', '.' and '-', at most 128")
        if self.conn_id is not None and (not isinstance(self.conn_id, str) or not self.conn_id.strip()):
            raise self._wrong(f"conn_id must be a text that is not empty, or None; not {self.conn_id!r}")
        if self.region is not None and (not isinstance(self.region, str) or not _REGION.fullmatch(self.region)):
            raise self._wrong(f"region must be the name of one, such as 'eu-central-1'; not {self.region!r}")
        self._check_start()

    def server(self, context: SourceContext) -> Server:
        """Return the stream."""
        from airflow_provider_microbatch.sources.kinesis.stream import Stream

        return Stream(self, connect=context.connect, clock_ms=context.clock_ms)

    def reads_as(self) -> Mapping[str, str | None]:
        """The reaction to records that are gone."""
        return {"on_data_loss": self.on_data_loss}

    def shares_with(self, other: Source) -> bool:
        """Whether both sources read one stream, as far as their definitions tell."""
        return isinstance(other, KinesisSource) and (self.stream, self.conn_id, self.region) == (
            other.stream,
            other.conn_id,
            other.region,
        )

    def location(self) -> str:
        """Region and stream."""
        return f"kinesis://{self.region or self.conn_id or ''}/{self.stream}"

    @property
    def begins_ms(self) -> int | None:
        """The moment at which the first batch begins, milliseconds since the epoch; None if it begins otherwise."""
        return self.start if isinstance(self.start, int) else moment_ms(self.start)

    def _check_start(self) -> None:
        start = self.start
        if start not in (TRIM_HORIZON, LATEST) and not (type(start) is int and start >= 0) and moment_ms(start) is None:
            raise self._wrong(
                f"start must be {TRIM_HORIZON!r}, {LATEST!r}, or a moment with its offset from UTC "
                f"('2026-11-21T00:00:00Z', or milliseconds since the epoch); not {start!r}"
            )
