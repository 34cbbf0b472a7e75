"""The plan of one attempt, as a file that the driver reads (JSON, UTF-8).

The job says exactly which ranges to read, what to call, and where to write. It never holds a secret.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_microbatch.runtime.checks import Checks
from airflow_provider_microbatch.runtime.requirements import NOTHING as NOTHING
from airflow_provider_microbatch.runtime.requirements import Requirements as Requirements
from airflow_provider_microbatch.runtime.streaming_job import Streaming

JOB_VERSION = 5
"""A runtime of version 1, as in a warm server that was started earlier, leaves manifests that cannot be published."""


@dataclass(frozen=True, kw_only=True)
class Read:
    """How the runtime reads one source's range.

    :param reader: ``module:function``; called as ``function(spark, arguments)``, returns a
        :class:`~airflow_provider_microbatch.runtime.files.ReadResult`-like object: ``frame`` (a DataFrame) and
        ``learned`` (a dict of JSON values handed back to the source's planning half, or empty) among others.
    :param arguments: JSON values.
    :param requires: what the reader needs.
    :param amount: the size of the range, for people; empty if unknown.
    :param joins: ``module:function``; called with a list of what the readers of all splits of a range told, returns
        what a reader of the whole range would have told. Empty: nothing is told of a range that is read by splits.
    """

    reader: str
    arguments: Mapping[str, Any]
    requires: Requirements = NOTHING
    amount: str = ""
    joins: str = ""


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Where and how the runtime writes one attempt.

    :param writer: ``module:function``; called as ``function(frame, arguments)``.
    :param arguments: JSON values; ``path`` and ``format`` at least for file sinks. ``needed`` and ``delete_when`` of
        rows that are changes: see :class:`~airflow_provider_microbatch.runtime.changes.Changes`.
    :param report: folder, in Spark's form, into which Spark writes the manifest, result or traceback.
    :param reserved_columns: columns that the user's frame must not have.
    :param fence: a file, in Spark's form, that exists once a later attempt has fenced this attempt; None if the sink
        mirrors no fence.
    :param requires: what the writer needs.
    """

    writer: str
    arguments: Mapping[str, Any]
    report: str
    reserved_columns: tuple[str, ...] = ()
    fence: str | None = None
    requires: Requirements = NOTHING


@dataclass(frozen=True, kw_only=True)
class Subtask:
    """A split of the batch's only source that is read, transformed and written by itself, into a folder below the
    stage, with its own manifest.

    :param name: name of the folder: the same for each attempt that reads the same split in the same way.
    :param split: the split's id, as its source gives it; for people.
    :param source: name of the source.
    :param read: how the split is read.
    :param stage: where the subtask's output goes.
    :param made_of: a digest of the other things that determine the output: the plan, the code, the settings.
    :param done: ``{"result", "files"}`` of the manifest of an earlier attempt that finished the subtask, whose output
        exists. None if the subtask is still to run.
    """

    name: str
    split: str
    source: str
    read: Read
    stage: Stage
    made_of: str
    done: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class Transform:
    """The user's function.

    :param module: importable on the driver; its file travels with ``--py-files``.
    :param function: name in the module. Called with a :class:`~airflow_provider_microbatch.runtime.batch.Batch`.
    """

    module: str
    function: str


@dataclass(frozen=True, kw_only=True)
class FlowNode:
    """One node of a :class:`Flow`.

    :param name: name of the node's frame for the nodes behind it; no other node and no source has this name.
    :param inputs: names of sources, and of earlier nodes, that flow into this node.
    :param transform: called with a batch whose ``sources`` are the inputs' frames; None passes the rows on, those of
        several inputs as their union.
    :param partitions: number of partitions into which the result is repartitioned; None leaves the result as it is.
    """

    name: str
    inputs: tuple[str, ...]
    transform: Transform | None = None
    partitions: int | None = None


@dataclass(frozen=True, kw_only=True)
class Flow:
    """A graph of nodes that turns the sources' frames into the stages' frames, in place of one function.

    :param nodes: the nodes, each after its inputs.
    :param outputs: the source or node whose frame is written, by the name of the stage.
    :param partitions: by the name of a source, the number of partitions into which its frame is repartitioned before
        any node takes it.
    """

    nodes: tuple[FlowNode, ...]
    outputs: Mapping[str, str]
    partitions: Mapping[str, int] = field(default_factory=dict)

    def divided(self, parallelism: Mapping[str, int]) -> Flow:
        """The flow with the parallelism that the batch was planned with, by the names of sources and nodes: the code
        may have changed since, and a retry or a replay divides the rows as the first attempt did."""
        nodes = tuple(dataclasses.replace(node, partitions=parallelism.get(node.name)) for node in self.nodes)
        own = {node.name for node in nodes}
        partitions = {name: count for name, count in parallelism.items() if name not in own}
        return dataclasses.replace(self, nodes=nodes, partitions=partitions)


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
    :param sources: the reads by source name; empty where subtasks read the only source. Of a stateful pipeline the
        reads whose rows are copied before Spark streams them.
    :param stages: where to write, by the name under which the transform returns the frame for the stage; the only stage
        of a pipeline with a single sink has the empty name.
    :param absent: for sources that have no frame in this batch, the reason by name: they have had no data yet, and have
        no schema.
    :param identity: the identity of the batch, as JSON values that the manifest repeats.
    :param subtasks: the subtasks of a batch that is run split by split, in order; the only stage consists of their
        output.
    :param streaming: how a stateful batch is run, with the sources that Spark streams from where they are.
    :param checks: which rows the tables must not get; None if they get all rows.
    """

    pipeline: str
    lane: str
    batch_id: int
    epoch: int
    batch_timestamp_ms: int
    watermark_ms: int
    sources: Mapping[str, Read]
    stages: Mapping[str, Stage]
    transform: Transform | Flow | None = None
    conf: Mapping[str, str] = field(default_factory=dict)
    absent: Mapping[str, str] = field(default_factory=dict)
    identity: Mapping[str, Any] = field(default_factory=dict)
    subtasks: tuple[Subtask, ...] = ()
    streaming: Streaming | None = None
    checks: Checks | None = None

    @property
    def tables(self) -> dict[str, Stage]:
        """The stages whose rows the transform returns: all but the stage of the dead letters."""
        letters = None if self.checks is None else self.checks.letters
        return {name: stage for name, stage in self.stages.items() if name != letters}

    @property
    def stage(self) -> Stage:
        """The first stage: the job writes its failure there, and looks there for its fence."""
        return next(iter(self.stages.values()))

    @property
    def requires(self) -> Requirements:
        """The requirements of all readers and writers of the job."""
        found = NOTHING
        for stage in self.stages.values():
            found |= stage.requires
        streams = self.streaming.sources.values() if self.streaming is not None else ()
        for read in (*self.sources.values(), *streams, *(subtask.read for subtask in self.subtasks)):
            found |= read.requires
        return found

    def alone(self, subtask: Subtask) -> Job:
        """The job that runs one subtask alone."""
        return dataclasses.replace(
            self, sources={subtask.source: subtask.read}, stages={"": subtask.stage}, subtasks=()
        )

    def to_json(self) -> str:
        """The job as a JSON text."""
        values = {"version": JOB_VERSION, **dataclasses.asdict(self)}
        for name in ("streaming", "checks"):
            if values[name] is None:
                del values[name]  # left out where unused, so that an older warm server still runs the job
        if not values.get("checks", {}).get("intakes", True):
            del values["checks"]["intakes"]  # likewise
        return json.dumps(values, ensure_ascii=False)

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
        transform, sources, stages, subtasks = (
            data.pop(name) for name in ("transform", "sources", "stages", "subtasks")
        )
        streaming, checks = data.pop("streaming", None), data.pop("checks", None)
        return cls(
            **data,
            checks=Checks.from_values(checks) if checks else None,
            streaming=Streaming.from_values(streaming) if streaming else None,
            sources={name: _read(read) for name, read in sources.items()},
            stages={name: _stage(stage) for name, stage in stages.items()},
            transform=_transform(transform) if transform else None,
            subtasks=tuple(
                Subtask(**{**subtask, "read": _read(subtask["read"]), "stage": _stage(subtask["stage"])})
                for subtask in subtasks
            ),
        )


def _transform(values: Mapping[str, Any]) -> Transform | Flow:
    if "nodes" not in values:
        return Transform(**values)
    nodes = (
        FlowNode(
            name=node["name"],
            inputs=tuple(node["inputs"]),
            transform=Transform(**node["transform"]) if node["transform"] else None,
            partitions=node["partitions"],
        )
        for node in values["nodes"]
    )
    return Flow(nodes=tuple(nodes), outputs=values["outputs"], partitions=values["partitions"])


def _read(values: Mapping[str, Any]) -> Read:
    return Read(**_revived(values))


def _stage(values: Mapping[str, Any]) -> Stage:
    return Stage(**{**_revived(values), "reserved_columns": tuple(values["reserved_columns"])})


def _revived(values: Mapping[str, Any]) -> dict[str, Any]:
    return {**values, "requires": Requirements.from_values(values["requires"])}
