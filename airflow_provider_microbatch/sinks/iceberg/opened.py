"""An Iceberg table, opened: the operations that the orchestrator calls."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from airflow_provider_microbatch.checkpoint.identity import BatchIdentity
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.checkpoint.known_tables import KnownTables
from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.runtime.intake import Intake
from airflow_provider_microbatch.runtime.job import Stage
from airflow_provider_microbatch.sinks import ExpectedBatch, Manifest, Sink, SinkContext
from airflow_provider_microbatch.sinks.dropped import TellsDropped
from airflow_provider_microbatch.sinks.file.report import read_schema, reporting
from airflow_provider_microbatch.sinks.iceberg import IcebergSink, protocol
from airflow_provider_microbatch.sinks.iceberg.adding import data_file_of
from airflow_provider_microbatch.sinks.iceberg.catalog import CatalogBusyError, catalog_of
from airflow_provider_microbatch.sinks.iceberg.columns import Columns
from airflow_provider_microbatch.sinks.iceberg.intake import intake_of
from airflow_provider_microbatch.sinks.iceberg.log import PATIENCE_SECONDS, IcebergLog
from airflow_provider_microbatch.sinks.iceberg.look import Look
from airflow_provider_microbatch.sinks.iceberg.of_snapshot import OfSnapshot
from airflow_provider_microbatch.sinks.iceberg.partitions import spec_of
from airflow_provider_microbatch.sinks.iceberg.removing import Removal, attempts_shown, batches_with_rows, removal_of
from airflow_provider_microbatch.sinks.iceberg.rolled_away import rolled_away
from airflow_provider_microbatch.sinks.iceberg.unrecorded import LooksForCopies
from airflow_provider_microbatch.sinks.placed import HIDDEN, Placed
from airflow_provider_microbatch.sinks.placed.logged import Published, check_tells_batches, rows_written
from airflow_provider_microbatch.sinks.placed.places import DATA, IsIn, Place, in_place
from airflow_provider_microbatch.sinks.placed.unrecorded import Asked
from airflow_provider_microbatch.sinks.table_folder import check_file_system, check_writable

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Change:
    """What a commit does to the table's rows, besides saying which output the batch has.

    :param added: files that it adds.
    :param removed: files that it removes.
    :param rows: how many of the rows that it removes were the batch's.
    :param newest: number of the record of the newest changes that belongs to the rows; None for a table of rows.
    """

    added: Sequence[DataFile]
    removed: Sequence[DataFile]
    rows: int = 0
    newest: int | None = None


class OpenIceberg(LooksForCopies, TellsDropped):
    """Each method reads the table anew. A commit is for the branch exactly as it was read, so if two attempts publish
    one batch, the later one finds the batch in; before its next try a method repeats its checks.

    :param sink: its definition.
    :param data: the folder below the table's of the batches' files.
    """

    def __init__(self, sink: IcebergSink, context: SinkContext, *, data: str = DATA) -> None:
        super().__init__(sink.folder, options=sink.options, data=data)
        self._sink = sink
        self._rows_are_judged = context.rows_are_judged
        catalog = catalog_of(sink, context)
        self._log = IcebergLog(catalog, sink.root, sink.root / HIDDEN, sink.branch)
        self._batches_shown = OfSnapshot(self._read_batches)
        self._attempts_shown = OfSnapshot(self._read_attempts)

    @property
    def definition(self) -> IcebergSink:
        return self._sink

    def check(self) -> None:
        check_writable(self._root)
        check_file_system(self._root)
        with reporting("look at", self._root):
            look = self._log.look()
            if look is not None:
                self._check(look, held=intake_of(look.table.schema()).rules if self._rows_are_judged else ())
                self._check_none_came_back(look)

    def intake(self) -> Intake | None:
        with reporting("look at", self._root):
            look = self._log.look()
        return None if look is None else intake_of(look.table.schema())

    def stage(self, batch: BatchIdentity, epoch: int) -> Stage:
        stage = super().stage(batch, epoch)
        groups = {f"microbatch_group_{at}": [one.transform, one.column] for at, one in enumerate(self._sink.partitions)}
        return Stage(
            writer=stage.writer,
            arguments={**stage.arguments, "groups": groups},
            report=stage.report,
            reserved_columns=(*stage.reserved_columns, *groups),
            fence=stage.fence,
        )

    def contains(self, batch: ExpectedBatch) -> Manifest | None:
        with reporting("look for", batch.key):
            if not self._folder.is_here(batch.tables):
                return None
            look = self._log.look()
            found = self._published(look, batch)
            if look is None or found is None:
                return None
            away = rolled_away(look, self._last(look))
            if away is None or str(batch.key) in away.gone:
                self._check_not_rolled_back(look)
            # A commit entry relies on this answer.
            self._settle(found)
        return found.own

    def withdraw(self, batch: ExpectedBatch, epoch: int) -> bool:
        key, before = batch.key, None
        if self.contains(batch) is None:
            return False
        with reporting("withdraw", key):
            for look in self._log.looks():
                found = self._published(look, batch)
                if look is None or found is None:
                    return before is not None
                self._check_is_of(found, epoch)
                self._settle(found)
                change = self._change(look, batch, out=found, placed=None, before=before)
                if change is None:
                    continue
                before = before or (look, change.rows)
                if self._commit(look, batch, None, {"microbatch.withdrawn": str(epoch)}, change):
                    self._let_go(found, change)
                    return True
        raise self._outrun(key)

    def damage(self, batch: ExpectedBatch, found: Manifest) -> str | None:
        rows = rows_written(found)
        with reporting("look into", batch.key):
            look = self._log.look()
            if look is None or not rows:
                return None
            if batch.key in self._batches_shown.of(look):
                return self._put_back(look, batch.key, found)
            head = "no snapshot" if look.head is None else f"snapshot {look.head.snapshot_id}"
        return f"none of its {rows:,} rows is in {head}"

    def put_back(self, batch: ExpectedBatch, found: Manifest) -> str | None:
        with reporting("look into", batch.key):
            look = self._log.look()
            return None if look is None else self._put_back(look, batch.key, found)

    def _put_back(self, look: Look, key: BatchKey, found: Manifest) -> str | None:
        """See :meth:`put_back`. A compaction leaves no file of any attempt, and then nobody can tell."""
        number = self._number(look, key)
        if look.head is None or number is None:
            return None
        shown = self._attempts_shown.of(look).get(key, ())
        if number in shown or not shown:
            return None
        return f"its rows in snapshot {look.head.snapshot_id} are those of before attempt {found.epoch}"

    def _read_attempts(self, look: Look, head: int | None) -> Mapping[BatchKey, Collection[int]]:
        """The attempts of which the branch has files; none where nobody can list them."""
        with suppress(SinkError):
            return attempts_shown(look.table, head, self._root)
        return {}

    def _read_batches(self, look: Look, head: int | None) -> Collection[BatchKey]:
        """The batches of the record of which the branch may have rows: all where a file cannot be read."""
        keys = self._log.ledger.batches(self._log.record(look))
        with suppress(SinkError):
            return batches_with_rows(look.table, head, keys, where=self._where)
        return keys

    def is_gone(self) -> bool:
        with reporting("look at", self._root):
            return self._log.is_branch_gone()

    def was_dropped(self) -> bool:
        with reporting("look for", self._root):
            return self._log.was_dropped()

    def is_table_of(self, before: Sink, tables: KnownTables) -> bool:
        return isinstance(before, IcebergSink) and self._folder.is_table_of(before.folder, tables)

    def unmerged(self, batch: ExpectedBatch, wrote: Sink) -> str | None:
        if not isinstance(wrote, IcebergSink) or wrote.branch == self._sink.branch:
            return None
        if not self._sink.is_branch_beside(wrote):
            return None
        with reporting("look for", batch.key):
            return self._log.unmerged(wrote.branch)

    def batches(self, lane: str, tables: KnownTables) -> list[int]:
        return self.batches_after(lane, -1, tables)

    def batches_after(self, lane: str, number: int, tables: KnownTables) -> list[int]:
        with reporting("list", self._root):
            look = self._log.look() if self._folder.is_here(tables) else None
            return [] if look is None else self._log.ledger.ids(self._log.record(look), lane, after=number)

    def lanes(self, tables: KnownTables) -> list[str]:
        with reporting("list", self._root):
            look = self._log.look() if self._folder.is_here(tables) else None
            return [] if look is None else self._log.ledger.lanes(self._log.record(look))

    def _check(self, look: Look, *, held: Collection[str]) -> None:
        where = self._log.where
        protocol.check(look.table, partitions=self._sink.partitions, root=self._root, where=where, held=held)
        protocol.check_not_merged(look.table, where=where)
        self._check_tells_batches(look)
        self._check_not_rolled_back(look)

    def check_whole(self) -> None:
        with reporting("look at", self._root):
            look = self._log.look()
            if look is not None:
                self._check_tells_batches(look)
                self._check_not_rolled_back(look)
                self._check_none_came_back(look)

    def _check_tells_batches(self, look: Look) -> None:
        names = [one.name for one in look.table.schema().fields]
        batches = self._batches(look)
        back = "Bring the table's metadata of before back to its catalog"
        check_tells_batches(names, batches, where=self._where, back=back)

    def _last(self, look: Look) -> tuple[int, int] | None:
        """Id and sequence number of the last snapshot of this package on the branch."""
        return look.last_on(look.branch)

    def _check_not_rolled_back(self, look: Look) -> None:
        """:raises RolledBackError: if the branch was set back to before that snapshot."""
        self._log.check_not_rolled_back(look)

    def _numbers_for_good(self, key: BatchKey) -> Collection[int]:
        """The numbers by which any branch has the batch. In this branch no commit that was begun earlier can change
        that: a catalog may still be carrying out a commit whose process has died."""
        for look in self._log.looks():
            if look is None:
                return ()
            if self._log.pass_by(look):
                own, others = self._number(look, key), self._log.ledger.numbers_by_branch(look.properties, key)
                return {*others.values(), *(() if own is None else (own,))}
        raise self._outrun(key)

    def _is_in_now(self) -> IsIn:
        @cache
        def record() -> Mapping[str, str]:
            look = self._log.look()
            return {} if look is None else self._log.record(look)

        return lambda key, number: self._log.ledger.number(record(), key.lane, key.id) == number

    def _published(self, look: Look | None, batch: ExpectedBatch) -> Published | None:
        """:raises ForeignBatchError: if other output is at the batch's place."""
        return self._published_as(self._number(look, batch.key), batch)

    def _settle(self, found: Published) -> None:
        """Remove the mark of the attempt's place, which is not needed any more: the table names its files."""
        self._forget(self._place_of(found))

    def _forget(self, place: Place) -> None:
        self._places.forget(place)

    def _put(self, batch: ExpectedBatch, epoch: int, *, replaces: bool) -> Manifest:
        """Commit the attempt's files to the table, or find that some attempt's files are in it."""
        key, before = batch.key, None
        asked: Asked | None = None
        is_asked = False
        with reporting("replace" if replaces else "publish", key), self._places.locked(batch.staged, epoch):
            for look in self._log.looks():
                found = self._published(look, batch)
                if found is not None and self._stands(found, epoch, replaces=replaces):
                    self._settle(found)
                    return found.own
                placed = self._place(batch, epoch)
                columns = self._columns(placed)
                if look is None:
                    self._create(batch, placed, columns)
                    continue
                if found is None:
                    self._check_in_no_other(look, batch, placed)
                else:
                    self._settle(found)
                self._check_fits(look, held=placed.manifest.held_to)
                if found is None or self._log.stays_rolled_back(look):
                    asked, is_asked = asked if is_asked else self._asked(look, batch, epoch), True
                    self._check_none_unrecorded(look, asked)
                if self._widen(look, columns):
                    continue
                change = self._change(look, batch, out=found, placed=placed, before=before)
                if change is None:
                    continue
                if found is not None:
                    before = before or (look, change.rows)
                if self._commit_placed(look, batch, placed, change):
                    self._settle(Published(placed.place.number, placed.manifest, placed.manifest))
                    self._let_go(found, change)
                    return placed.manifest
        raise self._outrun(key)

    def _check_in_no_other(self, look: Look, batch: ExpectedBatch, placed: Placed) -> None:
        """Check that no other branch has the attempt's files. :raises SinkError: if one has."""
        for branch, number in self._log.ledger.numbers_by_branch(look.properties, batch.key).items():
            if branch != look.branch and branch in look.table.metadata.refs and number == placed.place.number:
                raise SinkError(
                    f"batch {batch.key} attempt {placed.manifest.epoch} is in branch {branch!r} of {self._log.where}, "
                    f"and would be in branch {look.branch!r} too. Nothing was published. Name branch={branch!r} again "
                    "for this batch."
                )

    def _create(self, batch: ExpectedBatch, placed: Placed, columns: Columns) -> None:
        """Make the table, without a row, for its first batch."""
        schema = columns.schema
        self._log.create(schema, spec_of(self._sink.partitions, schema))

    def _columns(self, placed: Placed) -> Columns:
        """The columns of an attempt that readers of the table get."""
        told = read_schema(self._root / placed.place.below)
        return Columns.of_stage(told, partitions=self._sink.partitions, where=self._log.where)

    def _check_fits(self, look: Look, *, held: Collection[str]) -> None:
        """:param held: the rules that the rows of a stage were held against.
        :raises SinkError: if the table takes rows by others, or nothing can be written to it.
        """
        if self._rows_are_judged:
            self._check_held(intake_of(look.table.schema()), held)
        self._check(look, held=held)
        self._log.remember(look)

    def _widen(self, look: Look, columns: Columns) -> bool:
        """Check that the stage's columns fit the table, and add some to the table if that is allowed. Two writers that
        do so at once end with the same columns.

        :return: whether the table has changed, and has to be read again.
        """
        where = self._log.where
        missing = columns.missing(look.table.schema(), policy=self._sink.schema_policy, where=where)
        if missing:
            log.warning(
                "%s gets the columns %s", where, ", ".join(f"{name} ({kind})" for name, kind in missing.items())
            )
            self._log.add_columns(look, missing)
        return bool(missing)

    def _change(
        self,
        look: Look,
        batch: ExpectedBatch,
        *,
        out: Published | None,
        placed: Placed | None,
        before: tuple[Look, int] | None,
    ) -> Change | None:
        """What the commit on top of the look does.

        :param out: the batch's output that is in, and goes out; None if there is none.
        :param placed: the output that comes in; None if the batch is taken out.
        :param before: the look of an earlier try, and the number of the batch's rows in it.
        :return: None if other commits have made the look useless, so that the table has to be read again.
        :raises SinkError: if it cannot be done.
        """
        removal = Removal(look.table)
        if out is not None:
            removal = self._removal(look, batch.key, before)
            if placed is not None:
                self._warn_of_deleted(out, removal.rows)
        # Files rewritten for a failed commit are left to a removal of orphan files: the commit may have succeeded after
        # all.
        return Change(added=[*removal.added, *self._adds(look, placed)], removed=removal.removed, rows=removal.rows)

    def _adds(self, look: Look, placed: Placed | None) -> Iterator[DataFile]:
        if placed is None:
            return
        folder = self._root / placed.place.below
        for _, now in in_place(folder, placed.manifest):
            added = data_file_of(look.table.metadata, folder / now)
            if added is not None:
                yield added

    def _let_go(self, out: Published | None, change: Change) -> None:
        """Remove what nothing needs any more after the commit of a change.

        :param out: the batch's output that went out; None if there was none.
        """

    def _removal(self, look: Look, key: BatchKey, before: tuple[Look, int] | None) -> Removal:
        """The changes that take the batch out.

        :param before: the look of an earlier try, and the number of the batch's rows in it.
        :raises SinkError: if another writer has removed some of these rows since.
        """
        where = self._log.where
        # All rows keep to the table's rules already, those that stay and those that come.
        self._check(look, held=intake_of(look.table.schema()).rules)
        head = None if look.head is None else look.head.snapshot_id
        removal = removal_of(look.table, head, key, where=where)
        if before is not None and removal.rows < before[1]:
            removal.undo()
            since = None if before[0].head is None else before[0].head.snapshot_id
            raise self._deleted_meanwhile(key, look.commits_after(since))
        return removal

    def _commit_placed(self, look: Look, batch: ExpectedBatch, placed: Placed, change: Change) -> bool:
        manifest = placed.manifest
        identity = manifest.identity
        info = {
            "microbatch.epoch": str(manifest.epoch),
            "microbatch.manifest": f"{placed.place.number:016x}",
            "microbatch.identity": json.dumps(identity.to_dict() if identity else None),
        }
        return self._commit(look, batch, placed.place.number, info, change)

    def _commit(
        self, look: Look, batch: ExpectedBatch, number: int | None, info: Mapping[str, str], change: Change
    ) -> bool:
        try:
            return self._log.commit(
                look,
                key=batch.key,
                number=number,
                info=info,
                added=change.added,
                removed=change.removed,
                newest=change.newest,
            )
        except CatalogBusyError as error:
            log.warning("%s. It is looked for in the table.", error)
            return False

    def _outrun(self, key: BatchKey) -> SinkError:
        return SinkError(
            f"batch {key} could not be committed to {self._log.where} within {PATIENCE_SECONDS:.0f} s: others commit "
            "all the time, or its catalog does not take it. If it came to be all the same, the next try finds it."
        )
