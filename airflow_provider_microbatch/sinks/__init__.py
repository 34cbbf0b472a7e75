"""Sinks: where batches are published. One module per system, loaded when used.

An attempt writes into a stage of its own; :meth:`Sink.publish` makes it visible in one atomic step and may be called
twice. Readers of the sink never see a stage.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.definition import Definition
from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.runtime.job import Stage


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What an attempt wrote; travels with the data when it is published.

    :param key: the batch.
    :param epoch: the attempt.
    :param files: path relative to the batch's folder → bytes.
    :param result: the runtime's result (``numInputRows`` by source, ``numOutputRows``, ``durationMs`` by phase, …).
    """

    key: BatchKey
    epoch: int
    files: Mapping[str, int] = field(default_factory=dict)
    result: Mapping[str, Any] = field(default_factory=dict)


class Sink(Definition, ABC):
    """Definition of a sink, and what the orchestrator does with it. Nothing is touched by the constructor."""

    @abstractmethod
    def location(self) -> str:
        """The table's address, in Spark's form, for messages and tables."""

    @abstractmethod
    def check(self) -> None:
        """Raise :class:`~airflow_provider_microbatch.exceptions.SinkError` if the sink cannot be written at all."""

    def admits(self, key: BatchKey) -> bool:
        """Whether the batch may be planned, or run, as the sink is now; asked before anything is written.

        :return: False if the sink has all it will take: nothing is done then, and nothing has failed.
        :raises SinkError: if the batch could only fail.
        """
        return True

    def of_pipeline(self, pipeline: str) -> Self:
        """The sink as that pipeline's; a sink whose marks name their owner keeps the name."""
        return self

    def hooks(self) -> Sequence[Definition]:
        """Job status hooks that the sink needs; the pipeline tells them before its own."""
        return ()

    @abstractmethod
    def stage(self, key: BatchKey, epoch: int) -> Stage:
        """Where and how the runtime writes this attempt. A pure function."""

    @abstractmethod
    def manifest(self, key: BatchKey, epoch: int) -> Manifest | None:
        """The manifest of a stage that was written to its end; None if it was not."""

    @abstractmethod
    def failure(self, key: BatchKey, epoch: int) -> Mapping[str, Any] | None:
        """What the runtime wrote about its failure (``{"error", "traceback", "origin"}``); None if it wrote nothing."""

    @abstractmethod
    def contains(self, key: BatchKey) -> Manifest | None:
        """Is the batch in? The manifest of what is published, or None."""

    @abstractmethod
    def publish(self, key: BatchKey, epoch: int) -> Manifest:
        """Append-once: make the stage the batch's output, or find that some attempt's output is in already.

        :return: the manifest that is in the sink now. Its epoch is another's if another attempt won; the own stage
            is then left for :meth:`drop_stage`.
        :raises SinkError: if there is no complete stage and the batch is not in.
        """

    @abstractmethod
    def replace(self, key: BatchKey, epoch: int) -> Manifest:
        """Replay: put the stage in place of the batch's output in one step that readers cannot see half of.

        :raises PublishConflictError: if a later attempt has replaced it already.
        """

    @abstractmethod
    def drop_stage(self, key: BatchKey, epoch: int) -> bool:
        """Remove the attempt's stage, whatever is left of it. False if there was none. Never touches published data."""

    def fence(self, key: BatchKey, epoch: int, *, by: str) -> None:
        """Leave word beside the stage that the attempt is fenced, for its Spark, which sees no checkpoint. It only
        spares work: :meth:`publish` decides without it. Idempotent.

        :param by: what fenced it, in words.
        """

    def drop_fences(self, *, older_seconds: float, dry_run: bool = False) -> list[str]:
        """Remove what :meth:`fence` left at least ``older_seconds`` ago.

        :param dry_run: only say what would be removed.
        :return: addresses of what was removed.
        """
        return []

    def withdraw(self, key: BatchKey, epoch: int) -> bool:
        """Take a batch out of the table in one step that readers cannot see half of; what is taken out is kept as
        replaced output is. Only ``microbatch rewind`` asks for it.

        :param epoch: the attempt whose output is to go; False if the batch is not in, so that it may be said again.
        :raises SinkError: if another attempt's output is in, or if the sink cannot do it.
        """
        raise SinkError(f"{type(self).__name__} cannot take batch {key} out of {self.location()}; do it there.")

    def drop_replaced(self, *, older_seconds: float, dry_run: bool = False) -> list[str]:
        """Remove output that a replay put out at least ``older_seconds`` ago. A sink that keeps none has nothing to do.

        :param dry_run: only say what would be removed.
        :return: addresses of what was removed.
        """
        return []

    @abstractmethod
    def stages(self) -> list[tuple[BatchKey, int]]:
        """All stages that exist, for the janitor and ``check``."""
