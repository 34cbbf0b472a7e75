"""How finished output of a failed attempt passes to the next one, for pipelines that are run split by split."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from airflow_provider_microbatch.checkpoint.identity import BatchIdentity
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.checkpoint.subtasks import SubtaskDone
from airflow_provider_microbatch.runtime.job import Stage


class SubtaskStages(ABC):
    """Stages of subtasks, below the stage of their attempt.

    A subtask's output is moved, never copied: it lies in the stage of one attempt, or is kept between two attempts. So
    published output contains it once, and an attempt whose subtask was moved away finds it gone, and cannot publish.
    """

    @abstractmethod
    def stage(self, batch: BatchIdentity, epoch: int, name: str) -> Stage:
        """Where and how the runtime writes a subtask of this attempt. A pure function."""

    @abstractmethod
    def finished(self, batch: BatchIdentity, epoch: int) -> Sequence[SubtaskDone]:
        """Subtasks in the attempt's stage that have a manifest and all their files with the right sizes, including
        subtasks taken over from earlier attempts. Durable on return: the caller may put them on record."""

    @abstractmethod
    def keep(self, batch: BatchIdentity, epoch: int, done: Sequence[SubtaskDone]) -> None:
        """Move the subtasks out of the attempt's stage, which is about to be dropped, to a place where the batch's next
        attempt finds them and this attempt's Spark, which may still run, does not. Subtasks that are gone by now are
        left out. Idempotent."""

    @abstractmethod
    def adopt(self, batch: BatchIdentity, epoch: int, done: Sequence[SubtaskDone]) -> Sequence[SubtaskDone]:
        """Move kept subtasks into the attempt's stage. Idempotent: a subtask that is there already counts.

        :return: the subtasks that are in the stage now, whole, with the files that are on record; one of each name.
        """

    @abstractmethod
    def assemble(self, batch: BatchIdentity, epoch: int) -> None:
        """Combine the subtasks into one stage, as audits and readers expect it, after the job has ended well.
        Idempotent. Does nothing for a stage that has no manifest of its own yet.

        :raises SinkError: if a subtask was taken away: a later attempt has it now.
        """

    @abstractmethod
    def kept(self, checkpoint: str) -> list[BatchKey]:
        """Batches of a checkpoint of which subtasks are kept, for the janitor."""

    @abstractmethod
    def drop(self, batch: BatchIdentity) -> bool:
        """Remove the kept subtasks of the batch. False if there were none."""
