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

    Output moves, and is never copied: it lies in the stage of one attempt, or is kept between two of them. So whatever
    is published has it once, and an attempt from which it was taken finds it gone, and cannot publish.
    """

    @abstractmethod
    def stage(self, batch: BatchIdentity, epoch: int, name: str) -> Stage:
        """Where and how the runtime writes a subtask of this attempt. A pure function."""

    @abstractmethod
    def finished(self, batch: BatchIdentity, epoch: int) -> Sequence[SubtaskDone]:
        """Subtasks in the attempt's stage whose manifest is there and whose files are all there with their sizes, also
        those that it has taken over. Durable on return: who puts them on record may count on them."""

    @abstractmethod
    def keep(self, batch: BatchIdentity, epoch: int, done: Sequence[SubtaskDone]) -> None:
        """Move them out of the attempt's stage, which is about to be dropped, to where the batch's next attempt finds
        them and this one's Spark, which may still run, does not. What is gone by now is left out. Idempotent."""

    @abstractmethod
    def adopt(self, batch: BatchIdentity, epoch: int, done: Sequence[SubtaskDone]) -> Sequence[SubtaskDone]:
        """Move what is kept into the attempt's stage. Idempotent: what is there already counts.

        :return: those that are in the stage now, whole, with the files that are on record; one of each name.
        """

    @abstractmethod
    def assemble(self, batch: BatchIdentity, epoch: int) -> None:
        """Make one stage of them, once the job has ended well, as audits and readers are to find it. Idempotent. Does
        nothing for a stage that has no manifest of its own yet.

        :raises SinkError: if one was taken away: a later attempt has it now.
        """

    @abstractmethod
    def kept(self, checkpoint: str) -> list[BatchKey]:
        """Batches of a checkpoint of which something is kept, for the janitor."""

    @abstractmethod
    def drop(self, batch: BatchIdentity) -> bool:
        """Remove what is kept of the batch. False if there was nothing."""
