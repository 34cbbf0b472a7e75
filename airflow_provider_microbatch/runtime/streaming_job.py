"""What an attempt of a stateful batch is told beside its job: which streams to open, and from which state to go on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Stream:
    """How the runtime opens one source as a stream, and the planned range in the words of Spark's own source.

    :param reader: ``module:function``; called as ``function(spark, arguments)``, returns a streaming DataFrame reader's
        frame. The option :data:`SOURCE` names the source in the query's plan.
    :param arguments: JSON values.
    :param start: where the range begins, as the entry before the batch's would say; None before anything.
    :param end: where it ends.
    :param log: entries of the source's own log that Spark looks for, by file name.
    :param told: what the source's planning half is told of the read, as of :class:`~.files.ReadResult`.
    """

    reader: str
    arguments: Mapping[str, Any]
    start: str | None
    end: str | None
    log: Mapping[str, str] = field(default_factory=dict)
    told: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Streaming:
    """Has Spark's streaming engine run exactly the planned batch, by a checkpoint folder of the attempt's own.

    :param folder: of the attempt alone, in the orchestrator's and the driver's file system; not there yet.
    :param state: the folder that all attempts share: each writes files under ids of its own there.
    :param query_id: Spark's query id.
    :param output_mode: Spark's, ``append`` or ``update``.
    :param sources: by name.
    :param before: what the batch goes on from, as the attempt that made the batch before has told (``ids``, ``conf``,
        ``nextWatermarkMs``, and ``since``: where a streaming query has kept the state before, our first batch, which
        uploads a whole snapshot); None for the first one, which begins with empty state.
    """

    folder: str
    state: str
    query_id: str
    output_mode: str
    sources: Mapping[str, Stream]
    before: Mapping[str, Any] | None = None

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> Streaming:
        """Of the JSON values that a job has of it."""
        sources = {name: Stream(**stream) for name, stream in values["sources"].items()}
        return cls(**{**values, "sources": sources})
