"""A continuous table of Spark's catalog that has partition columns of its own: each batch is a folder of it, with one
partition for each of its values.

::

    <root>/lane=live/batch_id=7/day=2026-01-31/…     the partition (live, 7, 2026-01-31) of the table

No call of a metastore changes several partitions in different ways, so the folder decides, as in a table of files:
readers find a batch's rows where its folder is, and its folder changes in one step. The metastore names partitions of a
folder that is not there yet, or no more, and readers find no row in those. A batch is in as soon as the metastore names
all that is in its folder, which it is told in one call.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Set
from dataclasses import dataclass
from pathlib import Path

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.sinks import ExpectedBatch, Manifest
from airflow_provider_microbatch.sinks.file.posix import make_folders, sync
from airflow_provider_microbatch.sinks.file.report import read_manifest
from airflow_provider_microbatch.sinks.manifest import only
from airflow_provider_microbatch.sinks.table.continuous import Continuous
from airflow_provider_microbatch.sinks.table.marks import put_mark
from airflow_provider_microbatch.sinks.table.metastore import TableInfo
from airflow_provider_microbatch.sinks.table.partition_values import KINDS, Values, values_of
from airflow_provider_microbatch.sinks.table.stage_names import Names
from airflow_provider_microbatch.sinks.table.stage_table import StageTable
from airflow_provider_microbatch.sinks.table.statements import StatementError
from airflow_provider_microbatch.sinks.table_folder import TableFolder

WHOLE = "_whole.json"
"""Mark in a batch's folder: readers have found all of it."""

OF_BEFORE = "_of_before.json"
"""Mark in a batch's folder: the attempt of its number is a later one, which a restored checkpoint has begun."""


