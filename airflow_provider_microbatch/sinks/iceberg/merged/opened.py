"""An Iceberg table into which changes are merged, opened."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from airflow_provider_microbatch.checkpoint.identity import BatchIdentity
from airflow_provider_microbatch.exceptions import RolledBackError
from airflow_provider_microbatch.runtime.intake import Intake
from airflow_provider_microbatch.runtime.job import Stage
from airflow_provider_microbatch.sinks import ExpectedBatch, Manifest, SinkContext
from airflow_provider_microbatch.sinks.file.arguments import RESERVED_COLUMNS
from airflow_provider_microbatch.sinks.file.report import reporting
from airflow_provider_microbatch.sinks.iceberg import IcebergSink, protocol
from airflow_provider_microbatch.sinks.iceberg.columns import Columns, type_alone
from airflow_provider_microbatch.sinks.iceberg.look import Look
from airflow_provider_microbatch.sinks.iceberg.merged.merging import Merging
from airflow_provider_microbatch.sinks.iceberg.opened import Change, OpenIceberg
from airflow_provider_microbatch.sinks.merge import Merge
from airflow_provider_microbatch.sinks.merged.checks import (
    ANEW,
    check_files,
    check_like_before,
    check_order,
    lacking,
    rows_there,
    unless_outdated,
)
from airflow_provider_microbatch.sinks.merged.columns import shown
from airflow_provider_microbatch.sinks.merged.history import CHANGES, History, folder_of_changes
from airflow_provider_microbatch.sinks.merged.judging import Judging
from airflow_provider_microbatch.sinks.merged.newest import FolderNewest
from airflow_provider_microbatch.sinks.merged.stage import of_changes
from airflow_provider_microbatch.sinks.placed import Placed
from airflow_provider_microbatch.sinks.placed.data_files import FolderFiles
from airflow_provider_microbatch.sinks.placed.logged import Published
from airflow_provider_microbatch.sinks.placed.places import in_place
from airflow_provider_microbatch.sinks.placed.unrecorded import Asked

_LOG = "the catalog's table"


class OpenMergedIceberg(OpenIceberg):
    """The operations that the orchestrator calls.

    :param sink: its definition.
    :param merge: how its changes are merged.
    """

    def __init__(self, sink: IcebergSink, context: SinkContext, merge: Merge) -> None:
        super().__init__(sink, replace(context, rows_are_judged=False), data=CHANGES)
        self._merge = merge
        self._newest = FolderNewest(sink.root)
        self._history = History(
            files=FolderFiles(sink.root), records=self._records, where=self._where, folder_of=folder_of_changes
        )

    def stage(self, batch: BatchIdentity, epoch: int) -> Stage:
        return of_changes(super().stage(batch, epoch), self._merge)

    def intake(self) -> Intake | None:
        return None  # a change that deletes its key has no values: which rows the table takes, a change does not tell

    def _unrecorded(self, look: Look, asked: Asked) -> str | None:
        return None  # made again, its changes take the place of the rows that their keys have there

    def damage(self, batch: ExpectedBatch, found: Manifest) -> str | None:
        with reporting("look into", batch.key):
            number = self._number(self._log.look(), batch.key)
            return None if number is None else self._history.damage(batch.key, number)

    def check_whole(self) -> None:
        with reporting("check the rows of", self._root):
            look = self._log.look()
            if look is not None:
                self._check_kept(look, files=True)

    def _check(self, look: Look, *, held: Collection[str]) -> None:
        protocol.check_may_merge(look.table, where=self._where)
        protocol.check(look.table, partitions=(), root=self._root, where=self._where)
        if look.merged is None and self._log.ledger.batches(self._log.record(look)):
            raise rows_there(self._where)
        self._check_kept(look)

    def _check_kept(self, look: Look, *, files: bool = False) -> None:
        """:param files: whether each file of the newest changes is looked for too, which a publish does as it reads.
        :raises SinkError: if the newest changes are not those of the table's rows, or not this sink's.
        """
        self._check_not_rolled_back(look)
        if look.merged is None:
            return
        try:
            before = self._newest.get(look.merged.number)
            if files:
                check_files(before, FolderFiles(self._root), where=self._where)
        except FileNotFoundError as error:
            if self._is_outdated(look):
                return  # the publish that has replaced it was checked
            raise lacking(error, log=_LOG, where=self._where) from error
        check_like_before(before, self._merge, where=self._where)

    def _last(self, look: Look) -> tuple[int, int] | None:
        return None if look.merged is None else look.merged.last

    def _check_not_rolled_back(self, look: Look) -> None:
        last = self._last(look)
        told = look.rolled_back(last)
        if last is None or told is None:
            return
        good, table = look.newest_with(last[0]), self._log.catalog.table
        way = f"its snapshots have expired: {ANEW}"
        if good is not None:
            code = f"CALL system.set_current_snapshot('{table}', {good})"
            way = f"bring its rows back: {code} (or by pyiceberg: manage_snapshots().set_current_snapshot({good}))"
        raise RolledBackError(
            f"{self._where} was rolled back {told}, and not the newest changes, by which the next change of a key is "
            f"judged: keys would keep wrong rows. Nothing was changed. To go on, {way}. To take batches out, use "
            "`microbatch rewind … --drop-output` after that."
        )

    def _create(self, batch: ExpectedBatch, placed: Placed, columns: Columns) -> None:
        # A table that is made of changes which cannot be merged would keep their columns for good.
        self._merging(None, placed).check(batch.key)
        super()._create(batch, placed, columns)

    def _columns(self, placed: Placed) -> Columns:
        types = super()._columns(placed).types
        if set(types) > set(RESERVED_COLUMNS):
            kinds = {name: type_alone(kind) if kind.is_primitive else None for name, kind in types.items()}
            check_order(kinds, self._merge, where=self._where)
        return Columns({name: types[of] for name, of in shown(types, self._merge).items()})

    def _change(
        self,
        look: Look,
        batch: ExpectedBatch,
        *,
        out: Published | None,
        placed: Placed | None,
        before: tuple[Look, int] | None,
    ) -> Change | None:
        if placed is None:  # else it was checked that the changes fit the table
            self._check(look, held=())
        number = None if out is None else out.number
        change = unless_outdated(
            lambda: self._merging(look, placed).change(batch.key, look, out=number),
            is_outdated=lambda: self._is_outdated(look),
            log=_LOG,
            where=self._where,
        )
        if out is not None and change is not None:
            # From the commit on, nothing but this mark tells that the changes that go out are there.
            self._places.mark_out(self._place_of(out))
        return change

    def _merging(self, look: Look | None, placed: Placed | None) -> Merging:
        """:param placed: the changes that come in; None if a batch is taken out."""
        judging = Judging(
            merge=self._merge,
            files=FolderFiles(self._root),
            records=self._newest,
            history=self._history,
            batches=lambda: () if look is None else self._log.ledger.batches(self._log.record(look)).items(),
            where=self._where,
        )
        if placed is None:
            nothing = Columns.of_stage(None, partitions=(), where=self._where)
            return Merging(judging=judging, root=self._root, columns=nothing, files=[])
        below = placed.place.below
        files = [f"{below}/{now}" for _, now in in_place(self._root / below, placed.manifest)]
        return Merging(judging=judging, root=self._root, columns=super()._columns(placed), files=files)

    def _is_outdated(self, look: Look) -> bool:
        now = self._log.look()
        return now is not None and now.table.metadata_location != look.table.metadata_location

    def _let_go(self, out: Published | None, change: Change) -> None:
        if out is not None:
            self._places.remove(self._place_of(out))
        if change.newest is not None:
            self._newest.sweep(change.newest)
