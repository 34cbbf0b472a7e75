"""A place of a job graph that rows flow through."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_microbatch.sources import Source


@dataclass(frozen=True, kw_only=True)
class Node:
    """Made by the methods of :class:`~airflow_provider_microbatch.graph.JobGraph`, and handed to them.

    :param name: of the node in its graph.
    :param source: what it reads; None for a node of others.
    :param inputs: names of the nodes that flow into it.
    :param transform: ``path/to/file.py:function``; None passes the rows of the inputs on.
    :param partitions: how many come out of it; None if nobody says.
    :param passes: the rows come in divided like that, and pass through as they are.
    """

    name: str
    source: Source | None = None
    inputs: tuple[str, ...] = ()
    transform: str | None = None
    partitions: int | None = None
    passes: bool = False
