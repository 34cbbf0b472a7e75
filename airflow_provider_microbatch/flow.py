"""The flow of a job graph's pipeline between its sources and its sinks, as plain data: transforms, unions and
repartitions. A pipeline that a user writes by hand has one function in this place."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field

from airflow_provider_microbatch.checkpoint.key import check_name
from airflow_provider_microbatch.definition import Definition
from airflow_provider_microbatch.exceptions import DefinitionError


def check_function(transform: object, *, where: str) -> str:
    """:return: the transform.
    :raises DefinitionError: if the transform is not of the form ``path/to/file.py:function``.
    """
    path, _, function = transform.rpartition(":") if isinstance(transform, str) else ("", "", "")
    if not path.endswith(".py") or not function.isidentifier():
        raise DefinitionError(f"{where}: transform {transform!r} is not of the form 'path/to/file.py:function'.")
    return str(transform)


@dataclass(frozen=True)
class FlowStep(Definition):
    """One step of a flow.

    :param name: name of the frame that this step passes on; no source of the pipeline has the same name.
    :param inputs: names of sources, and of steps before this one.
    :param transform: ``path/to/file.py:function``; None passes the rows on, the rows of several inputs as a union.
    :param partitions: number of partitions that the result is repartitioned into; None leaves the result as it is.
    :raises DefinitionError: for a wrong type or value.
    """

    name: str
    inputs: Sequence[str]
    _: KW_ONLY
    transform: str | None = None
    partitions: int | None = None

    def __post_init__(self) -> None:
        where = f"{check_name(self.name, what='transform')!r}"
        if isinstance(self.inputs, str) or not self.inputs:
            raise DefinitionError(f"{where} has no inputs: name a source or another step.")
        object.__setattr__(self, "inputs", tuple(self.inputs))
        if self.transform is not None:
            check_function(self.transform, where=where)
        check_partitions(self.partitions, where=where)


@dataclass(frozen=True)
class PipelineFlow(Definition):
    """A flow, which takes the place of a pipeline's transform.

    :param steps: the steps, each after its inputs.
    :param outputs: the source or step whose frame a sink gets, by the sink's name; by the empty name for the only sink
        of a pipeline.
    :param partitions: number of partitions that the rows of a source are divided into before any step reads them, by
        the source's name.
    :raises DefinitionError: for a wrong type or value.
    """

    steps: Sequence[FlowStep]
    outputs: Mapping[str, str]
    _: KW_ONLY
    partitions: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "steps", tuple(self.steps))
        if not all(isinstance(step, FlowStep) for step in self.steps) or not self.outputs:
            raise DefinitionError("a flow is made of steps, and has at least one output.")
        for name, partitions in self.partitions.items():
            check_partitions(partitions, where=f"source {name!r}")

    def __str__(self) -> str:
        """The functions of the flow, as logs and records name the code of an attempt."""
        return ", ".join(self.functions) or "a flow without a function"

    @property
    def functions(self) -> tuple[str, ...]:
        """The transforms' functions, each once, in order."""
        return tuple(dict.fromkeys(step.transform for step in self.steps if step.transform is not None))

    @property
    def parallelism(self) -> dict[str, int]:
        """Numbers of partitions that rows are divided into, by the name of the source or step."""
        steps = {step.name: step.partitions for step in self.steps if step.partitions is not None}
        return {**self.partitions, **steps}

    def check(self, *, sources: Collection[str], sinks: Collection[str], where: str) -> None:
        """Check that the flow leads from these sources to these sinks.

        :raises DefinitionError: if the flow does not, with the name in question.
        """
        known = set(sources)
        if not known.issuperset(self.partitions):
            raise DefinitionError(f"{where}: {sorted(set(self.partitions) - known)} are divided and are no sources.")
        for step in self.steps:
            missing = [name for name in step.inputs if name not in known]
            if missing:
                raise DefinitionError(f"{where}: {missing[0]!r} flows into {step.name!r} and is not there before it.")
            if step.name in known:
                raise DefinitionError(f"{where}: two are called {step.name!r}, and each has a frame of its own.")
            known.add(step.name)
        for sink, name in self.outputs.items():
            if name not in known:
                raise DefinitionError(f"{where}: sink {sink!r} is given {name!r}, which is not there.")
        if set(self.outputs) != set(sinks or [""]):
            raise DefinitionError(f"{where}: the flow ends in {sorted(self.outputs)}, the sinks are {sorted(sinks)}.")


def check_partitions(partitions: object, *, where: str) -> None:
    """:raises DefinitionError: if ``partitions`` is neither None nor a number from 1 on."""
    if partitions is not None and (type(partitions) is not int or partitions < 1):
        raise DefinitionError(f"{where}: into {partitions!r} partitions nothing can be divided; say 1 or more.")
