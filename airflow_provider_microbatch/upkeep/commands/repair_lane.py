"""Repair of a lane: offset log and commit log agree again, with no row lost or doubled. The sink is asked for its
batches.

Anything that cannot be repaired in this way stays as it is, and is reported with the consequences.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from airflow_provider_microbatch.checkpoint.by_hand import by_hand, commit_by_hand, is_beginning, is_position
from airflow_provider_microbatch.checkpoint.codec import check_offset
from airflow_provider_microbatch.checkpoint.entries import CommitEntry, Offset, OffsetEntry
from airflow_provider_microbatch.checkpoint.key import LIVE, BatchKey
from airflow_provider_microbatch.checkpoint.lane import Lane, command
from airflow_provider_microbatch.checkpoint.log import MetadataLog
from airflow_provider_microbatch.checkpoint.resolutions import Resolution, encode_resolution
from airflow_provider_microbatch.exceptions import (
    CheckpointError,
    CorruptEntryError,
    MaintenanceError,
    SinkError,
    SourceCountError,
    SourceError,
    UnknownVersionError,
)
from airflow_provider_microbatch.execution.identity import newest_identity
from airflow_provider_microbatch.execution.late_ends import is_same
from airflow_provider_microbatch.execution.progress import told
from airflow_provider_microbatch.execution.stateful import next_watermark
from airflow_provider_microbatch.sources.resolving import resolved
from airflow_provider_microbatch.upkeep.commands.beginnings import began_at, note_anew
from airflow_provider_microbatch.upkeep.commands.encoding import encoded_commit, encoded_offsets
from airflow_provider_microbatch.upkeep.commands.plan import Drafting
from airflow_provider_microbatch.upkeep.commands.progress_again import progress_again
from airflow_provider_microbatch.upkeep.commands.site import Published, Recorded

E = TypeVar("E", OffsetEntry, CommitEntry)

_ANOTHERS = "written for another plan of the batch"
_RESTORE = "Restore it from a backup of the checkpoint."


class _Stuck(Exception):
    """Nothing more can be repaired in this lane; the reason is among the problems."""


class LaneRepair:
    """Plans the repair of one lane.

    :param drafting: takes the steps.
    :param recorded: tells which batches the sink has.
    :param name: the lane.
    """

    def __init__(self, drafting: Drafting, recorded: Recorded, name: str) -> None:
        self._drafting = drafting
        self._recorded = recorded
        self._name = name
        self._folder = "" if name == LIVE else f"lanes/{name}/"

    def run(self) -> None:
        """Plan all repairs of the lane."""
        try:
            self._mend_subtasks()
            self._mend_resolutions()
            self._mend_newest_offsets()
            self._mend_older_offsets()
            self._take_back_half_beginning()
            self._mend_beginning()
            self._mend_commits()
            self._take_back_plans()
            self._take_back_late_plan()
        except _Stuck:
            return
        except UnknownVersionError as error:
            self._drafting.problem(self._lane.offset_log.location, str(error), "Use the version that wrote it.")
        except (MaintenanceError, SinkError, CorruptEntryError) as error:
            self._drafting.problem(
                self._lane.offset_log.location,
                f"lane {self._name} is broken, and what to do depends on what is in the sink. {error}",
                "Mend that, then run the command again.",
            )

    @property
    def _lane(self) -> Lane:
        return self._drafting.checkpoint.lane(self._name)

    def _key(self, number: int) -> BatchKey:
        return BatchKey(self._name, number)

    def _published(self, number: int) -> Published | None:
        """The batch if it can be committed: all of its tables have it, of one attempt."""
        found = self._recorded.published(self._key(number))
        return None if found is None or not self._recorded.is_of_one_attempt(found) else found

    def _is_in(self, number: int) -> str:
        """The tables that have the batch, or a part of it; empty if none has."""
        return " and ".join(one.sink.location() for one in self._recorded.everywhere(self._key(number)))

    def _mend_subtasks(self) -> None:
        subtasks = self._drafting.checkpoint.subtasks
        for key in subtasks.batches():
            for path, _ in subtasks.unreadable(key) if key.lane == self._name else ():
                self._drafting.put_away(f"subtasks/{path}", "torn; its split is read again")

    def _mend_resolutions(self) -> None:
        """Mend torn or missing resolved ends of batches with a late end: the next entry begins there, and the batch's
        own commit entry has what its reader told."""
        log, resolutions = self._lane.offset_log, self._drafting.checkpoint.resolutions
        ids, committed = log.ids(), frozenset(self._lane.commit_log.ids())
        for number in reversed(ids):
            key = self._key(number)
            for digest in [*resolutions.unreadable(key)]:
                self._drafting.put_away(f"resolved/{self._name}/{number}/{digest}", "torn")
            read = None if _unreadable(log, number) else log.read(number)
            entry = None if read is None else read[0]
            commit = self._lane.commit_of(number) if number in committed and not self._is_torn(number) else None
            if read is None or entry is None:
                continue
            if commit is None and number == ids[-1]:
                self._mend_published_end(number, entry, self._drafting.checkpoint.batch(key, *read).digest)
            if not entry.unresolved or (commit is None and number == ids[-1]):
                continue
            ends, why = self._ends_after(number, entry), "where it ended, as the next entry tells it"
            if ends is None:
                progress = {} if commit is None else commit.progress
                ends = self._ends_told(entry, entry.unresolved, progress)
                why = "where it ended, as its commit entry tells it"
            if ends is None:
                self._drafting.problem(
                    log.where(number),
                    f"batch {number} is committed, and where it ends in source {', '.join(entry.unresolved)} is not on "
                    "record any more.",
                    f"{_RESTORE} Without one: {self._rewind(number - 1)} takes its rows out of the table and plans "
                    "them again.",
                )
                raise _Stuck
            found = Resolution(epoch=commit.epoch if commit and commit.epoch else 0, ends=ends)
            digest = self._drafting.checkpoint.batch(key, *read).digest
            self._drafting.write(f"resolved/{self._name}/{number}/{digest}", encode_resolution(found), why)

    def _mend_published_end(self, number: int, entry: OffsetEntry, digest: str) -> None:
        """Resolve a published and uncommitted batch to the end of its published output, whichever attempt was chosen
        after the restore of a backup that lacked the choice: otherwise the batch could never be committed."""
        published = self._published(number) if entry.late and not entry.unresolved else None
        manifest = None if published is None else published.manifest
        ends = None if manifest is None else self._ends_told(entry, entry.late, manifest.result)
        if manifest is None or ends is None or all(is_same(entry.ends.get(name), end) for name, end in ends.items()):
            return
        path, found = f"resolved/{self._name}/{number}/{digest}", Resolution(epoch=manifest.epoch, ends=ends)
        self._drafting.put_away(path, "an attempt's whose output is not in the table")
        self._drafting.write(path, encode_resolution(found), "where the output ends that is in the table")

    def _is_torn(self, number: int) -> bool:
        return _unreadable(self._lane.commit_log, number) is not None

    def _ends_after(self, number: int, entry: OffsetEntry) -> dict[str, Offset | None] | None:
        """The starts of the next entry, for the sources whose end is unresolved; None if the next entry does not tell
        them."""
        after = _readable(self._lane.offset_log, number + 1)
        if after is None or not after.starts or is_position(after):
            return None
        return {name: after.starts.get(name) for name in entry.unresolved}

    def _ends_told(
        self, entry: OffsetEntry, names: Iterable[str], result: Mapping[str, Any]
    ) -> dict[str, Offset | None] | None:
        """The ends that the sources derive from what their readers told; None if a source cannot derive its end."""
        read, ends = told(self._drafting.checkpoint, result), dict[str, Offset | None]()
        for name in names:
            source = self._recorded.source(name, lane=self._name) if name in read else None
            if source is None:
                return None
            try:
                on_record = [] if name in entry.unresolved else [entry.ends.get(name)]
                end = resolved(source, entry.starts.get(name), read[name], on_record=on_record)
                if end is not None:
                    check_offset(name, end)
            except (SourceError, CheckpointError):
                return None
            ends[name] = end
        return ends

    def _mend_newest_offsets(self) -> None:
        """Move away a newest entry that is torn, or that a gap separates from the older ones, so that its batch is
        planned again; but only if the batch was neither committed nor published."""
        taken = False
        while True:
            log = self._lane.offset_log
            ids = log.ids()
            if not ids:
                break
            newest = ids[-1]
            torn = _unreadable(log, newest)
            # If only the entry before is missing, its neighbours tell its range; that is mended later.
            apart = newest > 0 and len(ids) > 1 and newest - 1 not in ids and newest - 2 not in ids
            if torn is None and not apart:
                break
            committed = newest in self._lane.commit_log.ids()
            tables = "" if committed else self._is_in(newest)
            if committed or tables:
                state = "committed" if committed else f"in {tables}"
                what = torn or f"the entries between {ids[-2]} and {newest} are missing"
                self._drafting.problem(
                    log.where(newest),
                    f"{what} Batch {newest} is {state}, so its range is not free to be planned again, and nobody else "
                    "knows it.",
                    f"{_RESTORE} Without one: {self._rewind_before(newest)} takes its rows out of "
                    "the table and plans them again.",
                )
                raise _Stuck
            self._drafting.put_away(
                f"{self._folder}offsets/{newest}",
                f"{'torn' if torn else 'nothing leads to it'}; batch {newest} is neither committed nor in the table, "
                "so it is planned again",
            )
            taken = True
        if taken and self._name == LIVE:
            kept = log.get(ids[-1]) if ids else None
            note_anew(self._drafting, self._recorded, kept, self._key(ids[-1] + 1 if ids else 0))

    def _mend_older_offsets(self) -> None:
        """Rebuild a torn or missing entry that has a successor: its neighbours tell where its range begins and ends."""
        ids = self._lane.offset_log.ids()
        if not ids:
            return
        # Listed once: the loop mends only the number that it is at.
        there = frozenset(ids)
        for number in range(ids[0], ids[-1]):
            log = self._lane.offset_log
            torn = _unreadable(log, number) if number in there else "missing"
            if torn is None:
                continue
            path = f"{self._folder}offsets/{number}"
            before, after = _readable(log, number - 1), _readable(log, number + 1)
            if number == ids[0] and number > 0 and after is not None and after.starts:
                self._drafting.put_away(path, "torn; the oldest entry that was kept, and the next one names its start")
                continue
            if after is None or not after.starts or (before is None and number > 0):
                self._drafting.problem(
                    log.where(number),
                    f"entry {number} of the offset log is {'missing' if torn == 'missing' else 'torn'} and its "
                    "neighbours do not tell its range: a replay of the batch is impossible"
                    + ("." if number < ids[-1] - 1 else ", and so is the next plan."),
                    f"{_RESTORE} Without one: {self._rewind_before(number)}.",
                )
                raise _Stuck
            self._drafting.put_away(path, "torn")
            self._drafting.write(path, self._rebuilt(number, before, after), "its range, as its neighbours tell it")
            self._drafting.note(
                f"batch {self._key(number)}: its time and settings are its neighbour's now; a replay sees those."
            )

    def _take_back_half_beginning(self) -> None:
        """Take back a beginning of the log at a later number that a command left half done, without the two whole
        entries that the pipeline goes on from. These entries record that nothing was read, so nothing is lost with
        them. No entry existed before the first one, and an entry made up for it would be planned as a batch, at a
        number under which the table has another checkpoint's batch."""
        ids, committed = self._lane.offset_log.ids(), self._lane.commit_log.ids()
        whole = [number for number in ids if number in committed]
        if not ids or ids[0] == 0 or len(ids) > 2 or len(whole) > 1 or not set(committed) <= set(ids):
            return
        entries = [self._lane.offset_log.get(number) for number in ids]
        if not all(entry is not None and is_beginning(entry) for entry in entries):
            return
        why = "a command was to begin the log here and was given up half way; nothing was read, and the log is empty"
        for number in reversed(ids):
            # In this order: if this command is given up too, offsets without a commit entry are taken back again.
            self._put_away_commit(number, why)
            self._drafting.put_away(f"{self._folder}offsets/{number}", why)

    def _mend_beginning(self) -> None:
        """Rebuild the missing entry before the log's only entry, whose starts tell where the missing entry ended: no
        run goes on from a single entry."""
        log = self._lane.offset_log
        ids = log.ids()
        after = _readable(log, ids[0]) if len(ids) == 1 and ids[0] > 0 else None
        if after is not None and after.starts:
            self._drafting.write(
                f"{self._folder}offsets/{ids[0] - 1}",
                self._rebuilt(ids[0] - 1, None, after),
                f"where entry {ids[0]} begins; without one before it nothing is planned",
            )

    def _rebuilt(self, number: int, before: OffsetEntry | None, after: OffsetEntry) -> bytes:
        ends: dict[str, Offset | None] = dict(after.starts)
        starts = {name: before.ends.get(name) if before else None for name in ends}
        starts |= self._began(number, {name: end for name, end in ends.items() if end and starts[name] is None})
        ran = newest_identity(self._drafting.checkpoint, self._key(number))
        entry = replace(
            # The end is known now, even if it was late, as the end of the next entry may be.
            after, ends=ends, starts=starts, late=(), resolved_by=None, run=None, extra=by_hand(self._drafting.trail),
            # A batch that ran by the lost entry, and may be in the table, is known by that entry's digest.
            stands_for=ran.digest if ran else None,
            batch_timestamp_ms=(before or after).batch_timestamp_ms,
            watermark_ms=before.watermark_ms if before else 0,
            conf=(before or after).conf,
        )  # fmt: skip
        return encoded_offsets(self._drafting, self._name, entry)

    def _began(self, number: int, ends: Mapping[str, Offset]) -> dict[str, Offset | None]:
        """Where the batch began in sources that had no position before it, by their ends, as far as a source has
        its beginning from the first plan alone."""
        if self._name != LIVE or not ends:
            return {}
        key = self._key(number)
        return began_at(self._drafting, self._recorded, key, ends, look=lambda: self._published(number))

    def _mend_commits(self) -> None:
        """Write a lost commit entry again if the sink has the batch; move away a commit entry that is not of a planned
        and published batch."""
        offset_ids, commit_ids = self._lane.offset_log.ids(), self._lane.commit_log.ids()
        if not offset_ids:
            if commit_ids:
                self._drafting.problem(
                    self._lane.offset_log.location,
                    f"batches up to {commit_ids[-1]} are committed and the offset log is empty: the position is lost, "
                    "and with it which data is in the table.",
                    "Restore the folder from a backup; else start a new checkpoint and a new table.",
                )
                raise _Stuck
            return
        newest = offset_ids[-1]
        ahead = [number for number in reversed(commit_ids) if number > newest]
        published = [number for number in ahead if self._is_in(number)]
        if published:
            self._drafting.problem(
                self._lane.commit_log.where(ahead[-1]),
                f"batches {ahead[-1]} to {ahead[0]} are committed, {published} are in the table, and the offset log "
                f"ends at {newest}: what they read is lost.",
                f"Restore the offset log from a backup. Without one: {self._rewind(newest)} takes them out of the "
                "table and plans them again.",
            )
            raise _Stuck
        committed = frozenset(commit_ids)
        for number in ahead:
            self._put_away_commit(number, f"batch {number} was never planned and is not in the table")
        for number in offset_ids:
            torn = self._wrong_commit(number) if number in committed else "missing"
            # The newest batch may be open, and retention may have removed the commit entry of the first batch that is
            # kept.
            may_lack = number == newest or number == offset_ids[0] > 0
            if torn is None or (may_lack and number not in committed):
                continue
            found = self._published(number)
            if found is not None:
                self._put_away_commit(number, torn)
                self._write_commit(number, found)
            elif number == newest or torn == _ANOTHERS:
                self._put_away_commit(number, f"{torn}, and batch {number} is not in the table: it runs again")

    def _wrong_commit(self, number: int) -> str | None:
        """Why the commit entry is not that of the planned batch, or None."""
        if _unreadable(self._lane.commit_log, number) is not None:
            return "torn"
        commit = self._lane.commit_log.get(number)
        return _ANOTHERS if commit is not None and self._lane.commits_another(number, commit) else None

    def _put_away_commit(self, number: int, why: str) -> None:
        self._drafting.put_away(f"{self._folder}commits/{number}", why)

    def _write_commit(self, number: int, found: Published) -> None:
        read = self._lane.offset_log.read(number)
        assert read is not None, "all offsets can be read by now"
        entry, planned = read
        attempt = self._drafting.checkpoint.attempts.made(self._key(number), found.manifest.epoch)
        commit = CommitEntry(
            next_watermark_ms=next_watermark(found.manifest, entry),
            epoch=found.manifest.epoch,
            requires_another_batch=bool(found.manifest.result.get("requiresAnotherBatch", False)),
            progress=progress_again(self._recorded, self._lane, found),
            run=attempt.run if attempt else entry.run,
            committed_ms=self._drafting.at_ms,
            extra=commit_by_hand(self._drafting.trail, offsets=planned),
        )
        self._drafting.write(
            f"{self._folder}commits/{number}",
            encoded_commit(commit),
            f"batch {number} is in the table, by attempt {found.manifest.epoch}",
        )

    def _take_back_plans(self) -> None:
        """Take back all open plans but the first: at most one batch may be planned and not committed. The later batches
        are planned anew after it."""
        offset_ids, commit_ids = self._lane.offset_log.ids(), set(self._lane.commit_log.ids())
        open_ids = [number for number in offset_ids if number not in commit_ids]
        if open_ids and open_ids[0] == offset_ids[0] > 0 and len(offset_ids) > 1:
            del open_ids[0]
        if not open_ids or open_ids[0] == offset_ids[-1]:
            return
        first = open_ids[0]
        later = [number for number in offset_ids if number > first]
        done = [number for number in later if number in commit_ids or self._is_in(number)]
        if done:
            self._drafting.problem(
                self._lane.commit_log.where(first),
                f"batch {first} is neither committed nor in the table, and {done} after it are: its rows are missing.",
                f"{self._rewind(first - 1)} runs it and those after it again. If its commit entry said that it was set "
                "aside, restore that from a backup.",
            )
            raise _Stuck
        for number in reversed(later):
            self._drafting.put_away(
                f"{self._folder}offsets/{number}",
                f"planned before batch {first} was committed, not in the table: it is planned again",
            )

    def _take_back_late_plan(self) -> None:
        """Take back a newest plan that does not follow the batch before: it was planned while a command changed the
        log."""
        newest = self._lane.offset_log.latest_id()
        if newest is None or newest in self._lane.commit_log.ids():
            return
        entry = self._lane.offset_log.get(newest)
        if entry is not None and is_position(entry):
            why = f"a command set it by hand and was given up before it had committed batch {newest}"
            self._drafting.put_away(f"{self._folder}offsets/{newest}", why)
            return
        what = self._lane.break_before(newest)
        if what is None:
            return
        if self._is_in(newest):
            self._drafting.problem(
                self._lane.offset_log.where(newest),
                f"{what} It is in the table, with rows that are in it twice, or without rows that it should have.",
                f"{self._rewind(newest - 1)} takes it out, and the next run plans it anew.",
            )
            raise _Stuck
        self._drafting.put_away(
            f"{self._folder}offsets/{newest}", f"{what} It is neither committed nor in the table: it is planned again"
        )

    def _rewind_before(self, number: int) -> str:
        """The rewind to the newest batch before it whose entry can be read: one to another batch is refused."""
        log = self._lane.offset_log
        whole = (id for id in reversed(log.ids()) if id < number and _unreadable(log, id) is None)
        return self._rewind(next(whole, -1))

    def _rewind(self, number: int) -> str:
        return command(self._lane, f"rewind --to {number} --drop-output")


def _unreadable(log: MetadataLog[E], number: int) -> str | None:
    """Why the entry cannot be read, or None.

    :raises UnknownVersionError: if the entry is not torn, but of a version that this package does not read.
    """
    try:
        log.get(number)
    except UnknownVersionError:
        raise
    except (CorruptEntryError, SourceCountError) as error:
        return str(error)
    return None


def _readable(log: MetadataLog[E], number: int) -> E | None:
    try:
        return log.get(number) if number >= 0 else None
    except (CorruptEntryError, SourceCountError):
        return None
