"""Runs a flow of transforms, unions and repartitions, which takes a batch's frames from its sources to its sinks in
place of a single function, as a pipeline of a job graph needs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import reduce
from typing import TYPE_CHECKING, Any

from airflow_provider_microbatch.runtime.batch import Batch, Frames
from airflow_provider_microbatch.runtime.job import Flow, FlowNode

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Call = Callable[[FlowNode, Batch], "DataFrame"]
"""Calls the transform of a node with the batch that the node is given."""


def run_flow(flow: Flow, batch: Batch, call: Call) -> dict[str, DataFrame]:
    """The frame for each stage, by the stage's name. A stage has none if no input of it has a frame in this batch: its
    sources have never had data, and no schema is known for them.

    :param flow: nodes in an order in which each node follows its inputs.
    :param batch: with a frame for each source.
    :param call: calls a transform.
    """
    found = {name: _divided(frame, flow.partitions.get(name)) for name, frame in batch.sources.items()}
    absent: dict[str, str] = dict(batch.sources.absent) if isinstance(batch.sources, Frames) else {}
    for node in flow.nodes:
        given = {name: found[name] for name in node.inputs if name in found}
        without = {name: absent[name] for name in node.inputs if name in absent}
        if not given:
            absent[node.name] = " ".join(without.values())
            continue
        frame = _union(given) if node.transform is None else call(node, _given(batch, given, without))
        found[node.name] = _divided(frame, node.partitions)
    return {stage: found[name] for stage, name in flow.outputs.items() if name in found}


def _divided(frame: DataFrame, partitions: int | None) -> DataFrame:
    return frame if partitions is None else frame.repartition(partitions)


def _union(frames: Mapping[str, DataFrame]) -> DataFrame:
    """Union the frames by column name: columns of two sources are seldom in one order. A column that a frame lacks is
    an error of Spark."""
    return reduce(lambda one, other: one.unionByName(other), frames.values())


def _given(batch: Batch, frames: Mapping[str, Any], absent: Mapping[str, str]) -> Batch:
    """The batch as a transform in the flow sees it: its sources are the inputs of the node. A request for another batch
    counts for the whole batch."""
    sources = Frames(absent=absent)
    sources.update(frames)
    return dataclasses.replace(batch, sources=sources)