@dataclass(frozen=True)
class TableOfFolders(Continuous):
    """Each batch is the folder ``lane=<lane>/batch_id=<id>``, whose partitions the metastore names."""

    def folder(self, key: BatchKey) -> Path | None:
        """The folder of the batch's published files; None if its readers do not see all of it."""
        folder = self.files.published_path(key)
        if not os.path.lexists(folder):
            return None
        # Of a publisher that died behind its rename or exchange: a commit entry, and the metastore's partitions, rely
        # on what is there, and only this makes it survive a power cut.
        sync(folder.parent)
        inside = self._inside(key, self.manifest(key))
        return folder if not inside or inside.keys() <= self._named(key) else None

    def seen(self, key: BatchKey) -> Path | None:
        """The batch's folder if its readers find any row of it, though it may not be in: partitions are dropped by
        hand, or a publisher has died before it took back what the metastore has named, maybe by other values."""
        is_seen = self.manifest(key) is not None and self._named(key)
        return self.files.published_path(key) if is_seen else None

    def note_whole(self, key: BatchKey) -> None:
        """Put on record that readers find all of the batch: where they find less later, somebody has dropped the rest,
        and no publisher has died over it."""
        put_mark(self.files.published_path(key) / WHOLE, {"version": 1})

    def was_whole(self, key: BatchKey) -> bool:
        """Whether it is on record that readers have found all of the batch."""
        return (self.files.published_path(key) / WHOLE).exists()

    def note_of_before(self, stage: StageTable) -> None:
        """Put on record, before an attempt begins, that it has not made what lies in the batch's place with its number:
        the checkpoint was restored, and its numbers are given again."""
        found = self.manifest(stage.key)
        whose = None if found is None or found.identity is None else (found.identity.checkpoint, found.epoch)
        if whose == (stage.batch.checkpoint, stage.epoch):
            put_mark(self.files.published_path(stage.key) / OF_BEFORE, {"version": 1})

    def is_of_before(self, key: BatchKey) -> bool:
        """Whether the attempt that has the number of what lies in the batch's place has not made it."""
        return (self.files.published_path(key) / OF_BEFORE).exists()

    def hide(self, key: BatchKey) -> None:
        """Have the metastore forget what a publisher has named of a batch that never was in: what is in its folder is
        no reader's then. A batch that was in may be committed, and keeps what is left of it."""
        if not self.was_whole(key):
            self._drop(key, self._named(key))

    def find(self, batch: ExpectedBatch, found: Manifest) -> Manifest | None:
        """The output in the batch's folder.

        :raises ForeignBatchError: if it is another batch's.
        :raises SinkError: if a partition leads elsewhere, where readers find something else.
        """
        own = batch.check(found, where=f"table {self.table.name}")
        inside = self._inside(batch.key, own)
        # Each partition would take a statement. Of a table that was moved the first tells as much as all.
        self._check_places(batch.key, inside, named=set(sorted(inside, key=str)[:1]))
        return own

    def batches(self, lane: str) -> list[int]:
        """Ids of the lane for which there are folders."""
        return self.files.published_ids(lane)

    def manifest(self, key: BatchKey) -> Manifest | None:
        """What lies in the batch's folder, whether readers see it or not."""
        return read_manifest(self.files.published_path(key), key)

    def settle(self, batch: ExpectedBatch, *, goes_on: bool) -> None:
        """Bring to its end what a process that died has left. Output that no reader sees, since the metastore was not
        told of it or has refused its values, is a stage still, its attempt's alone.

        :param goes_on: whether the attempt that has left it is the one that publishes.
        """
        key = batch.key
        if goes_on or self.manifest(key) is None or self.folder(key) is not None:
            self._tell(key)

    def put(self, stage: StageTable, folder: Path, batch: ExpectedBatch, names: Names, info: TableInfo) -> None:
        """Put the stage into the batch's place, in one step, and have the metastore name what is there. It takes the
        place of unseen output, whosever that is: its values may be refused, and its rows forgotten."""
        key, whole = batch.key, folder / WHOLE
        whole.unlink(missing_ok=True)  # of an exchange that was not made: readers may find nothing of the stage
        if self.folder(key) is not None:
            self._check_places(key, self._inside(key, read_manifest(folder, key)), named=self._named(key))
            # Readers see all of the new output with the exchange: its partitions are named before, and are empty.
            self._add(key, self._inside(key, read_manifest(folder, key)))
            # The exchange takes away that of the old output, and from then on readers find all of the new one.
            put_mark(whole, {"version": 1})
        elif (left := self.manifest(key)) is not None:
            # It is not in: it goes without an exchange, which not every file system has.
            whose = batch.identity
            taken = only(left, checkpoint=whose.checkpoint, location=whose.location, tables=batch.tables)
            self.files.withdraw(taken, left.epoch)
            self._forget(key)
        self.files.replace(batch, stage.epoch)
        self._tell(key)

    def take_out(self, batch: ExpectedBatch, epoch: int) -> None:
        """Take the folder out, in one step, then have the metastore forget its partitions: without the folder, or if it
        was taken out before, they have no rows."""
        if self.folder(batch.key) or self.seen(batch.key):
            self.files.withdraw(batch, epoch)
        self._forget(batch.key)

    def check_new(self) -> None:
        super().check_new()
        columns = self.table.partition_by
        try:
            kinds = self.store.kinds(str(self.table.schema), columns)
        except StatementError as error:
            if error.condition != "FIELD_NOT_FOUND":
                raise
            raise SinkError(
                f"table {self.table.name}: partition_by names {', '.join(columns)}, and not all of these are in the "
                f"schema {self.table.schema!r}. Nothing was made; add them there."
            ) from error
        for column, kind in zip(columns, kinds, strict=True):
            if kind not in KINDS:
                raise SinkError(
                    f"table {self.table.name}: partition_by: {column!r} is of type {kind}, whose values have more than "
                    "one spelling: a folder and its partition would not be known as the same. Types that can be are "
                    f"{', '.join(sorted(KINDS))}. Nothing was made."
                )

    def _check_places(self, key: BatchKey, inside: Mapping[Values, Path], *, named: Set[Values]) -> None:
        """Check that partitions lead to their places in the batch's folder: what is put there is what readers find.

        :param inside: partitions, with their places.
        :param named: those that are looked at.
        :raises SinkError: if one leads elsewhere.
        """
        asked, store, table = sorted(inside.keys() & named, key=str), self.store, self.table.base_name
        found = store.places(table, key, asked) if asked else None
        for values, place in (found or {}).items():
            path = inside[values]
            if place is None or not TableFolder(path).is_same_place(TableFolder(place)):
                raise SinkError(
                    f"table {self.table.name}: a partition of batch {key} leads to {place or 'another file system'}, "
                    f"and its files are put into {path}: somebody has given it another location, or has moved the "
                    "table. Readers do not find there what is published, and nothing was replaced. Lead each such "
                    f"partition back: {store.moving(table, key, path, values)}"
                )

    def _tell(self, key: BatchKey) -> None:
        """Have the metastore name what is in the batch's folder, and nothing else."""
        self._add(key, self._inside(key, self.manifest(key)))
        self._forget(key)

    def _add(self, key: BatchKey, partitions: Mapping[Values, Path]) -> None:
        named = self._named(key)
        added = {values: path for values, path in partitions.items() if values not in named}
        for path in added.values():
            make_folders(path)  # else the metastore makes it, as its own user
        if not added:
            return
        self.store.add_partitions(self.table.base_name, key, added)
        now = self._named(key)
        otherwise = sorted(added.keys() - now, key=str)
        if otherwise:
            # Of a batch that is in, what is named stays; of one that is not, readers would find a part.
            self._drop(key, now - named if self.folder(key) is not None else now)
            told = ", ".join(f"{column}={value!r}" for column, value in otherwise[0])
            raise SinkError(
                f"table {self.table.name}: the metastore has not named {told} of batch {key} as it was told to, and "
                "readers would not find its rows. Nothing of it was added; have the transform write another value."
            )

    def _forget(self, key: BatchKey) -> None:
        """Have the metastore forget what is not in the batch's folder."""
        self._drop(key, self._named(key) - self._inside(key, self.manifest(key)).keys())

    def _drop(self, key: BatchKey, gone: Set[Values]) -> None:
        if gone:
            self.store.drop_partitions(self.table.base_name, key, sorted(gone, key=str))

    def _inside(self, key: BatchKey, manifest: Manifest | None) -> dict[Values, Path]:
        """The partitions that a manifest tells of, with the places that they have in the batch's folder."""
        files = manifest.files if manifest is not None else ()
        folder, columns, inside = self.files.published_path(key), self.table.partition_by, {}
        for path in sorted({name.rpartition("/")[0] for name in files}):
            if path.count("=") != len(columns) or path.count("/") != len(columns) - 1:
                raise SinkError(f"{folder / path} is no partition by {', '.join(columns)}. Move {folder} away.")
            inside[values_of(path, columns)] = folder / path
        return inside

    def _named(self, key: BatchKey) -> set[Values]:
        return self.store.partitions(self.table.base_name, key, self.table.partition_by)
