"""Reads a table from its catalog, and commits one more snapshot.

pyiceberg retries a commit on top of commits that other writers have made meanwhile: two attempts at one batch would
both append. Here a commit is for the branch exactly as it was read; if the branch has changed, nothing is committed,
and the loser reads the table again.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import RolledBackError, SinkError
from airflow_provider_microbatch.iceberg_catalog import OpenCatalog
from airflow_provider_microbatch.sinks.file.posix import make_folders, sync, write_mark
from airflow_provider_microbatch.sinks.file.reading import read_regular
from airflow_provider_microbatch.sinks.iceberg import MAIN
from airflow_provider_microbatch.sinks.iceberg.catalog import CatalogBusyError
from airflow_provider_microbatch.sinks.iceberg.ledger import Ledger
from airflow_provider_microbatch.sinks.iceberg.look import MERGED, Look
from airflow_provider_microbatch.sinks.iceberg.protocol import NAMES
from airflow_provider_microbatch.sinks.iceberg.removing import batches_with_rows
from airflow_provider_microbatch.sinks.iceberg.rolled_away import NO_BATCH, rolled_away

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table
    from pyiceberg.types import IcebergType

PATIENCE_SECONDS = 60.0
"""How long a commit is tried again while other writers commit."""

_LONGEST_PAUSE = 0.5
_NO_RETRY = "commit.retry.num-retries"


@dataclass(frozen=True)
class IcebergLog:
    """:param catalog: the catalog; opened when it is first used.
    :param root: the table's folder.
    :param hidden: the folder below it that readers skip.
    """

    catalog: OpenCatalog
    root: Path
    hidden: Path
    branch: str

    @property
    def where(self) -> str:
        """The table, for messages."""
        return f"the Iceberg table {self.catalog.table}"

    @property
    def in_sql(self) -> str:
        """The branch, in a statement of SQL."""
        return self.catalog.table if self.branch == MAIN else f"{self.catalog.table}.`branch_{self.branch}`"

    @property
    def ledger(self) -> Ledger:
        """The record of which batches of the branch are in."""
        return Ledger(self.root, self.hidden / "ledger", self.branch)

    @property
    def _known(self) -> Path:
        return self.hidden / "table_uuid"

    def look(self) -> Look | None:
        """Read the table as it is now; None if there is none yet.

        :raises SinkError: if the table cannot be read, is not the table that this package has written here before, or
            has no such branch.
        """
        table = self._load()
        if table is None:
            return None
        if self._lacks_branch(table):
            raise SinkError(
                f"{self.where} has no branch {self.branch!r}. Nothing was written. Make it: ALTER TABLE "
                f"{self.catalog.table} CREATE BRANCH `{self.branch}`."
            )
        return Look(table, self.branch)

    def is_branch_gone(self) -> bool:
        """Whether the table is there, and has no such branch.

        :raises SinkError: as :meth:`look`, but for the branch.
        """
        table = self._load()
        return table is not None and self._lacks_branch(table)

    def was_dropped(self) -> bool:
        """Whether the catalog answers that it has no table of that name, or another one than was written here."""
        table = self.catalog.load()
        return table is None or self._uuid() not in (None, str(table.metadata.table_uuid))

    def _load(self) -> Table | None:
        table, known = self.catalog.load(), self._uuid()
        if table is None:
            if known is not None:
                raise SinkError(
                    f"the catalog has no table {self.catalog.table}, whose files are in {self.root}: it was dropped or "
                    "renamed, or the connection leads to another catalog. Nothing was written. If it was renamed, or "
                    "moved to another catalog, have the pipeline name it so, with the same path, and make its next "
                    f"batch. If it was dropped on purpose, and no table has its files there, remove {self.hidden} too, "
                    "and clear the tasks whose batches are to come back."
                )
            return None
        if known is not None and known != str(table.metadata.table_uuid):
            raise SinkError(
                f"{self.where} is another table than the one that was written here before: it was dropped and made "
                f"anew. Nothing was written. If that was on purpose, remove {self.hidden}, and clear the tasks whose "
                "batches are to come back."
            )
        return table

    def _lacks_branch(self, table: Table) -> bool:
        return self.branch != MAIN and self.branch not in table.metadata.refs

    def check_not_rolled_back(self, look: Look) -> None:
        """:raises RolledBackError: if published batches were removed together with their history."""
        last = look.last_on(look.branch)
        told = look.rolled_back(last)
        if told is not None:
            away = rolled_away(look, last)
            which = (
                "by which batches were published, or taken out: what counts as published may be gone, and what does "
                "not may be there"
                if away is None
                else away.told
            )
            raise RolledBackError(
                f"branch {self.branch!r} of {self.where} was rolled back {told}, {which}. Nothing was written. To undo "
                "it: CALL system.set_current_snapshot, or a fast-forward of the branch. If the rollback is to stay: "
                f"ALTER TABLE {self.catalog.table} UNSET TBLPROPERTIES ('{look.mark}'), and clear the tasks whose "
                "batches are to come back; rows that came back the next run names, with the DELETE that takes them out."
            )

    def stays_rolled_back(self, look: Look) -> bool:
        """Whether somebody has removed the mark, so that a rollback of it is to stay; until a batch comes in."""
        own = self.ledger.name("")
        return look.last_on(self.branch) is None and any(name.startswith(own) for name in look.properties)

    def record(self, look: Look) -> Mapping[str, str]:
        """The table's properties, with the record of the batches that this branch has: also of those that it was made
        with, or got by a fast-forward, until its next commit has taken them over."""
        if look.recorded is None:
            look.recorded = self._record(look)
        return look.recorded

    def _record(self, look: Look) -> Mapping[str, str]:
        descent = look.goes_on_from()
        branch, since = descent.branch, look.came_since(descent.sequence)
        stays = self.stays_rolled_back(look)
        if stays:
            since = {key: self._unless_own(look, key, number) for key, number in since.items()}
        if stays and branch is None:
            branch, since = self.branch, {key: number for key, number in since.items() if number is not None}
        if branch == self.branch and not since and not descent.unsure:
            return look.properties
        base = None if branch is None else replace(self.ledger, branch=branch)
        record = self.ledger.going_on(look.properties, base=base, since=since)
        for other in descent.unsure:
            record = self._with_shown(look, record, other)
        return self._with_own(look, record) if stays else record

    def _unless_own(self, look: Look, key: BatchKey, number: int | None) -> int | None:
        """The number by which a snapshot put a batch in, if another branch has it by that, or had it so before it was
        replaced there; else None, as if it was taken out. Where a rollback is to stay, what the branch itself has put
        in its own record has, or it has been taken out: on record again, rows that came back would no longer be told.
        What another branch has is in: not on record, its rows would be told with a DELETE."""
        if number is None:
            return None
        found = self.ledger.numbers_by_branch(look.properties, key)
        others = {branch: one for branch, one in found.items() if branch != self.branch}
        is_theirs = any(one == number or look.was_put_in(branch, number) for branch, one in others.items())
        return number if is_theirs else None

    def _with_own(self, look: Look, record: Mapping[str, str]) -> Mapping[str, str]:
        """The record, and what this branch's own has, which a rollback that is to stay has taken away: without it
        nobody would be told that these rows are gone."""
        known = self.ledger.batches(record)
        own = self.ledger.items(look.properties)
        lacking = {key: number for key, number in own if known.get(key) != number}
        return self.ledger.going_on(record, base=self.ledger, since=lacking)

    def _with_shown(self, look: Look, record: Mapping[str, str], branch: str) -> Mapping[str, str]:
        """The record, and of what another branch has, the batches of which this branch has rows: where the history no
        longer tells whether it was fast-forwarded to the other, they do."""
        known = self.ledger.batches(record)
        theirs = replace(self.ledger, branch=branch).batches(record)
        lacking = {key: number for key, number in theirs.items() if key not in known}
        head = None if look.head is None else look.head.snapshot_id
        shown = batches_with_rows(look.table, head, lacking, where=self.where)
        return self.ledger.going_on(record, base=self.ledger, since={key: lacking[key] for key in shown})

    def unmerged(self, wrote: str) -> str:
        """Why a batch that another branch has, and this one does not, would be left out for good by what is published
        to this one, and the ways on in the table, in words.

        :param wrote: the other branch.
        """
        look = self.look()
        is_there = look is not None and wrote in look.table.metadata.refs
        to = None if look is None else look.can_follow(wrote)
        if to is not None:
            way = f"CALL system.fast_forward('{self.catalog.table}', '{self.branch}', '{wrote}')"
            made = f"ALTER TABLE {self.catalog.table} CREATE BRANCH `{wrote}` AS OF VERSION {to}, which is gone; then "
            ways = f"Bring it there: {way if is_there else made + way}. Or name branch={wrote!r} again."
        elif is_there:
            ways = (
                f"No fast_forward brings it there: branch {self.branch!r} has commits of its own since. Name "
                f"branch={wrote!r} again."
            )
        else:
            ways = (
                f"No fast_forward brings it there: branch {wrote!r} is gone, and what of it is left, if anything, does "
                f"not go on from branch {self.branch!r}."
            )
        return (
            f"was published to branch {wrote!r} of {self.where}. Branch {self.branch!r} does not have it, and what is "
            f"published there now would leave it out for good. Nothing was written. {ways}"
        )

    def looks(self) -> Iterator[Look | None]:
        """The table as it is now, read again and again as long as another try of a commit is worthwhile. If the answer
        to a commit was lost, the table shows whether it was carried out. The first try takes what time it takes: what
        it has read of the table's files, no later one reads again."""
        end, pause, is_first = time.monotonic() + PATIENCE_SECONDS, 0.005, True
        while True:
            try:
                look = self.look()
            except CatalogBusyError:
                if time.monotonic() > end:
                    raise
            else:
                yield look
                if is_first:
                    end, is_first = time.monotonic() + PATIENCE_SECONDS, False
            if time.monotonic() > end:
                return
            time.sleep(random.uniform(0, pause))  # writers that collided should not collide again
            pause = min(pause * 2, _LONGEST_PAUSE)

    def create(self, schema: Schema, spec: PartitionSpec) -> None:
        """Make the table, without a row, unless another writer has made it."""
        from pyiceberg.exceptions import TableAlreadyExistsError

        if self.branch != MAIN:
            raise SinkError(
                f"there is no {self.where}, and a branch {self.branch!r} needs one. Make the table and the branch."
            )
        with self.catalog.reporting("make"):
            catalog = self.catalog.get()
            catalog.create_namespace_if_not_exists(self.catalog.table.rpartition(".")[0])
            try:
                catalog.create_table(
                    self.catalog.table,
                    schema,
                    location=f"file://{self.root}",
                    partition_spec=spec,
                    properties={
                        "format-version": "2",
                        # Full names of lanes in the bounds: these show which files have no rows of other batches.
                        "write.metadata.metrics.column.lane": "full",
                        "write.metadata.metrics.column.batch_id": "full",
                        # A table with one manifest per batch is slow to plan.
                        "commit.manifest-merge.enabled": "true",
                        "write.metadata.delete-after-commit.enabled": "true",
                    },
                )
            except TableAlreadyExistsError:
                return

    def add_columns(self, look: Look, columns: Mapping[str, IcebergType]) -> bool:
        """Add columns that may be null. :return: False if another writer has changed the table."""
        from pyiceberg.exceptions import CommitFailedException

        with self.catalog.reporting("add columns to"):
            try:
                with look.table.update_schema() as update:
                    for name, kind in columns.items():
                        update.add_column(name, kind)
            except CommitFailedException:
                return False
        return True

    def commit(
        self,
        before: Look,
        *,
        key: BatchKey,
        number: int | None,
        info: Mapping[str, str],
        added: Sequence[DataFile] = (),
        removed: Sequence[DataFile] = (),
        newest: int | None = None,
    ) -> bool:
        """Commit a snapshot on top of ``before``, and with it whether a batch is in, by the number of its manifest.

        :param number: number of the batch's manifest; None: the batch is taken out.
        :param info: properties for the snapshot's summary.
        :param newest: number of the record of the newest changes; None for a table of rows.
        :return: False if another writer has committed.
        """
        record = self.record(before)
        taken_over = {name: value for name, value in record.items() if before.properties.get(name) != value}
        told = {**taken_over, **self.ledger.change(record, key.lane, key.id, number)}
        info = {"microbatch.batch": str(key), **info}
        # Only who brings a batch in has asked for rows that came back. Behind a mark nobody asks any more, and the next
        # batch would come in beside them.
        marks = number is not None or not self.stays_rolled_back(before)
        return self._commit(before, told, marks=marks, info=info, added=added, removed=removed, newest=newest)

    def pass_by(self, before: Look) -> bool:
        """Commit a snapshot that changes nothing, so that a commit which is still on its way, from a process that may
        be dead, can no longer succeed. :return: False if another writer has committed, which has the same effect."""
        # Behind a mark of it an earlier rollback would no longer be noticed.
        return self._commit(before, {}, marks=False, info={"microbatch.batch": NO_BATCH})

    def _commit(
        self,
        before: Look,
        told: Mapping[str, str],
        *,
        marks: bool,
        info: Mapping[str, str],
        added: Sequence[DataFile] = (),
        removed: Sequence[DataFile] = (),
        newest: int | None = None,
    ) -> bool:
        from pyiceberg.exceptions import CommitFailedException
        from pyiceberg.table.update import AssertCurrentSchemaId, AssertDefaultSpecId

        metadata = before.table.metadata
        with self.catalog.reporting("commit to"):
            transaction = _without_retry(before.table).transaction()
            update = transaction.update_snapshot(snapshot_properties=dict(info), branch=self.branch)
            written = list[Any]()
            try:
                with update.overwrite() if removed else update.merge_append() as producer:
                    for one in added:
                        producer.append_data_file(one)
                    for one in removed:
                        producer.delete_data_file(one)
                names = {} if NAMES in before.properties else {NAMES: metadata.schema().name_mapping.model_dump_json()}
                last = f"{producer.snapshot_id} {metadata.next_sequence_number()}"
                mark = {before.mark: last} if marks else {}
                merged = {} if newest is None else {MERGED: f"{newest:016x} {last}"}
                transaction.set_properties({**told, **names, **mark, **merged})
                # The statistics and partitions of the files refer to ids of this schema and this spec.
                transaction._apply(
                    (),
                    (
                        AssertCurrentSchemaId.model_validate({"current-schema-id": metadata.current_schema_id}),
                        AssertDefaultSpecId.model_validate({"default-spec-id": metadata.default_spec_id}),
                    ),
                )
                # Pyiceberg would remove the manifests of a commit that is refused, and the table may name them: a
                # request that was sent again is refused when the first one is in. (0.11 removes none.)
                written, transaction._snapshot_producers = getattr(transaction, "_snapshot_producers", []), []
                transaction.commit_transaction()
            except CommitFailedException:
                self._remove_outrun(written, before)
                return False
            except ValueError:
                # So pyiceberg refuses a snapshot that another branch has got a newer one beside.
                now = self.look()
                if now is None or now.table.metadata.next_sequence_number() == metadata.next_sequence_number():
                    raise
                return False
        return True

    def _remove_outrun(self, written: Sequence[Any], before: Look) -> None:
        """Remove the manifests of a commit that was refused, if it never was in and never will be: another snapshot has
        its sequence number, and the branch another head. That the table does not have its snapshot shows nothing: it
        may have been in and have expired, and the snapshots behind it name its manifests.

        :param written: pyiceberg's writers of snapshots.
        """
        with suppress(CatalogBusyError):
            now = self.look()
            # A branch's first snapshot, without a parent, is taken behind others that have its sequence number.
            if now is None or before.head is None or now.head == before.head:
                return
            own = before.table.metadata.next_sequence_number()
            took = {one.snapshot_id for one in now.table.metadata.snapshots if one.sequence_number == own}
            if took and took.isdisjoint(one.snapshot_id for one in written):
                for one in written:
                    one._clean_all_uncommitted()

    def remember(self, look: Look) -> None:
        """Record this table's UUID: from now on no other table is accepted here."""
        if self._uuid() is None:
            make_folders(self.hidden)
            write_mark(self._known, f"{look.table.metadata.table_uuid}\n")
            sync(self._known)
            sync(self.hidden)

    def _uuid(self) -> str | None:
        try:
            return read_regular(self._known).decode().strip() or None
        except FileNotFoundError:
            return None


def _without_retry(table: Table) -> Table:
    """The table with retries of commits switched off."""
    properties = {**table.metadata.properties, _NO_RETRY: "0"}
    metadata = table.metadata.model_copy(update={"properties": properties})
    return type(table)(table.name(), metadata, table.metadata_location, table.io, table.catalog, table.config)
