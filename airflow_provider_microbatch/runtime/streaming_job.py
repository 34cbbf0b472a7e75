"""The part of a job that an attempt of a stateful batch needs: which streams to open, and from which state to
continue."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_microbatch.runtime.requirements import NOTHING, Requirements


@dataclass(frozen=True, kw_only=True)
class Stream:
    """How the runtime opens one source as a stream, and the planned range in the form of Spark's own source.

    :param reader: ``module:function``; called as ``function(spark, arguments)``, returns a streaming DataFrame reader's
        frame. The option :data:`SOURCE` names the source in the query's plan.
    :param arguments: JSON values.
    :param start: where the range begins, in the form of an offset entry; None before anything.
    :param end: where the range ends.
    :param log: entries of the source's own log that Spark looks for, by file name.
    :param told: values about the read for the source's planning half, as in :class:`~.files.ReadResult`.
    :param requires: what the reader needs.
    """

    reader: str
    arguments: Mapping[str, Any]
    start: str | None
    end: str | None
    log: Mapping[str, str] = field(default_factory=dict)
    told: Mapping[str, Any] = field(default_factory=dict)
    requires: Requirements = NOTHING


@dataclass(frozen=True, kw_only=True)
class Streaming:
    """Has Spark's streaming engine run exactly the planned batch, by a checkpoint folder of the attempt's own.

    :param folder: the attempt's own folder, in the orchestrator's and the driver's file system; must not exist yet.
    :param state: the folder that all attempts share: each attempt writes files there under its own ids. Of a bounded
        batch a folder below ``folder``, which ends with the attempt.
    :param query_id: Spark's query id.
    :param output_mode: Spark's output mode, ``append`` or ``update``.
    :param sources: the sources that Spark streams from where they are, by name; for :func:`~.streaming.run_query` also
        those whose rows were copied.
    :param before: the state that the batch continues from, as the attempt of the batch before has told it (``ids``,
        ``conf``, ``nextWatermarkMs``, ``watermarks``, ``timed``, ``places``, ``columns``, ``outputMode``,
        ``sparkVersion``, and, if a streaming query kept the state earlier, ``since``: our first batch, which uploads a
        full snapshot); None for the first batch, which begins with empty state.
    :param late_ms: the watermark of the batch before, milliseconds since the epoch. Rows behind it are late; those that
        are behind the batch's own watermark alone are not.
    :param bounded: nothing comes after the batch, which begins with empty state: what waits for the watermark is final
        at its end, and its state is left to no other batch.
    """

    folder: str
    state: str
    query_id: str
    output_mode: str
    sources: Mapping[str, Stream]
    before: Mapping[str, Any] | None = None
    late_ms: int = 0
    bounded: bool = False

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> Streaming:
        """Restore the object from the JSON values of a job."""
        sources = {
            name: Stream(**{**stream, "requires": Requirements.from_values(stream["requires"])})
            for name, stream in values["sources"].items()
        }
        return cls(**{**values, "sources": sources})
