"""A lane: an offset log and a commit log that belong together, and the rules between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from shlex import quote

from airflow_provider_microbatch.checkpoint.by_hand import commits_another, is_position
from airflow_provider_microbatch.checkpoint.entries import CommitEntry, OffsetEntry
from airflow_provider_microbatch.checkpoint.key import LIVE
from airflow_provider_microbatch.checkpoint.log import MetadataLog
from airflow_provider_microbatch.exceptions import BrokenLogError, CorruptEntryError


@dataclass(frozen=True, kw_only=True)
class Tail:
    """The newest id of each log with its entry; None for an empty log."""

    offset_id: int | None
    commit_id: int | None
    offsets: OffsetEntry | None = field(default=None, compare=False)
    commit: CommitEntry | None = field(default=None, compare=False)


class Lane:
    """An offset log and a commit log that belong together: a small checkpoint.

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
        """The ends of the two logs. Verifies the entries that the next batch stands on: the last ones of each log.
        Other processes may plan and commit meanwhile; the returned tail was true at one moment.

        :raises BrokenLogError: if the two logs contradict each other or an entry next to the end is missing.
        :raises CorruptEntryError: if one of these entries cannot be read.
        :raises SourceCountError: if these entries are of v1 and hold another number of sources.
        """
        tail = self._read_tail()
        while (problem := self._problem(tail)) is not None:
            # A batch that is planned and committed between two reads, or retention, looks like damage. Damage stays.
            again = self._read_tail()
            if again == tail:
                raise BrokenLogError(problem)
            tail = again
        if tail.offset_id is not None:
            self._check_metadata()
        return tail

    def _read_tail(self) -> Tail:
        newest, commit_id = self.offset_log.latest_id(), self.commit_log.latest_id()
        return Tail(
            offset_id=newest,
            commit_id=commit_id,
            offsets=None if newest is None else self.offset_log.get(newest),
            commit=None if commit_id is None else self.commit_log.get(commit_id),
        )

    def _problem(self, tail: Tail) -> str | None:
        problem = contradiction(self, tail.offset_id, tail.commit_id)
        newest = tail.offset_id
        if problem is not None or newest is None:
            return problem
        # Spark takes the start of batch N from entry N-1, so the end of the log alone is not enough.
        before = self.offset_log.get(newest - 1) if newest > 0 else None
        if newest > 0 and before is None:
            return gap_message(self, self.offset_log, newest - 1, found=newest)
        if tail.commit_id == newest and tail.commit is not None and self.commits_another(newest, tail.commit):
            return (
                f"lane {self.name}: {self.commit_log.where(newest)} was written for another plan of batch {newest}: "
                "its writer slept until that was taken out, and the batch was planned anew. To go on would lose the "
                f"batch. {_repair(self)} sets the entry aside, and the batch runs."
            )
        done = ((newest, tail.offsets if tail.commit_id == newest else None), (newest - 1, before))
        for batch_id, plan in done:
            if plan is not None and plan.unresolved:
                return (
                    f"lane {self.name}: batch {batch_id} is committed, and where it ends in source "
                    f"{', '.join(plan.unresolved)} is not on record any more: to go on would read its rows again. "
                    f"Restore the checkpoint's folder 'resolved' from a backup; without one, {_repair(self)} takes "
                    "the end from the entry after it, or says how to rewind."
                )
        if tail.commit_id != newest:
            if tail.offsets is not None and is_position(tail.offsets):
                return (
                    f"lane {self.name}: {self.offset_log.where(newest)} sets the position by hand, and is not "
                    f"committed: the command is at it at this moment, or was given up half way. {_repair(self)} sets "
                    "the entry aside, and the position is as it was."
                )
            problem = self._break(newest, before, tail.offsets)
            if problem is not None:
                return (
                    f"{problem} It was planned while a command changed the log; to run it would lose or double rows. "
                    f"{_repair(self)} sets it aside, and the next run plans it anew."
                )
        for log, number, entry in (
            (self.offset_log, newest, tail.offsets),
            (self.commit_log, tail.commit_id, tail.commit),
        ):
            if number is not None and entry is None:
                return f"{log.where(number)} was there and is gone. Restore it from a backup."
        return None

    def plan_digest(self, batch_id: int) -> str | None:
        """The digest of the batch's plan; None if none is in the log.

        :raises CorruptEntryError: if the entry cannot be read.
        """
        read = self.offset_log.read(batch_id)
        return None if read is None else read[0].digest(read[1])

    def commit_of(self, batch_id: int) -> CommitEntry | None:
        """The commit entry of the batch as it is planned now; None if there is none. An entry that was written for a
        plan from before a rewind says nothing of the present plan, whose rows are in no table and whose range no source
        may give up.

        :raises CorruptEntryError: if the commit entry cannot be read.
        """
        commit = self.commit_log.get(batch_id)
        if commit is None:
            return None
        try:
            return None if self.commits_another(batch_id, commit) else commit
        except CorruptEntryError:
            return commit  # of a torn plan nobody can tell; that it is torn is another finding

    def commits_another(self, batch_id: int, commit: CommitEntry) -> bool:
        """Whether the commit entry was written for another plan of the batch than the one in the offset log."""
        read = self.offset_log.read(batch_id)
        return read is not None and commits_another(commit, *read)

    def break_before(self, batch_id: int) -> str | None:
        """Where the batch does not begin at the end of the one before, in words; None if it does, or an entry is
        missing."""
        return self._break(batch_id, self.offset_log.get(batch_id - 1), self.offset_log.get(batch_id))

    def _break(self, batch_id: int, before: OffsetEntry | None, entry: OffsetEntry | None) -> str | None:
        if entry is None or before is None:
            return None
        found = next(breaks(batch_id, before, entry), None)
        return None if found is None else f"lane {self.name}: {found}"

    def is_position(self, batch_id: int) -> bool:
        """Whether the number is no batch's: a command has set the position by hand, or has counted over what a table
        has under it."""
        entry = self.offset_log.get(batch_id)
        return entry is not None and is_position(entry)

    def can_be_rewound_to(self, batch_id: int) -> bool:
        """Whether ``microbatch rewind`` may go back to the batch, as far as retention tells: nobody goes on from a log
        whose newest entry has none before it."""
        oldest = next(iter(self.offset_log.ids()), 0)
        return oldest == 0 or batch_id > oldest

    def check_gaps(self) -> None:
        """Raise if an entry in the middle of a log is missing. Looks at one part of each log, with a fixed number of
        entries however long the log is, and at the next part when the log is longer by one; leaves a hint where a log
        begins.

        :raises BrokenLogError: naming the entry.
        """
        for log in (self.offset_log, self.commit_log):
            gap = log.find_gap()
            if gap is not None:
                raise BrokenLogError(gap_message(self, log, gap.missing, found=gap.after))
        if self.offset_log.has(0) and self.commit_log.newest_seen() is not None and self.commit_log.get(0) is None:
            raise BrokenLogError(gap_message(self, self.commit_log, 0, found=1))


