"""Split a job graph into its connected parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from airflow_provider_microbatch.exceptions import DefinitionError
from airflow_provider_microbatch.graph.node import Node


@dataclass(frozen=True, kw_only=True)
class Part:
    """A connected part of a graph, which becomes a pipeline.

    :param nodes: the nodes in the order in which they were written down: each after its inputs.
    :param sinks: names of the sinks, in their order, with the node that flows into each sink.
    """

    nodes: Sequence[Node]
    sinks: Mapping[str, Node]


def split(nodes: Mapping[str, Node], sinks: Mapping[str, Node], *, where: str) -> list[Part]:
    """The connected parts of a graph, in the order of their first sinks: the same for the same text.

    :param nodes: the nodes by name, each after its inputs. A node takes only nodes that exist already, so no graph can
        have a cycle.
    :param sinks: the node that flows into each sink, by the sink's name.
    :param where: the graph, for messages.
    :raises DefinitionError: for a node that flows into no sink, or if there is no sink.
    """
    if not sinks:
        raise DefinitionError(f"{where} has no sink: nothing of it would be written.")
    _check_none_is_loose(nodes, sinks, where=where)
    part_of = {name: name for name in nodes}
    for node in nodes.values():
        for other in node.inputs:
            joined, into = part_of[other], part_of[node.name]
            part_of = {name: into if part == joined else part for name, part in part_of.items()}
    parts = dict.fromkeys(part_of[node.name] for node in sinks.values())
    return [
        Part(
            nodes=[node for name, node in nodes.items() if part_of[name] == part],
            sinks={name: node for name, node in sinks.items() if part_of[node.name] == part},
        )
        for part in parts
    ]


def _check_none_is_loose(nodes: Mapping[str, Node], sinks: Mapping[str, Node], *, where: str) -> None:
    """Check that every node flows into a sink: a node that is computed and not written mostly means a sink that was
    forgotten."""
    written = {node.name for node in sinks.values()}
    for name in reversed(list(nodes)):
        if name in written:
            written.update(nodes[name].inputs)
    loose = [name for name in nodes if name not in written]
    if loose:
        raise DefinitionError(
            f"{where}: {', '.join(map(repr, loose))} flows into no sink. Give it one, or leave it out."
        )
