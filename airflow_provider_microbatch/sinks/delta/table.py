"""The batches of a Delta table, as its log has them, wherever the table lies."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from shlex import quote
from typing import Any

from airflow_provider_microbatch.checkpoint.identity import BatchIdentity
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.checkpoint.known_tables import KnownTables
from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.runtime.intake import Intake
from airflow_provider_microbatch.sinks import Compacted, Compaction, ExpectedBatch, Manifest, PublishedRows
from airflow_provider_microbatch.sinks.delta import DeltaSink, protocol
from airflow_provider_microbatch.sinks.delta.adding import add_of, partition_values
from airflow_provider_microbatch.sinks.delta.change import Change, Ready
from airflow_provider_microbatch.sinks.delta.columns import Columns
from airflow_provider_microbatch.sinks.delta.compacting import Compacting
from airflow_provider_microbatch.sinks.delta.home import Home
from airflow_provider_microbatch.sinks.delta.intake import intake_of, rules_of
from airflow_provider_microbatch.sinks.delta.log import PATIENCE_SECONDS, WITHDRAWN, DeltaLog, Snapshot, transaction_of
from airflow_provider_microbatch.sinks.delta.put_back import is_of_whole, restoring
from airflow_provider_microbatch.sinks.delta.removing import Removal, files_of, removal_of, those_in
from airflow_provider_microbatch.sinks.delta.unrecorded import LooksForCopies
from airflow_provider_microbatch.sinks.placed.logged import Published, check_tells_batches
from airflow_provider_microbatch.sinks.placed.unrecorded import Asked

log = logging.getLogger(__name__)

_NAMED = 20
"""How many batches are named at most."""


class OpenDeltaTable(LooksForCopies):
    """Each method reads the log anew. A commit is for exactly the version that follows the snapshot it checked, so if
    two attempts publish one batch, the later one finds the batch in; before its next try a method repeats its checks.

    :param sink: its definition.
    :param home: where the table lies.
    :param rows_are_judged: whether rows that the table cannot take are kept out of it.
    """

    def __init__(self, sink: DeltaSink, home: Home, *, rows_are_judged: bool) -> None:
        self._sink = sink
        self._home = home
        self._log = DeltaLog(home)
        self._rows_are_judged = rows_are_judged

    @property
    def definition(self) -> DeltaSink:
        return self._sink

    @abstractmethod
    def _ready(self, batch: ExpectedBatch, epoch: int) -> Ready:
        """An attempt's output, which is whole, of this plan and in a place where the log can name its files.

        :raises SinkError: if there is no such output.
        """

    @abstractmethod
    def _in_place(self, ready: Ready) -> Iterable[tuple[str, str]]:
        """For each file its path as Spark wrote it, and its present path, which every reader and writer spells alike;
        both relative to the attempt's folder.

        :raises SinkError: if a file is missing, or was changed.
        """

    @abstractmethod
    def _batch_of(self, path: str) -> BatchKey | None:
        """The batch whose own file has that path; None if it is another file's."""

    @abstractmethod
    def _number_of(self, path: str, *, maybe: int | None = None) -> int:
        """The number of the manifest of the attempt that wrote a batch's own file.

        :param maybe: the number that it most likely is.
        :raises SinkError: if that manifest is gone.
        """

    @abstractmethod
    def _confirm(self, found: Published) -> None:
        """Make sure that the log's record of the output lasts: a commit entry is about to rely on it."""

    @abstractmethod
    def _settle(self, found: Published) -> None:
        """Make sure of it, and remove the mark of the attempt, which is not needed any more."""

    @abstractmethod
    def _publishing(self, batch: ExpectedBatch, epoch: int) -> AbstractContextManager[None]:
        """Held while an attempt's output is being committed."""

    def intake(self) -> Intake | None:
        with self._telling("look at"):
            snapshot = self._log.open()
        return None if snapshot is None else intake_of(snapshot)

    def contains(self, batch: ExpectedBatch) -> Manifest | None:
        with self._telling("look for", batch.key):
            found = self._published(self._log.open(), batch) if self._is_here(batch.tables) else None
            if found is None:
                return None
            self._confirm(found)
        return found.own

    def withdraw(self, batch: ExpectedBatch, epoch: int) -> bool:
        key, before = batch.key, None
        self.contains(batch)
        with self._telling("withdraw", key):
            for snapshot in self._log.snapshots():
                found = self._published(snapshot, batch)
                if snapshot is None or (found is None and not self._back(snapshot, [key])):
                    return False
                self._check_kept(snapshot)
                if found is not None:
                    self._check_is_of(found, epoch)
                    self._settle(found)
                change = self._change(snapshot, batch, out=found, ready=None, before=before)
                if change is None:
                    continue
                before = before or (snapshot.version, change.rows)
                if self._commit(snapshot, change, batch, WITHDRAWN, {"withdrawn": epoch}):
                    self._log.sync(since_ns=0)
                    self._let_go(found, change)
                    return True
        raise self._outrun(key)

    def published_rows(self, batch: ExpectedBatch) -> PublishedRows:
        with self._telling("read", batch.key):
            snapshot = self._log.open()
            found = None if snapshot is None else self._published(snapshot, batch)
            if snapshot is None or found is None:
                raise SinkError(f"batch {batch.key} is not in the Delta table {self._where}.")
            # Whoever runs letters of before a clear again has rows twice, and loses others; a clear brings them back.
            differs = self._differs(snapshot, batch.key, found.own, for_sure=False)
            if differs is not None:
                raise SinkError(f"{differs}. Bring them back to the Delta table {self._where}.")
            rules = rules_of(snapshot)
            self._check_as_it_is(snapshot, held=rules)
            # From a file with a deletion vector, Spark would read rows that were deleted.
            protocol.check_may_remove(snapshot, where=self._where)
            base = self.location()
            paths = tuple(f"{base}/{path}" for path in files_of(snapshot, batch.key))
        return PublishedRows(format="parquet", base=base, paths=paths)

    def compact(self, wanted: Compaction) -> Compacted:
        with self._telling("compact files"):
            if not self._is_here(wanted.tables):
                return Compacted()
            return Compacting(
                self._log,
                self._records,
                partition_by=self._sink.partition_by,
                batch_of=self._batch_of,
                number_of=self._number_of,
            ).compact(wanted)

    def check_whole(self) -> None:
        with self._telling("look at"):
            snapshot = self._log.open()
            if snapshot is not None:
                by, records = self._sink.partition_by, self._records
                protocol.check_whole(snapshot, partition_by=by, where=self._where, records=records)
                self._check_kept(snapshot)

    def batches(self, lane: str, tables: KnownTables) -> list[int]:
        with self._telling("list the batches"):
            snapshot, keys = self._ever_in(tables, lane, self._records.ids(lane))
            return [] if snapshot is None else [key.id for key in keys if snapshot.number(key) is not None]

    def batches_after(self, lane: str, number: int, tables: KnownTables) -> list[int]:
        with self._telling("list the batches"):
            snapshot, keys = self._ever_in(tables, lane, self._records.ids(lane, after=number))
            return [] if snapshot is None else [key.id for key in keys if snapshot.number(key) is not None]

    def came_back(self, lane: str, ids: Iterable[int] | None, tables: KnownTables) -> Mapping[int, frozenset[str]]:
        with self._telling("look for batches that were taken out"):
            asked = self._records.ids(lane) if ids is None else sorted(set(ids))
            snapshot, keys = self._ever_in(tables, lane, asked)
            back = [] if snapshot is None else self._back(snapshot, keys, are_known=ids is not None)
            return {} if snapshot is None else {key.id: self._plans_back(snapshot, key) for key in back}

    def undoing(self, lane: str, ids: Collection[int], tables: KnownTables) -> str | None:
        with self._telling("look for batches that were taken out"):
            snapshot, keys = self._ever_in(tables, lane, ids)
            newest = None if snapshot is None else next(iter(snapshot.history(1)), None)
            if snapshot is None or newest is None or not is_of_whole(newest):
                return None  # what somebody has copied there may be the only copy
            before = self._log.at(snapshot.version - 1)
            if before is None or self._back(before, keys, are_known=True):
                return None  # what was committed since would go with it
            return restoring(self._home, before.version, at=before.version + 1)

    def _ever_in(self, tables: KnownTables, lane: str, ids: Iterable[int]) -> tuple[Snapshot | None, list[BatchKey]]:
        """The table as it is now, and batches that it may never have had; no table where there are none."""
        keys = [BatchKey(lane, id) for id in ids] if self._is_here(tables) else []
        snapshot = self._log.open() if keys else None
        if snapshot is not None:
            protocol.check_memory(snapshot, where=self._where)
        return snapshot, keys

    def _back(self, snapshot: Snapshot, keys: Sequence[BatchKey], *, are_known: bool = False) -> list[BatchKey]:
        """Those of the batches whose rows in the snapshot were taken out, and were put back.

        :param are_known: whether each of them was taken out, as the caller knows. Else rows of a plan that is none of
            the checkpoint's whose plan is in may be adopted ones, which a clear has made anew.
        """
        if snapshot.merged is not None:
            return []  # the newest changes tell of such a table as a whole
        present = self._present_in(snapshot)
        there = [key for key in keys if present.may_have(key)]
        another = partial(self._is_of_another_plan, snapshot, is_known=are_known)
        back = [key for key in there if snapshot.is_taken_out(key) or another(key)]
        return those_in(snapshot, self._home, back)  # somebody may have taken them out of a file that others share

    def _is_of_another_plan(self, snapshot: Snapshot, key: BatchKey, *, is_known: bool) -> bool:
        """Whether rows that the snapshot has of the batch are of a plan that was taken out before the one that is in
        was made: others of its lane have read what these are of."""
        number, present = snapshot.number(key), self._present_in(snapshot)
        if number is None:
            return False
        paths = present.own_of(key)
        last = None if paths else present.last_of(key)
        if not paths and last in (None, WITHDRAWN):
            # A file that others share does not tell of which attempt its rows are, nor does the history any more.
            return all(
                present.put_back_by(key, f"{one:016x}", for_sure=False, was_there=was_there) is not None
                for one, was_there in ((number, False), (WITHDRAWN, is_known))
            )
        own = {self._number_of(path, maybe=number) for path in paths} if last is None else {last}
        others = own - {number}
        now = self._plan(key, number) if others else None
        return any(
            plan != now and (is_known or (plan and now and plan.checkpoint == now.checkpoint))
            for plan in (self._plan(key, other) for other in others)
        )

    def _plans_back(self, snapshot: Snapshot, key: BatchKey) -> frozenset[str]:
        """The digests of the plans, beside the one that is in, of which the snapshot has rows; none if nobody can tell
        those of all rows."""
        number, present = snapshot.number(key), self._present_in(snapshot)
        if present.may_share(key):
            return frozenset()
        try:
            plans = {self._plan(key, self._number_of(path)) for path in present.own_of(key)}
            now = None if number is None else self._plan(key, number)
        except SinkError:
            return frozenset()  # a manifest is gone
        return frozenset() if None in plans else frozenset(plan.digest for plan in plans if plan and plan != now)

    def _plan(self, key: BatchKey, number: int) -> BatchIdentity | None:
        return self._records.get(key, number).identity

    def lanes(self, tables: KnownTables) -> list[str]:
        with self._telling("list the lanes"):
            return self._records.lanes() if self._is_here(tables) else []

    @property
    def _where(self) -> str:
        return self._home.where

    def _check_log(self) -> None:
        """:raises SinkError: if the table is there, and asks of its writers what is not done here."""
        snapshot = self._log.open()
        if snapshot is not None:
            self._check_writable(snapshot, held=rules_of(snapshot) if self._rows_are_judged else ())

    def _check_writable(self, snapshot: Snapshot, *, held: Collection[str]) -> None:
        """:raises SinkError: if the table asks of its writers what is not done here, or is written in another way."""
        self._check_as_it_is(snapshot, held=held)
        self._check_kept(snapshot)

    def _check_as_it_is(self, snapshot: Snapshot, *, held: Collection[str]) -> None:
        """See :func:`protocol.check`."""
        by, records = self._sink.partition_by, self._records
        protocol.check(snapshot, partition_by=by, where=self._where, records=records, held=held)

    def _check_kept(self, snapshot: Snapshot) -> None:
        """:raises SinkError: if the rows of the table's batches are kept otherwise than this sink does it, so that it
        could neither bring one in nor take one out."""
        protocol.check_not_merged(snapshot, where=self._where)
        check_tells_batches(
            [one["name"] for one in snapshot.schema["fields"]],
            (key for key in self._records.batches() if snapshot.number(key) is not None),
            where=f"the Delta table {self._where}",
            back="Bring a version back that has them (DESCRIBE HISTORY names them; RESTORE TABLE … TO VERSION AS OF …)",
        )

    def _published(self, snapshot: Snapshot | None, batch: ExpectedBatch) -> Published | None:
        """:raises ForeignBatchError: if other output is at the batch's place."""
        if snapshot is None:
            return None
        protocol.check_memory(snapshot, where=self._where)
        return self._published_as(snapshot.number(batch.key), batch)

    def _put(self, batch: ExpectedBatch, epoch: int, *, replaces: bool) -> Manifest:
        """Commit the attempt's files to the table's log, or find that some attempt's files are in it."""
        key, before = batch.key, None
        asked: Asked | None = None
        is_asked = False
        with self._telling("replace" if replaces else "publish", key), self._publishing(batch, epoch):
            for snapshot in self._log.snapshots():
                found = self._published(snapshot, batch)
                if found is not None and self._stands(found, epoch, replaces=replaces):
                    self._settle(found)
                    return found.own
                ready = self._ready(batch, epoch)
                columns = self._shown(self._columns(ready.schema, ready.manifest))
                if snapshot is not None:
                    self._check_fits(snapshot, held=ready.manifest.held_to)
                if found is not None:
                    self._settle(found)
                elif snapshot is not None:
                    # Once: whether a batch is in may take a question for each that was taken out, and others would
                    # commit meanwhile, at each try.
                    asked, is_asked = asked if is_asked else self._asked(snapshot, batch, epoch), True
                    self._check_none_unrecorded(snapshot, asked)
                if snapshot is not None and self._widen(snapshot, columns):
                    continue
                change = self._change(snapshot, batch, out=found, ready=ready, before=before)
                if change is None:
                    continue
                if snapshot is not None and found is not None:
                    before = before or (snapshot.version, change.rows)
                if self._commit_ready(snapshot, ready, columns, change, batch):
                    self._settle(Published(ready.number, ready.manifest, ready.manifest))
                    self._let_go(found, change)
                    return ready.manifest
        raise self._outrun(key)

    def _columns(self, told: Mapping[str, Any] | None, manifest: Manifest) -> Columns:
        """The columns of a stage.

        :param told: as the runtime has recorded them.
        :raises SinkError: if nobody knows them, or the table cannot have one.
        """
        if told is None and manifest.files:
            raise SinkError(
                f"the stage of batch {manifest.key} attempt {manifest.epoch} of the Delta table {self._where} does not "
                "tell its columns any more: somebody has removed a part of it. Nothing was published; run the batch "
                "again."
            )
        where = f"the Delta table {self._where}"
        return Columns.of_stage(told, partition_by=self._sink.partition_by, where=where)

    def _shown(self, columns: Columns) -> Columns:
        """Those of a stage's columns that readers of the table get."""
        return columns

    def _check_fits(self, snapshot: Snapshot, *, held: Collection[str]) -> None:
        """:param held: the rules that the rows of a stage were held against.
        :raises SinkError: if the table takes rows by others, or nothing can be written to it.
        """
        if self._rows_are_judged:
            self._check_held(intake_of(snapshot), held)
        self._check_writable(snapshot, held=held)

    def _widen(self, snapshot: Snapshot, columns: Columns) -> bool:
        """Check that the stage's columns fit the table, and add some to the table if that is allowed. Two writers that
        do so at once end with the same columns.

        :return: whether the table has changed, and has to be read again.
        """
        where = f"the Delta table {self._where}"
        missing = columns.missing(snapshot.schema, policy=self._sink.schema_policy, where=where)
        if missing:
            log.warning("%s gets the columns %s", where, ", ".join(f"{one['name']} ({one['type']})" for one in missing))
            self._log.add_columns(snapshot, missing)
        return bool(missing)

    def _change(
        self,
        snapshot: Snapshot | None,
        batch: ExpectedBatch,
        *,
        out: Published | None,
        ready: Ready | None,
        before: tuple[int, int] | None,
    ) -> Change | None:
        """What the commit after the snapshot does.

        :param out: the batch's output that is in, and goes out; None if there is none, or it was taken out before, and
            its rows were put back.
        :param ready: the output that comes in; None if the batch is taken out.
        :param before: the version that an earlier try has read, and the number of the batch's rows in it.
        :return: None if other commits have made the snapshot useless, so that a newer one has to be read.
        :raises SinkError: if it cannot be done.
        """
        removal = Removal(self._home)
        if snapshot is not None and (out is not None or ready is None):
            removal = self._removal(snapshot, batch, before)
            if out is not None and ready is not None:
                self._warn_of_deleted(out, removal.rows)
        elif snapshot is not None:
            self._check_none_back(snapshot, batch)
        # Files rewritten for a failed commit are left to VACUUM: the commit may have succeeded after all.
        return Change(actions=[*removal.actions, *self._adds(ready)], rows=removal.rows)

    def _check_none_back(self, snapshot: Snapshot, batch: ExpectedBatch) -> None:
        """Check that no rows of this batch or a later one were put back, since it was planned: it may be made of what
        they are of. Rows of those before are seen by the next plan.

        :raises SinkError: if there are some.
        """
        keys = [BatchKey(batch.key.lane, id) for id in self._records.ids(batch.key.lane, after=batch.key.id - 1)]
        # Each question for a transaction replays the log: one costs less than the figures of all files, many cost more,
        # and a publish that asks for long between its snapshot and its commit is outrun by other writers.
        back = self._back(snapshot, keys) if len(keys) > 1 or any(map(snapshot.is_taken_out, keys)) else []
        if back:
            place = quote(batch.identity.location) if batch.identity.location else "LOCATION"
            raise SinkError(
                f"the Delta table {self._where} has rows again that were taken out, of batch "
                f"{', '.join(map(str, back[:_NAMED]))}{' …' if len(back) > _NAMED else ''}: somebody has put the table "
                f"back (RESTORE). Nothing was published. `microbatch check {place} --table` names the way on."
            )

    def _adds(self, ready: Ready | None) -> Iterator[Any]:
        if ready is None:
            return
        for file, now in self._in_place(ready):
            add = add_of(self._home, f"{ready.below}/{now}", partition_values(file))
            if add is not None:
                yield add

    def _let_go(self, out: Published | None, change: Change) -> None:
        """Remove what nothing needs any more after the commit of a change, which is durable.

        :param out: the batch's output that went out; None if there was none.
        """

    def _removal(self, snapshot: Snapshot, batch: ExpectedBatch, before: tuple[int, int] | None) -> Removal:
        """The changes that take the batch out.

        :param before: the version that an earlier try has read, and the number of the batch's rows in it.
        :raises SinkError: if another writer has removed some of these rows since.
        """
        where = self._where
        # Removing a file without naming its deletion vector would leave the file, and its rows, in the table.
        # All rows keep to the table's rules already, those that stay and those that come.
        self._check_as_it_is(snapshot, held=rules_of(snapshot))
        protocol.check_may_remove(snapshot, where=where)
        removal = removal_of(snapshot, self._home, batch.key)
        if before is not None and removal.rows < before[1]:
            removal.undo()
            raise self._deleted_meanwhile(batch.key, snapshot.commits_after(before[0]))
        return removal

    def _commit_ready(
        self,
        snapshot: Snapshot | None,
        ready: Ready,
        columns: Columns,
        change: Change,
        batch: ExpectedBatch,
    ) -> bool:
        identity = ready.manifest.identity
        info = {"epoch": ready.manifest.epoch, "identity": identity.to_dict() if identity else None}
        if snapshot is None:
            return self._log.create(
                change.actions,
                schema=columns.schema,
                partition_by=self._sink.partition_by,
                info=info,
                transactions={transaction_of(batch.key): ready.number, **change.transactions},
            )
        return self._commit(snapshot, change, batch, ready.number, info)

    def _commit(
        self, snapshot: Snapshot, change: Change, batch: ExpectedBatch, number: int, info: Mapping[str, Any]
    ) -> bool:
        told = {**info, "batch": str(batch.key), "manifest": f"{number:016x}"}
        return self._log.commit(
            snapshot, change.actions, key=batch.key, number=number, info=told, transactions=change.transactions
        )

    def _outrun(self, key: BatchKey) -> SinkError:
        return SinkError(
            f"batch {key} could not be committed to the Delta table {self._where} within {PATIENCE_SECONDS:.0f} s: "
            "others commit all the time, or its folder cannot be written. Nothing was changed; run the batch again."
        )
