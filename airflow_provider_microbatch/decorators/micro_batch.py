"""``@task.micro_batch``: a task that is written as the transform of its micro-batch."""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk.bases.decorator import DecoratedOperator, TaskDecorator, task_decorator_factory

from airflow_provider_microbatch.engines.code import resolve_code
from airflow_provider_microbatch.exceptions import DefinitionError
from airflow_provider_microbatch.execution.engine import Code
from airflow_provider_microbatch.operators.micro_batch import MicroBatchOperator, check_pipeline
from airflow_provider_microbatch.pipeline import Pipeline
from airflow_provider_microbatch.runtime.job import Flow, Transform
from airflow_provider_microbatch.task_context.run_context import bundle_of

if TYPE_CHECKING:
    from airflow.sdk import Context


class MicroBatchDecoratedOperator(DecoratedOperator, MicroBatchOperator):
    """A :class:`~airflow_provider_microbatch.operators.micro_batch.MicroBatchOperator` whose transform is the decorated
    function.

    The source of the function travels to the driver, as with ``@task.virtualenv``: the function has to import itself
    what it needs, since nothing else of the DAG file travels with it.

    :param python_callable: ``def name(batch) -> DataFrame``.
    :param pipeline: a pipeline without a transform of its own.
    :param op_args: nothing: the function gets the batch.
    :param op_kwargs: nothing.
    """

    template_fields: Sequence[str] = MicroBatchOperator.template_fields
    template_fields_renderers: ClassVar[dict[str, str]] = {}
    custom_operator_name: str = "@task.micro_batch"

    def __init__(
        self,
        *,
        python_callable: Callable[..., Any],
        pipeline: Pipeline,
        op_args: Collection[Any] | None = None,
        op_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        name = python_callable.__name__
        where = f"@task.micro_batch {name!r}"
        if op_args or op_kwargs:
            raise DefinitionError(f"{where} is called without arguments; Spark calls it with the batch.")
        if check_pipeline(pipeline, operator=where).transform is not None:
            raise DefinitionError(f"{where}: leave out the pipeline's transform {pipeline.transform!r}.")
        self.python_callable = python_callable
        self._source = self.get_python_source()  # type: ignore[no-untyped-call]
        definition = ast.parse(self._source).body[0]
        if not isinstance(definition, ast.FunctionDef) or definition.decorator_list:
            raise DefinitionError(f"{where} must be a plain function with this one decorator.")
        digest = hashlib.sha256(self._source.encode()).hexdigest()
        self._file = f"microbatch_transform_{digest[:16]}.py"
        self._folder = Path()
        super().__init__(
            python_callable=python_callable,
            # A placeholder for the parameter, which Airflow binds at parse: the batch exists in Spark only.
            op_args=(None,),
            pipeline=dataclasses.replace(pipeline, transform=f"{self._file}:{name}"),
            **kwargs,
        )

    def execute(self, context: Context) -> dict[str, Any]:
        """Make one batch; the function travels as a module of its own."""
        with tempfile.TemporaryDirectory(prefix="microbatch-transform-") as folder:
            Path(folder, self._file).write_text(self._source, encoding="utf-8")
            self._folder = Path(folder)
            return MicroBatchOperator.execute(self, context)

    def code(self, context: Context) -> tuple[Code, Transform | Flow | None]:
        """The function's module, and the files that the pipeline names."""
        name, version, folder = bundle_of(context)
        return resolve_code(
            self.pipeline.transform,
            base=self._folder,
            py_files=[str(folder / path) for path in self.pipeline.py_files],
            bundle_name=name,
            bundle_version=version,
        )


def micro_batch_task(python_callable: Callable[..., Any] | None = None, **kwargs: Any) -> TaskDecorator:
    """Make a function the transform of a micro-batch task. Entry point of ``@task.micro_batch``.

    :param python_callable: the function.
    :param kwargs: arguments of :class:`~airflow_provider_microbatch.operators.micro_batch.MicroBatchOperator`.
    """
    return task_decorator_factory(
        python_callable=python_callable, decorated_operator_class=MicroBatchDecoratedOperator, **kwargs
    )
