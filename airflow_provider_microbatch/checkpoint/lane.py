"""A lane: an offset log and a commit log that belong together, and the rules between them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from airflow_provider_microbatch.checkpoint.entries import CommitEntry, OffsetEntry
from airflow_provider_microbatch.checkpoint.log import MetadataLog
from airflow_provider_microbatch.exceptions import BrokenLogError


@dataclass(frozen=True, kw_only=True)
class Tail:
    """The newest id of each log; None for an empty one."""

    offset_id: int | None
    commit_id: int | None


class Lane:
    """One small checkpoint.

    :param name: ``live``, or the name of a backfill's lane.
    :param offset_log: what each batch reads.
    :param commit_log: which batches are in the sink.
    :param check_metadata: raises if the checkpoint has logs but not the file that Spark needs beside them.
    """

    def __init__(
        self,
        name: str,
        *,
        offset_log: MetadataLog[OffsetEntry],
        commit_log: MetadataLog[CommitEntry],
        check_metadata: Callable[[], None],
    ) -> None:
        self.name = name
        self.offset_log = offset_log
        self.commit_log = commit_log
        self._check_metadata = check_metadata

    def tail(self) -> Tail:
        """Where the logs end. Verifies what the next batch stands on: the last entries of each.

        :raises BrokenLogError: if the two logs contradict each other or an entry next to the end is missing.
        :raises CorruptEntryError: if one of these entries cannot be read.
        :raises SourceCountError: if they are of v1 and hold another number of sources.
        """
        newest, commit_id = self.offset_log.latest_id(), self.commit_log.latest_id()
        problem = contradiction(self, newest, commit_id)
        if problem is not None:
            raise BrokenLogError(problem)
        if newest is None:
            return Tail(offset_id=None, commit_id=None)
        self._check_metadata()
        # Spark takes the start of batch N from entry N-1, so the end of the log alone is not enough.
        if newest > 0 and self.offset_log.get(newest - 1) is None:
            raise BrokenLogError(gap_message(self.offset_log, newest - 1, found=newest))
        self.offset_log.get(newest)
        if commit_id is not None:
            self.commit_log.get(commit_id)
        return Tail(offset_id=newest, commit_id=commit_id)


def contradiction(lane: Lane, offset_id: int | None, commit_id: int | None) -> str | None:
    """How the newest entries of the two logs contradict each other and what to do, or None."""
    offsets, commits = lane.offset_log, lane.commit_log
    where = f"lane {lane.name}: the newest entry of {offsets.location} is {_show(offset_id)}, of {commits.location} "
    where += f"{_show(commit_id)}"
    if commit_id is None:
        if offset_id is None or offset_id == 0:
            return None
        return (
            f"{where}: commits are missing, so nobody knows which batches are in the sink. Restore {commits.location}; "
            f"or, if all up to {offset_id - 1} are in the sink, write {commits.where(offset_id - 1)} with the lines "
            "'v1' and '{\"nextBatchWatermarkMs\":0}'."
        )
    if offset_id is None:
        return (
            f"{where}: batches were committed whose offsets are gone, so the position is lost. Restore "
            f"{offsets.location} from a backup; to read everything again, start a new checkpoint and a new table."
        )
    if commit_id > offset_id:
        return (
            f"{where}: batch {commit_id} is committed but not planned. Restore {offsets.where(commit_id)}; or, to run "
            f"batch {offset_id + 1} and later again from {offset_id}, remove the commits above {offset_id} and what "
            "the sink has of these batches."
        )
    if commit_id < offset_id - 1:
        return (
            f"{where}: batches {commit_id + 1} to {offset_id} are planned and not committed, where one at most may be. "
            f"Going on would lose batch {commit_id + 1}. Look into the sink: for each batch that is in it restore "
            f"{commits.where(commit_id + 1)} and on; else remove the offsets above {commit_id + 1}, and batch "
            f"{commit_id + 1} runs again."
        )
    return None


def gap_message(log: MetadataLog[OffsetEntry] | MetadataLog[CommitEntry], missing: int, *, found: int) -> str:
    """What to say of an entry that should be there."""
    return (
        f"Previous batch {missing} not found in {log.location}, though {found} is there: the log has a gap. Restore "
        f"{log.where(missing)} from a backup; it cannot be derived from its neighbours."
    )


def _show(number: int | None) -> str:
    return "none" if number is None else str(number)
