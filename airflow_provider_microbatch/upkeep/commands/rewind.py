"""Rewind: the log ends after batch N again, and the later batches are planned anew, of the same data."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from shlex import quote

from airflow_provider_microbatch.checkpoint.entries import Attempt, Offset
from airflow_provider_microbatch.checkpoint.key import LIVE, BatchKey, is_lane, span_of
from airflow_provider_microbatch.exceptions import CheckpointError, MaintenanceError
from airflow_provider_microbatch.execution.forgetting import check_entries_known
from airflow_provider_microbatch.execution.intervals import read_only_by
from airflow_provider_microbatch.execution.position import starts_of
from airflow_provider_microbatch.sinks import OpenSink
from airflow_provider_microbatch.sources import OpenSource
from airflow_provider_microbatch.upkeep.commands.back_again import back_again, drop_again, taking_out
from airflow_provider_microbatch.upkeep.commands.beginnings import check_beginnings
from airflow_provider_microbatch.upkeep.commands.for_good import InForce
from airflow_provider_microbatch.upkeep.commands.given_up import check_given_up
from airflow_provider_microbatch.upkeep.commands.letters_out import check_letters
from airflow_provider_microbatch.upkeep.commands.not_asked import saying_what_to_do, told_of_tables
from airflow_provider_microbatch.upkeep.commands.plan import Drafting, Plan
from airflow_provider_microbatch.upkeep.commands.reach import no_further_than
from airflow_provider_microbatch.upkeep.commands.readable import check_readable
from airflow_provider_microbatch.upkeep.commands.rename_source import check_not_half_renamed
from airflow_provider_microbatch.upkeep.commands.repair_epochs import (
    fence_attempts,
    fence_unknown,
    unfinished_of,
    withdraw_requests,
)
from airflow_provider_microbatch.upkeep.commands.site import Published, Recorded
from airflow_provider_microbatch.upkeep.commands.state_behind import check_state_behind, put_state_away
from airflow_provider_microbatch.upkeep.commands.staying import (
    check_none_unrecorded,
    drop_stages,
    kept_in,
    taken_out,
    told_of,
)
from airflow_provider_microbatch.upkeep.commands.steps import DropOutput, Keep
from airflow_provider_microbatch.upkeep.commands.told import Told

_NAMED = 20
"""Number of damaged entries that a note names one by one."""


def plan_rewind(drafting: Drafting, *, lane: str, to: int, drop_output: bool, allow_skip: bool = False) -> Plan:
    """The plan after which batch ``to`` is the newest batch.

    Attempts of the later batches stay on record, ended and fenced: their epochs are never given out again. Source logs
    stay too: the new batches read the data that the later batches read, from wherever it is now.

    :param lane: the lane; also one that only the table knows, since the checkpoint was restored from before it.
    :param to: the batch; -1 for no batch at all.
    :param drop_output: take the later batches out of the table.
    :param allow_skip: read again the data that still exists, and lose the data that does not: where a source's own log
        is damaged, where the source is set to go on without missing data, where the next run stops at it, where the
        table does not have the batch either, where rows that came back to the table (RESTORE) are the only copy, or
        where the checkpoint was restored and the source gives up committed data. The plan's notes name all that would
        be refused without it, as what is taken out of one of several tables for good.
    :raises MaintenanceError: if a row would be lost or doubled, if there is no such lane, or if there is nothing to do
        and a table on record cannot tell whether there is.
    :raises SinkError: if a table cannot tell whose a batch of the lane is.
    """
    check_not_half_renamed(drafting.checkpoint)
    return _Rewind(drafting, lane=lane, to=to, drop_output=drop_output, allow_skip=allow_skip).plan()


class _Rewind:
    def __init__(self, drafting: Drafting, *, lane: str, to: int, drop_output: bool, allow_skip: bool) -> None:
        self._drafting = drafting
        self._name = lane
        self._to = to
        self._drop_output = drop_output
        self._allow_skip = allow_skip
        self._checkpoint = drafting.checkpoint
        self._lane = self._checkpoint.lane(lane)
        self._recorded = Recorded(self._checkpoint, abandons=lane if allow_skip else None)
        self._lost: dict[int, list[Published]] = {}
        self._back = back_again(self._checkpoint, self._recorded, lane=lane, to=to)
        self._silent: tuple[str, ...] = ()
        self._folder = "" if lane == LIVE else f"lanes/{lane}/"
        self._damaged: dict[str, OpenSource] = {}

    def plan(self) -> Plan:
        with (
            saying_what_to_do(self._checkpoint, lane=self._name),
            taking_out(
                self._drafting,
                self._recorded,
                self._back,
                lane=self._name,
                to=self._to,
                drop_output=self._drop_output,
                allow_skip=self._allow_skip,
            ),
        ):
            return self._planned()

    def _planned(self) -> Plan:
        self._check_lane()
        offset_ids, commit_ids = self._lane.offset_log.ids(), self._lane.commit_log.ids()
        known = sorted({number for number in (*offset_ids, *commit_ids) if number > self._to})
        # First: batches that retention has removed from the logs are in the table too, and are not later than a backup.
        self._check_position(offset_ids, commit_ids)
        self._lost = self._of_another_life(is_alone=not known)
        for told in self._recorded.unusable():
            self._drafting.note(f"{told} It is not asked for batches of after a backup.")
        later = sorted({*known, *self._lost})
        self._damaged = self._find_damaged()
        if not later and not self._damaged and not self._back:
            self._check_told()
            return self._drafting.plan()
        for told in self._silent:
            self._drafting.note(f"{told} Batches of after a backup, if it has any, stay there.")
        for told in dict.fromkeys(told_of_tables(self._recorded) if later else ()):
            self._drafting.note(told)
        if later:
            published = {*commit_ids, *self._lost}
            check_letters(self._checkpoint, self._recorded, lane=self._name, later=later, published=published)
            self._check_kept()
            check_state_behind(self._checkpoint, self._recorded, lane=self._name, to=self._to)
            self._check_files(later[0])
        check_readable(
            self._drafting,
            self._recorded,
            lane=self._name,
            to=self._to,
            later=later,
            committed=commit_ids,
            besides=self._damaged,
            only_in_table=self._lost,
            position=self._kept_end,
            allow_skip=self._allow_skip,
        )
        if self._name == LIVE:
            check_beginnings(
                self._drafting, self._recorded, to=self._to, later=later, allow_skip=self._allow_skip
            )  # fmt: skip
        self._keep(later)
        in_force = InForce(self._checkpoint, self._recorded, self._name)  # fences count as later
        unfinished = {number: unfinished_of(self._checkpoint, BatchKey(self._name, number)) for number in later}
        # First of all: an attempt that sleeps could otherwise publish after its batch was taken out.
        for number in reversed(later):
            fence_attempts(self._drafting, BatchKey(self._name, number), why="its batch was rewound", also_ended=True)
            drop_stages(self._drafting, self._recorded, unfinished[number])
        for number, made in self._lost.items():
            fence_unknown(self._drafting, BatchKey(self._name, number), made, why="made after the backup")
        self._drop(later, in_force)
        if later and offset_ids and span_of(self._name) is not None:
            self._drafting.note(f"what lane {self._name} has taken stays its own. {read_only_by(self._name)}")
        why = f"later than batch {self._to}" if self._to >= 0 else "everything is read again"
        # Commits first, from the newest on: if the command is killed in between, no batch is committed that the offset
        # log lacks.
        for number in reversed(later):
            self._drafting.put_away(f"{self._folder}commits/{number}", why)
        for number in reversed(later):
            self._drafting.put_away(f"{self._folder}offsets/{number}", why)
            # A replay that was requested is done by this: the batch runs again.
            withdraw_requests(self._drafting, BatchKey(self._name, number), why="its batch is planned again")
            self._drafting.put_away(f"adopted/{self._name}/{number}", "its batch is planned again")
            self._take_back_late(number, unfinished[number], was_committed=number in commit_ids)
        put_state_away(self._drafting, lane=self._name, to=self._to)
        for name, source in self._damaged.items():
            self._drafting.through(
                partial(source.forget_after, self._kept_end(name)), f"the log of source {name!r} is damaged"
            )
        return self._drafting.plan()

    def _take_back_late(self, number: int, unfinished: list[Attempt], *, was_committed: bool) -> None:
        """Plan to take back the output and the commit entry of attempts that slept: they may publish and commit after
        the plan was made, and before they are fenced."""
        key, why = BatchKey(self._name, number), "its attempt may have gone on while the command began"
        for attempt in unfinished if self._drop_output else ():
            sink, identity = self._recorded.sink_of(attempt), attempt.identity
            if sink is None or identity is None:
                continue
            for table in sink.tables:
                if (
                    table.definition.is_cheap_to_ask
                    and table.definition.keeps_batches
                    and table.definition.can_withdraw
                    and not self._recorded.is_gone(table)
                ):
                    self._drafting.elsewhere(
                        DropOutput(
                            key=str(key),
                            epoch=attempt.epoch,
                            identity=identity.to_dict(),
                            sink=table.definition.to_dict(),
                            where=table.location(),
                            why=why,
                            to=self._to,
                        )
                    )
        if not was_committed:
            self._drafting.put_away_late(f"{self._folder}commits/{number}", why)

    def _of_another_life(self, *, is_alone: bool) -> dict[int, list[Published]]:
        """Batches that this checkpoint published after the backup that it was restored from: no log knows them. Where
        some stay in their table, a note names them, and none is taken out that they count over.

        :param is_alone: whether the logs have no batch that is rewound.
        :raises MaintenanceError: if there is nothing else to rewind.
        """
        try:
            tables = self._recorded.told(self._name)
        except MaintenanceError:
            return {}  # no pipeline is on record; batches in the logs are looked up one by one
        self._silent = tables.silent
        later = {number: by for number, by in sorted(tables.holders.items()) if number > self._to}
        found = {number: self._unknown(number, by) for number, by in later.items()}
        keeping = () if self._allow_skip else tables.keeping
        staying, lost = kept_in(found), taken_out(found, lane=self._name, keeping=keeping)
        if staying:
            told = told_of(self._checkpoint, staying, lane=self._name)
            if is_alone and not lost:
                raise MaintenanceError(f"{told} Nothing was done.")
            self._drafting.note(told)
        if lost:
            check_given_up(
                self._drafting,
                self._recorded,
                lane=self._name,
                to=self._kept_end,
                newest=self._newest_end,
                lost=sorted(lost),
                allow_skip=self._allow_skip,
            )
            self._drafting.note(
                f"batches {', '.join(map(str, sorted(lost)))} are of after the backup that this checkpoint was "
                "restored from. What they read is read again only as far as it is still there."
            )
        return lost

    def _unknown(self, number: int, tables: Sequence[OpenSink]) -> list[Published]:
        return self._recorded.of_another_life(BatchKey(self._name, number), tables=tables)

    def _check_told(self) -> None:
        """Check that there really is nothing to do: a run may have been refused for what a table has of after a backup,
        and have named this command, which would end well without having looked there."""
        if self._silent:
            raise MaintenanceError(
                f"no log has a batch after {self._to}, nor has a table that tells. But {' '.join(self._silent)} Bring "
                "that table back, or its catalog, and type this again. If it is gone for good, there is nothing to "
                "rewind."
            )

    def _check_lane(self) -> None:
        """Check that there is such a lane: in the checkpoint; or, if it was restored from a backup of before the lane,
        in a table, with batches of this checkpoint that nothing else takes out."""
        lanes = self._checkpoint.lanes()
        if self._name in lanes or self._back:
            return
        told = self._recorded.told(self._name) if is_lane(self._name) else Told(holders={}, silent=())
        if not any(self._unknown(number, tables) for number, tables in told.holders.items()):
            others = self._recorded.unusable() if is_lane(self._name) else []
            also = " ".join(["", *others, *told.silent])
            raise MaintenanceError(
                f"{self._checkpoint.location} has no lane {self._name!r}; it has {', '.join(lanes)}. No table that can "
                f"be asked from here has a batch of it either.{also}"
            )

    def _check_position(self, offset_ids: list[int], commit_ids: list[int]) -> None:
        where = self._lane.offset_log.location
        if self._to < 0:
            if offset_ids and offset_ids[0] > 0:
                raise MaintenanceError(
                    f"{where} keeps batches from {offset_ids[0]} on: what the earlier ones read is no longer known, so "
                    "not all can be read again. Start a new checkpoint and a new table instead."
                )
            return
        if self._to not in offset_ids:
            kept = f"it has {offset_ids[0]} to {offset_ids[-1]}" if offset_ids else "it is empty"
            older = offset_ids and self._to < offset_ids[0]
            why = f" Retention has removed it. {no_further_than(offset_ids[0] + 1, offset_ids)}" if older else ""
            raise MaintenanceError(f"batch {self._to} is not in {where}: {kept}.{why}")
        self._lane.offset_log.get(self._to)
        if self._to == offset_ids[0] and self._to > 0 and offset_ids[-1] > self._to:
            raise MaintenanceError(
                f"batch {self._to} is the oldest that {where} keeps. Neither Spark nor this package goes on from a log "
                f"whose newest entry has none before it. {no_further_than(self._to + 1, offset_ids)}"
            )
        if self._to not in commit_ids:
            raise MaintenanceError(
                f"batch {self._to} is not committed. Rewind to one that is; or, if it is in the table, "
                f"`microbatch repair {quote(self._drafting.store.location)}` writes its commit entry."
            )

    def _check_kept(self) -> None:
        """Check that no retention is under way at these batches: it removes what it has announced, whenever its process
        wakes up."""
        before, where = self._checkpoint.horizons.highest(self._name), self._lane.offset_log.location
        if self._to <= before and before > 0:
            told = (
                f"the janitor, or a run that has committed, removes what is older than batch {before} from {where} or "
                f"packs it, at this moment. {no_further_than(before + 1, self._lane.offset_log.ids())} Or, if it "
                f"was killed, have `microbatch janitor {quote(self._drafting.store.location)}` finish that, and look "
                "again."
            )
            if self._checkpoint.horizons.removing(self._name):
                told += (
                    " A removal whose pipeline keeps all by now is finished by nobody: `microbatch repair "
                    f"{quote(self._drafting.store.location)} --give-up` takes it for dead at your word."
                )
            raise MaintenanceError(told)

    def _check_files(self, first: int) -> None:
        """Check that the entries are separate files, since they are moved away one by one: an entry that stayed behind
        would count as a batch whose output is gone."""
        for entries in (self._lane.offset_log, self._lane.commit_log):
            if entries.is_compacted(first):
                raise MaintenanceError(
                    f"batch {first} lies in a segment of old entries of {entries.location}, of which none can be moved "
                    f"away. `microbatch export {quote(self._drafting.store.location)} TARGET` makes a copy without "
                    "segments; rewind that, and put it in place of this checkpoint."
                )

    def _kept_end(self, name: str) -> Offset | None:
        """The position of the source, once the lane has been rewound."""
        entry = self._lane.offset_log.get(self._to) if self._to >= 0 else None
        return None if entry is None else entry.ends.get(name)

    def _newest_end(self, name: str) -> Offset | None:
        """The end of the source in the newest entry that can be read; None if no entry can."""
        for number in reversed(self._lane.offset_log.ids()):
            with suppress(CheckpointError):
                entry = self._lane.offset_log.get(number)
                return None if entry is None else entry.ends.get(name)
        return None

    def _find_damaged(self) -> dict[str, OpenSource]:
        """Sources whose own log can no longer tell what the later batches read. The data that is still in such a source
        is planned anew."""
        found = {}
        for name in self._recorded.source_names():
            source, kept = self._recorded.source(name, lane=self._name), self._kept_end(name)
            damage = list(source.damaged(self._newest_end(name))) if source else []
            if source is None or not damage:
                continue
            if any(source.is_after(position, kept) is not True for position, _ in damage):
                raise MaintenanceError(f"{damage[0][1]} Batch {self._to} is later than that: rewind further.")
            if any(lane != self._name for lane in self._checkpoint.lanes()):
                raise MaintenanceError(
                    f"{damage[0][1]} The checkpoint has other lanes, which have read of the same log: to read all "
                    "again, start a new checkpoint and a new table."
                )
            if not self._allow_skip:
                raise MaintenanceError(
                    f"{damage[0][1]} Without it nobody knows what the later batches read: what is still in source "
                    f"{name!r} would be read again, and what is not would be lost. Allow that with --allow-skip."
                )
            entries = ", ".join(position for position, _ in damage[:_NAMED]) + (" …" if len(damage) > _NAMED else "")
            self._drafting.note(
                f"source {name!r} is read again after {kept or 'its beginning'}, as far as it is still there: its log "
                f"is damaged ({len(damage)} of its entries: {entries})."
            )
            found[name] = source
        return found

    def _keep(self, later: list[int]) -> None:
        """Plan that sources keep data that was released for cleaning and not cleaned yet, since it is read again."""
        for number in later:
            try:
                entry = self._lane.offset_log.get(number)
            except CheckpointError:
                entry = None
            if entry is None:
                continue
            starts = starts_of(self._lane, number, entry)
            for name, end in entry.ends.items():
                if starts.get(name) != end:
                    self._drafting.keep(
                        Keep(
                            source=name,
                            lane=self._name,
                            start=starts.get(name),
                            end=end,
                            why=f"what batch {number} read is read again",
                        )
                    )

    def _drop(self, later: list[int], in_force: InForce) -> None:
        published = {
            number: self._lost.get(number) or self._recorded.everywhere(BatchKey(self._name, number))
            for number in later
        }
        present = [number for number, found in published.items() if found]
        there = sorted({*present, *(one.id for one in self._back)})
        if there and not self._drop_output:
            shown = ", ".join(map(str, there[:10])) + (" …" if len(there) > 10 else "")
            raise MaintenanceError(
                f"of what is read again, this is in the table, and would be in it twice: batch {shown}. With "
                "--drop-output it is taken out first, the newest first, one by one."
            )
        keys = [BatchKey(self._name, number) for number in later]  # another table may have what one has lost
        check_none_unrecorded(self._drafting, self._recorded, in_force, keys, drop_output=self._drop_output)
        for key in () if self._allow_skip else keys:
            in_force.check_put_back(key, published[key.id])
        taken = [(number, found) for number in reversed(present) for found in reversed(published[number])]
        for table in {found.sink.location(): found.sink for _, found in taken}.values():
            table.check_whole()  # a removal that is refused in the middle would be left half done
        away = in_force.away([found for _, found in taken])
        for number, found in taken:
            where = found.sink.location()
            check_entries_known(self._checkpoint, found.manifest, what="nothing was done")
            if not found.sink.definition.can_withdraw:
                raise MaintenanceError(
                    f"batch {number} is in {where}, which no batch can be taken out of: each makes it "
                    "whole, or its sink has no way to. Take it out there (drop the table, say), and run this again; or "
                    "clear the task of each batch that is to be made again."
                )
            adopted = self._checkpoint.adoptions.get(BatchKey(self._name, number)) if not found.manifest.epoch else None
            step = DropOutput(
                key=str(BatchKey(self._name, number)),
                epoch=adopted.epoch if adopted is not None else found.manifest.epoch,
                identity=found.manifest.identity.to_dict() if found.manifest.identity else None,
                sink=found.sink.definition.to_dict(),
                where=where,
                why="nothing writes to this table any more" if where in away else "it is read and published again",
                to=self._to,
            )
            self._drafting.elsewhere(step)
        for step in drop_again(self._back, lane=self._name, to=self._to):
            self._drafting.elsewhere(step)
        for where in dict.fromkeys(away):
            self._drafting.note(
                f"the pipeline, as its last run has it, does not write to {where}: what is taken out there does not "
                "come back. To have it there again, name that sink and let the pipeline run first."
            )
        if there:
            self._drafting.note(
                "readers of the table miss these batches until they have run again; the janitor removes what goes out."
            )
