"""The plan of one attempt, as a file that the driver reads (JSON, UTF-8).

It says exactly which ranges to read, what to call, and where to write. It never holds a secret.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

JOB_VERSION = 2
"""A runtime of version 1, as a server that was started before has it, leaves manifests that nobody could publish."""


@dataclass(frozen=True, kw_only=True)
class Read:
    """How the runtime reads one source's range.

    :param reader: ``module:function``; called as ``function(spark, arguments)``, returns a
        :class:`~airflow_provider_microbatch.runtime.files.ReadResult`-like object: ``frame`` (a DataFrame) and
        ``learned`` (a dict of JSON values handed back to the source's planning half, or empty) among others.
    :param arguments: JSON values.
    """

    reader: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Where and how the runtime writes one attempt.

    :param writer: ``module:function``; called as ``function(frame, arguments)``.
    :param arguments: JSON values; ``path`` and ``format`` at least for file sinks.
    :param report: folder, in Spark's form, into which manifest, result or traceback are written by Spark.
    :param reserved_columns: columns that the user's frame must not have.
    :param fence: a file, in Spark's form, that is there once a later attempt has fenced this one; None if the sink
        mirrors no fence.
    """

    writer: str
    arguments: Mapping[str, Any]
    report: str
    reserved_columns: tuple[str, ...] = ()
    fence: str | None = None


@dataclass(frozen=True, kw_only=True)
class Transform:
    """The user's function.

    :param module: importable on the driver; its file travels with ``--py-files``.
    :param function: name in the module. Called with a :class:`~airflow_provider_microbatch.runtime.batch.Batch`.
    """

    module: str
    function: str


@dataclass(frozen=True, kw_only=True)
class Job:
    """One attempt of one planned batch. Times are milliseconds since the epoch, UTC.

    :param pipeline: name of the pipeline.
    :param lane: lane of the batch.
    :param batch_id: id of the batch in its lane.
    :param epoch: the attempt.
    :param batch_timestamp_ms: pinned in the offset log.
    :param watermark_ms: pinned in the offset log.
    :param conf: pinned SQL settings, set on the session before anything is read.
    :param transform: None passes a single source through as it is.
    :param sources: by name.
    :param stage: where to write.
    :param absent: sources that have no frame in this batch, by name, and why: they have had no data yet, and no schema.
    :param identity: whose batch it is, as JSON values that the manifest repeats.
    """

    pipeline: str
    lane: str
    batch_id: int
    epoch: int
    batch_timestamp_ms: int
    watermark_ms: int
    sources: Mapping[str, Read]
    stage: Stage
    transform: Transform | None = None
    conf: Mapping[str, str] = field(default_factory=dict)
    absent: Mapping[str, str] = field(default_factory=dict)
    identity: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        """The job as a JSON text."""
        return json.dumps({"version": JOB_VERSION, **dataclasses.asdict(self)}, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Job:
        """Read what :meth:`to_json` wrote.

        :raises ValueError: for another version: the shipped runtime and the orchestrator differ.
        """
        data = json.loads(text)
        version = data.pop("version", None)
        if version != JOB_VERSION:
            raise ValueError(
                f"job file of version {version}; this runtime reads version {JOB_VERSION}. If a warm engine runs, stop "
                "it and start it again with the package that the task has"
            )
        transform = data.pop("transform")
        stage = data.pop("stage")
        stage["reserved_columns"] = tuple(stage["reserved_columns"])
        return cls(
            **{**data, "sources": {name: Read(**read) for name, read in data["sources"].items()}},
            stage=Stage(**stage),
            transform=Transform(**transform) if transform else None,
        )