def contradiction(lane: Lane, offset_id: int | None, commit_id: int | None) -> str | None:
    """How the newest entries of the two logs contradict each other, and what to do about it; None if they do not."""
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


def breaks(batch_id: int, before: OffsetEntry, entry: OffsetEntry) -> Iterator[str]:
    """One text for each source that the batch does not begin at the end of the batch before it."""
    for name, end in before.ends.items():
        # A source that had no position yet begins at its first one, which its first batch names.
        if end is not None and name in entry.starts and entry.starts[name] != end:
            yield f"batch {batch_id} begins {name!r} at {entry.starts[name]}, batch {batch_id - 1} ended it at {end}."


def gap_message(
    lane: Lane, log: MetadataLog[OffsetEntry] | MetadataLog[CommitEntry], missing: int, *, found: int
) -> str:
    """The message about an entry that is missing in a log of the lane."""
    return (
        f"Previous batch {missing} not found in {log.location}, though {found} is there: the log has a gap. "
        f"{_repair(lane)} fills it if its neighbours and the sink tell what was there. Or restore "
        f"{log.where(missing)} from a backup."
    )


def command(lane: Lane, text: str) -> str:
    """A command for this lane, quoted for a shell."""
    root, _, name = lane.offset_log.location.removesuffix("/offsets").rpartition("/lanes/")
    verb, _, options = text.partition(" ")
    place = root if root and name == lane.name else lane.offset_log.location.removesuffix("/offsets")
    chosen = f" --lane {lane.name}" if lane.name != LIVE and options else ""
    return f"`microbatch {verb} {quote(place)}{f' {options}' if options else ''}{chosen}`"


def plan_given_up(lane: Lane, id: int) -> str:
    """The first way on with a planned batch whose range cannot be read: until it is done or given up, no batch is
    planned and no position is set."""
    return (
        "It is in the way of whatever is planned or set there. If what it was to read does not come back, first "
        f"{command(lane, f'rewind --to {id - 1}')} gives its plan up."
    )


def _repair(lane: Lane) -> str:
    return command(lane, "repair")


def _show(number: int | None) -> str:
    return "none" if number is None else str(number)
