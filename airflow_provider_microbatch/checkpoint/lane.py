"""A lane: an offset log and a commit log that belong together, and the rules between them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from airflow_provider_microbatch.checkpoint.entries import CommitEntry, OffsetEntry
from airflow_provider_microbatch.checkpoint.key import LIVE
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
            f"{where}: commits are missing. {_repair(lane)} asks the sink which batches are in it and writes their "
            f"entries. Or restore {commits.location} from a backup."
        )
    if offset_id is None:
        return (
            f"{where}: batches were committed whose offsets are gone, so the position is lost. Restore "
            f"{offsets.location} from a backup; to read everything again, start a new checkpoint and a new table."
        )
    if commit_id > offset_id:
        return (
            f"{where}: batch {commit_id} is committed but not planned. If the sink does not have it, {_repair(lane)} "
            f"sets the commit entry aside. If it does, restore {offsets.where(commit_id)} from a backup, or have "
            f"{command(lane, f'rewind --to {offset_id} --drop-output')} take it out and run it again."
        )
    if commit_id < offset_id - 1:
        return (
            f"{where}: batches {commit_id + 1} to {offset_id} are planned and not committed, where one at most may be. "
            f"Going on would lose batch {commit_id + 1}. {_repair(lane)} asks the sink: for each batch that is in it "
            f"it writes the commit entry; if none is, it sets the offsets above {commit_id + 1} aside, and batch "
            f"{commit_id + 1} runs again."
        )
    return None


def gap_message(log: MetadataLog[OffsetEntry] | MetadataLog[CommitEntry], missing: int, *, found: int) -> str:
    """What to say of an entry that should be there."""
    return (
        f"Previous batch {missing} not found in {log.location}, though {found} is there: the log has a gap. "
        f"`microbatch repair` fills it if its neighbours and the sink tell what was there. Or restore "
        f"{log.where(missing)} from a backup."
    )


def command(lane: Lane, text: str) -> str:
    """A command for this lane, as it is typed."""
    root, _, name = lane.offset_log.location.removesuffix("/offsets").rpartition("/lanes/")
    verb, _, options = text.partition(" ")
    place = root if root and name == lane.name else lane.offset_log.location.removesuffix("/offsets")
    chosen = f" --lane {lane.name}" if lane.name != LIVE and options else ""
    return f"`microbatch {verb} {place}{f' {options}' if options else ''}{chosen}`"


def _repair(lane: Lane) -> str:
    return command(lane, "repair")


def _show(number: int | None) -> str:
    return "none" if number is None else str(number)
