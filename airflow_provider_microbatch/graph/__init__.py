"""Job graphs: sources, transforms, unions and sinks that are written down once, and split into pipelines.

As in SeaTunnel's engine, a job's graph is split into its connected parts, and each part is a pipeline with a checkpoint
of its own: the unit of planning, failure and restore. Two tables that flow into two sinks are two pipelines, and a
failure of one does not concern the other; two sources that meet in a union are one pipeline.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from airflow_provider_microbatch.checkpoint.key import check_name
from airflow_provider_microbatch.exceptions import DefinitionError
from airflow_provider_microbatch.flow import FlowStep, PipelineFlow, check_function, check_partitions
from airflow_provider_microbatch.graph.node import Node
from airflow_provider_microbatch.graph.split import Part, split
from airflow_provider_microbatch.graph.status import JobRunHook, check_run_hook
from airflow_provider_microbatch.pipeline import Pipeline
from airflow_provider_microbatch.sinks import Sink
from airflow_provider_microbatch.sinks.overlap import first_overlap
from airflow_provider_microbatch.sources import Source


class JobGraph:
    """A job, written down::

        with JobGraph("shop", checkpoint="/data/checkpoints/shop") as shop:
            orders = shop.source("orders", FileSource("/data/landing/orders", schema=…))
            shop.sink("orders", shop.transform(orders, "jobs/orders.py:clean"), FileSink("/data/lake/orders"))

    The end of the ``with`` block checks the whole graph. Making a graph touches no file and no connection.

    :param name: name of the job.
    :param checkpoint: the address below which the checkpoints of the pipelines lie, each under its pipeline's name.
    :param run_hooks: told when a run of the job begins and how the run ended. The hooks of the pipelines are told of
        attempts; see :class:`~airflow_provider_microbatch.graph.status.JobRunHook`.
    :param pipeline_arguments: further arguments of each
        :class:`~airflow_provider_microbatch.pipeline.Pipeline`, such as ``conf`` and ``on_failure``;
        :meth:`configure` overrides them for one pipeline.
    :raises DefinitionError: for an invalid name; when the block ends, for a source or a transform that flows nowhere,
        for two sinks that write one table, and for all that a pipeline refuses.
    """

    def __init__(
        self, name: str, *, checkpoint: str, run_hooks: Sequence[JobRunHook] = (), **pipeline_arguments: Any
    ) -> None:
        self.name = check_name(name, what="job")
        self.checkpoint = checkpoint.rstrip("/")
        self.run_hooks = tuple(run_hooks)
        for hook in self.run_hooks:
            check_run_hook(hook, where=f"job {name!r}")
        self._arguments = pipeline_arguments
        self._own_arguments: dict[str, dict[str, Any]] = {}
        self._nodes: dict[str, Node] = {}
        self._sinks: dict[str, tuple[Node, Sink, str | None]] = {}
        self._pipelines: dict[str, Pipeline] | None = None
        self._parts: dict[str, Part] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self.by_name()

    def source(self, name: str, source: Source, *, parallelism: int | None = None) -> Node:
        """Add a source to the job.

        :param name: name of the source in its pipeline; the identity of a source.
        :param parallelism: number of partitions that the source's rows are divided into; None leaves them as read.
        """
        check_name(name, what=f"{self._where}: source")
        if not isinstance(source, Source):
            raise DefinitionError(f"{self._where}: source {name!r} is a {type(source).__name__}, not a Source.")
        return self._add(Node(name=name, source=source, partitions=parallelism))

    def transform(self, *flow: Node | str, name: str | None = None, parallelism: int | None = None) -> Node:
        """Add a node for the result of a function on one or several nodes.

        :param flow: the nodes, then ``path/to/file.py:function``, relative to the DAG's bundle. The function gets a
            ``batch`` whose ``sources`` are the frames of the nodes by their names, and returns a DataFrame.
        :param name: name of the new node; by default the function's.
        :param parallelism: number of partitions that the result is divided into.
        """
        *nodes, function = flow
        checked = check_function(function, where=self._where)
        name = name or checked.rpartition(":")[2]
        return self._add(
            Node(name=name, inputs=self._own(nodes, name), transform=checked, partitions=parallelism),
        )

    def union(self, *nodes: Node, name: str | None = None, parallelism: int | None = None) -> Node:
        """Add a node for the rows of several nodes, whose columns have the same names.

        :param name: name of the new node; by default made of the names of the nodes.
        :param parallelism: number of partitions that the rows are divided into. If the rows of the nodes come in as
            many partitions already, they pass through as they are.
        """
        name = name or "_".join(node.name for node in nodes)
        inputs = self._own(nodes, name)
        if len(set(inputs)) < 2:
            raise DefinitionError(f"{self._where}: union {name!r} is of two nodes or more, each once.")
        coming = [self._nodes[one].partitions for one in inputs]
        passes = None not in coming and sum(filter(None, coming)) == parallelism
        node = Node(name=name, inputs=inputs, partitions=parallelism, passes=passes)
        return self._add(node)

    def repartition(self, node: Node, parallelism: int, *, name: str | None = None) -> Node:
        """Add a node for the rows of a node, divided into ``parallelism`` partitions.

        :param name: name of the new node; by default ``<node>_<parallelism>``.
        """
        name = name or f"{node.name}_{parallelism}"
        return self._add(Node(name=name, inputs=self._own([node], name), partitions=parallelism))

    def sink(self, name: str, node: Node, sink: Sink, *, pipeline: str | None = None) -> None:
        """Write the rows of a node into a table.

        :param name: name of the sink in its pipeline.
        :param pipeline: name of the sink's pipeline, and of the pipeline's checkpoint. By default the pipeline has the
            name of its first sink, in the order of the text; give the pipeline a name before that order changes.
        """
        check_name(name, what=f"{self._where}: sink")
        if not isinstance(sink, Sink) or sink.names:
            raise DefinitionError(f"{self._where}: sink {name!r} is a {type(sink).__name__}, not a sink of one table.")
        if name in self._sinks:
            raise DefinitionError(f"{self._where}: two sinks are called {name!r}.")
        self._check_open()
        (given,) = self._own([node], name)
        self._sinks[name] = (self._nodes[given], sink, pipeline)

    def configure(self, pipeline: str, **arguments: Any) -> None:
        """Set arguments of one pipeline, in place of the job's.

        :param pipeline: name of the pipeline: by default the name of its first sink.
        """
        self._check_open()
        self._own_arguments.setdefault(pipeline, {}).update(arguments)

    @property
    def pipelines(self) -> tuple[Pipeline, ...]:
        """The pipelines that the job splits into, in the order of their first sinks; see :meth:`by_name`."""
        return tuple(self.by_name().values())

    def by_name(self) -> dict[str, Pipeline]:
        """The pipelines by their names in the job, which the checkpoints' folders and the task groups have too.

        :raises DefinitionError: for all that the end of the ``with`` block refuses.
        """
        if self._pipelines is None:
            self._check_tables()
            given = {name: node for name, (node, _, _) in self._sinks.items()}
            for part in split(self._nodes, given, where=self._where):
                name = self._name_of(part)
                if name in self._parts:
                    one, other = (", ".join(map(repr, each.sinks)) for each in (self._parts[name], part))
                    raise DefinitionError(
                        f"{self._where}: sinks {one} and {other} have nothing in common, and both say that their "
                        f"pipeline is {name!r}. Give each part of the graph a name of its own."
                    )
                self._parts[name] = part
            unknown = sorted(set(self._own_arguments) - set(self._parts))
            if unknown:
                raise DefinitionError(
                    f"{self._where}: there is no pipeline {unknown[0]!r} to configure; there are "
                    f"{', '.join(map(repr, self._parts))}."
                )
            self._pipelines = {name: self._pipeline(name, part) for name, part in self._parts.items()}
        return dict(self._pipelines)

    def sinks_of(self, pipeline: str) -> tuple[str, ...]:
        """Names of the sinks of a pipeline."""
        self.by_name()
        return tuple(self._parts[pipeline].sinks)

    def checkpoint_of(self, pipeline: str) -> str:
        """The address of a pipeline's checkpoint."""
        return f"{self.checkpoint}/{pipeline}"

    @property
    def _where(self) -> str:
        return f"job {self.name!r}"

    def _check_open(self) -> None:
        if self._pipelines is not None:
            raise DefinitionError(
                f"{self._where} is complete: write down all of it before its pipelines are asked for."
            )

    def _add(self, node: Node) -> Node:
        self._check_open()
        check_name(node.name, what=f"{self._where}: node")
        check_partitions(node.partitions, where=f"{self._where}: {node.name!r}")
        if node.name in self._nodes:
            raise DefinitionError(f"{self._where}: two nodes are called {node.name!r}; give one another name=….")
        self._nodes[node.name] = node
        return node

    def _own(self, nodes: Sequence[object], name: str) -> tuple[str, ...]:
        """Names of the nodes that flow into the node or sink ``name``."""
        if not nodes:
            raise DefinitionError(f"{self._where}: nothing flows into {name!r}.")
        for node in nodes:
            if not isinstance(node, Node):
                raise DefinitionError(f"{self._where}: {node!r} flows into {name!r} and is no node of a graph.")
            if self._nodes.get(node.name) is not node:
                raise DefinitionError(f"{self._where}: {node.name!r}, which flows into {name!r}, is another graph's.")
        return tuple(node.name for node in nodes if isinstance(node, Node))

    def _check_tables(self) -> None:
        """Check that no two sinks write one table. A pipeline checks its own sinks; two pipelines on one table would
        each find the other's batches."""
        written = {name: sink for name, (_, sink, _) in self._sinks.items()}
        overlap = first_overlap(written)
        if overlap is not None:
            name, second = overlap
            raise DefinitionError(
                f"{self._where}: sinks {name!r} and {second!r} write to one table, or one within the other's: "
                f"{written[name].location()!r} and {written[second].location()!r}. Give each a table of its own; rows "
                "for one table are one node (union)."
            )

    def _name_of(self, part: Part) -> str:
        said = {self._sinks[name][2] for name in part.sinks} - {None}
        if len(said) > 1:
            raise DefinitionError(
                f"{self._where}: sinks {', '.join(map(repr, part.sinks))} are of one pipeline, since their rows have a "
                f"source in common, and name several: {', '.join(sorted(filter(None, said)))}."
            )
        return check_name(next(iter(said), None) or next(iter(part.sinks)), what=f"{self._where}: pipeline")

    def _pipeline(self, name: str, part: Part) -> Pipeline:
        sinks = {sink: self._sinks[sink][1] for sink in part.sinks}
        only = next(iter(sinks.values())) if len(sinks) == 1 else None
        return Pipeline(
            f"{self.name}.{name}",
            checkpoint=self.checkpoint_of(name),
            sources={node.name: node.source for node in part.nodes if node.source is not None},
            transform=_flow_of(part),
            **({"sinks": sinks} if only is None else {"sink": only}),
            **{**self._arguments, **self._own_arguments.get(name, {})},
        )


def _flow_of(part: Part) -> str | PipelineFlow | None:
    """The flow between the sources and sinks of a part. A single function for a single sink, or no function, takes the
    form that a user writes by hand."""
    sources = [node for node in part.nodes if node.source is not None]
    steps = [node for node in part.nodes if node.source is None]
    partitions = {node.name: node.partitions for node in sources if node.partitions is not None}
    if len(part.sinks) == 1 and not partitions:
        if not steps and len(sources) == 1:
            return None
        if len(steps) == 1 and steps[0].transform is not None and steps[0].partitions is None:
            return steps[0].transform
    made = [
        FlowStep(node.name, node.inputs, transform=node.transform, partitions=None if node.passes else node.partitions)
        for node in steps
    ]
    given = {sink: node.name for sink, node in part.sinks.items()}
    outputs = given if len(given) > 1 else {"": next(iter(given.values()))}
    return PipelineFlow(made, outputs, partitions=partitions)
