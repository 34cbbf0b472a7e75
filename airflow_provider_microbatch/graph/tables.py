"""One definition for many tables: each table has a pipeline, and each run lists the tables when it begins."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.key import LIVE, check_name
from airflow_provider_microbatch.exceptions import CheckpointError, DefinitionError, MicroBatchError
from airflow_provider_microbatch.execution.fire import FireDecision
from airflow_provider_microbatch.graph.pause import pause_of
from airflow_provider_microbatch.graph.watch import Ask
from airflow_provider_microbatch.pipeline import Pipeline
from airflow_provider_microbatch.sinks import Sink
from airflow_provider_microbatch.sources import Source

log = logging.getLogger(__name__)


class TableJob:
    """A job of tables that are all made alike::

        shop = TableJob(
            "shop",
            checkpoint="/data/checkpoints/shop",
            tables=folders_of("/data/landing"),
            source=lambda table: FileSource(f"/data/landing/{table}", schema=…),
            sink=lambda table: FileSink(f"/data/lake/{table}"),
        )

    A new table is read from its start. A table that disappears keeps its checkpoint, and goes on from there when it is
    back. Making a job does not list the tables, so a DAG file of two hundred tables is parsed as fast as one of a
    single table.

    :param name: name of the job.
    :param checkpoint: the address below which the checkpoints of the pipelines lie, each under its table's name.
    :param tables: the names of the tables, or a function that lists the names when a run begins.
    :param source: returns the source of a table, by the table's name.
    :param sink: returns the sink of a table, by the table's name.
    :param transform: ``path/to/file.py:function``, for all tables; its batch has one source, which bears the table's
        name.
    :param pipeline_arguments: further arguments of each
        :class:`~airflow_provider_microbatch.pipeline.Pipeline`, such as ``conf`` and ``on_failure``.
    :raises DefinitionError: for an invalid name, and for pipelines that plan by data intervals.
    """

    def __init__(
        self,
        name: str,
        *,
        checkpoint: str,
        tables: Iterable[str] | Callable[[], Iterable[str]],
        source: Callable[[str], Source],
        sink: Callable[[str], Sink],
        transform: str | None = None,
        **pipeline_arguments: Any,
    ) -> None:
        self.name = check_name(name, what="job")
        self.checkpoint = checkpoint.rstrip("/")
        if isinstance(tables, str):
            raise DefinitionError(
                f"job {name!r}: tables={tables!r} is one text; give a list of names, or what lists them."
            )
        if pipeline_arguments.get("plan", LIVE) != LIVE:
            raise DefinitionError(
                f"job {name!r}: plan={pipeline_arguments['plan']!r} does not go with tables that wait for their turn: "
                "an interval has one run, and a table that has no turn in it would never read it. Use a JobGraph."
            )
        self._tables = tables if callable(tables) else tuple(self._checked(table) for table in tables)
        self._source = source
        self._sink = sink
        self._arguments = {"transform": transform, **pipeline_arguments}

    def __str__(self) -> str:
        """A text that is the same at each parse: Airflow's serialized form of the DAG contains the text."""
        return f"job {self.name} at {self.checkpoint}"

    def pipeline(self, table: str) -> Pipeline:
        """The pipeline of a table.

        :raises DefinitionError: for an invalid name, and for all that a pipeline refuses.
        """
        self._checked(table)
        return Pipeline(
            f"{self.name}.{table}",
            checkpoint=f"{self.checkpoint}/{table}",
            sources={table: self._source(table)},
            sink=self._sink(table),
            **self._arguments,
        )

    def tables(self) -> list[str]:
        """Names of the tables that exist now, sorted. :meth:`pipeline` tells whether a name can be a pipeline's."""
        return sorted(set(self._tables() if callable(self._tables) else self._tables))

    def _checked(self, table: str) -> str:
        return check_name(table, what=f"job {self.name!r}: table")


def folders_of(path: str) -> Callable[[], list[str]]:
    """A function that lists the tables of a landing folder: each folder in it is a table, unless the name begins with a
    dot or an underscore, which marks a folder that readers pass over.

    :param path: the landing folder.
    """

    def list_them() -> list[str]:
        folder = Path(path)
        if not folder.is_dir():
            raise DefinitionError(f"there is no folder {path!r} to find tables in.")
        return [one.name for one in folder.iterdir() if one.is_dir() and not one.name.startswith(("_", "."))]

    return list_them


def due(
    pipelines: Sequence[tuple[Pipeline, Checkpoint]],
    *,
    ask: Ask,
    at_most: int,
    retry_seconds: float,
    was_cleared: bool = False,
) -> list[Pipeline]:
    """The pipelines that have a batch to make; the pipeline that has been without a batch for longest comes first. With
    more tables than may run at once each table has its turn, and a table that is always busy holds up no other.

    Pipelines that cannot be asked come last, and take no other pipeline's turn: their tasks fail at once, and tell why.
    All pipelines that have a batch of the asking run are returned, before any other: a user who clears the run wants
    just these batches again, and no later run would make them.

    :param pipelines: each with its checkpoint.
    :param ask: asks whether a pipeline has work.
    :param at_most: most pipelines to return, unless more have a batch of the asking run; likewise the most of those
        that cannot be asked.
    :param retry_seconds: the first pause of a pipeline whose batch failed, in seconds. A pipeline with a pause is
        returned too, behind all that have work: its task fails at once, and shows that the table stands still.
    :param was_cleared: the asking run was cleared, and waits for no pause.
    """
    found: list[tuple[bool, bool, float, str, Pipeline]] = []
    unasked: list[Pipeline] = []
    for pipeline, checkpoint in pipelines:
        try:
            waits = not was_cleared and pause_of(checkpoint, first_seconds=retry_seconds) is not None
            decision = FireDecision(fire=True, reason="") if waits else ask(pipeline, None)
        except (MicroBatchError, OSError) as error:
            log.warning("Pipeline %s cannot be asked: %s", pipeline.name, error)
            unasked.append(pipeline)
            continue
        if decision.fire:
            found.append((not decision.own, waits, -_idle_seconds(checkpoint), pipeline.name, pipeline))
    found.sort(key=lambda one: one[:4])
    own = sum(not of_another for of_another, *_ in found)
    return [*(pipeline for *_, pipeline in found[: max(at_most, own)]), *unasked[:at_most]]


def _idle_seconds(checkpoint: Checkpoint) -> float:
    """Seconds since the newest batch was committed; infinite if no batch was committed, or the log cannot be read."""
    try:
        log = checkpoint.lane(LIVE).commit_log
        newest = log.latest_id()
        return math.inf if newest is None else log.age_seconds(newest)
    except (CheckpointError, OSError):
        return math.inf
