"""What becomes of a batch's frames between its sources and its sinks, where one function does not say it all: a flow of
transforms, unions and repartitions, as a pipeline of a job graph has it."""

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
"""Calls the function of a node with what it is given."""


def run_flow(flow: Flow, batch: Batch, call: Call) -> dict[str, DataFrame]:
    """The frame for each stage, by its name. A stage has none if nothing that flows into it has a frame in this batch:
    its sources have never had data, and nobody knows a schema of none.

    :param flow: nodes in an order in which each comes after what flows into it.
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
    """By name: columns of two sources are seldom in one order. A column that one of them lacks is an error of Spark."""
    return reduce(lambda one, other: one.unionByName(other), frames.values())


def _given(batch: Batch, frames: Mapping[str, Any], absent: Mapping[str, str]) -> Batch:
    """The batch as a transform in the flow sees it: in the place of the sources is what flows into it. A wish for
    another batch is the whole batch's."""
    sources = Frames(absent=absent)
    sources.update(frames)
    return dataclasses.replace(batch, sources=sources)
