"""A node of a job graph, which rows flow through."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_microbatch.sources import Source


@dataclass(frozen=True, kw_only=True)
class Node:
    """A node, which the methods of :class:`~airflow_provider_microbatch.graph.JobGraph` return and take.

    :param name: name of the node in its graph.
    :param source: the source that the node reads; None for a node that has other nodes as inputs.
    :param inputs: names of the nodes that flow into this node.
    :param transform: ``path/to/file.py:function``; None passes the rows of the inputs on.
    :param partitions: number of partitions that come out of the node; None if the user gives no number.
    :param passes: the rows come in as so many partitions already, and pass through as they are.
    """

    name: str
    source: Source | None = None
    inputs: tuple[str, ...] = ()
    transform: str | None = None
    partitions: int | None = None
    passes: bool = False
