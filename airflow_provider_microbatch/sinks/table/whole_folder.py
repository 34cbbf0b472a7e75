"""A table of folders that a batch makes or replaces as a whole: ``CREATE TABLE AS`` and its variants.

::

    <namespace>/orders/…                                                   the table, which readers list
    <namespace>/_tables/orders/_staging/<checkpoint>/lane=live/batch_id=7/attempt=2/…   the stage table
    <namespace>/_tables/orders/_replaced/…                                 the previous table; kept for its readers
    <namespace>/_tables/orders/_kept/…                                     a replaced folder that no catalog had made
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path

from airflow_provider_microbatch.checkpoint.identity import BatchIdentity
from airflow_provider_microbatch.exceptions import PublishConflictError, SinkError
from airflow_provider_microbatch.sinks import ExpectedBatch, Manifest
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sinks.file.lock import TABLE_SECONDS, locked
from airflow_provider_microbatch.sinks.file.posix import (
    exchange,
    make_folders,
    rename_new,
    sync,
    sync_tree,
)
from airflow_provider_microbatch.sinks.file.report import check_files, read_manifest, read_schema
from airflow_provider_microbatch.sinks.table import statement as statement
from airflow_provider_microbatch.sinks.table.marks import TABLE, put_mark, read_mark
from airflow_provider_microbatch.sinks.table.stage_table import (
    APPEND,
    CREATE_OR_REPLACE,
    REPLACE,
    Owner,
    StageTable,
    Table,
)

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class WholeFolder:
    """:param table: the table.
    :param target: the table's folder.
    :param files: the sink of its stage tables and replaced tables.
    """

    table: Table
    target: Path
    files: FileSink

    def admits(self, batch: BatchIdentity) -> bool:
        """Whether the statement allows the batch; False if there is nothing to do.

        :raises SinkError: if the statement does not allow the batch, or would replace a table that consists of batches,
            the history of a pipeline.
        """
        if self.table.mode in (REPLACE, CREATE_OR_REPLACE) and self._is_continuous():
            raise SinkError(
                f"table {self.table.name}: {self.target} holds the batches of a continuous table, which the mode "
                f"{self.table.mode!r} would take away. Nothing was run; choose another name, or move the folder away."
            )
        return statement.admits(self.table, batch, exists=os.path.lexists(self.target), owner=self._owner())

    def prepare(self, stage: StageTable) -> None:
        """Check again; the table appears only on success. :raises SinkError: if the statement is refused by now."""
        if not self.admits(stage.batch):
            raise SinkError(f"table {self.table.name} was made meanwhile by somebody else; nothing is done to it.")

    def published(self, batch: ExpectedBatch) -> Manifest | None:
        """The table's manifest if it is the batch's output; see :func:`statement.find`."""
        owner, key = self._owner(), batch.key
        if owner is None or (owner.pipeline, owner.key) != (self.table.pipeline, key):
            return None
        found = read_manifest(self.target, key)
        if found is None:
            raise SinkError(
                f"table {self.table.name}: {self.target} has lost its manifest. Move it away and run {key} again."
            )
        sync(self.target.parent)  # the publisher may have died right after its rename
        return statement.find(self.table, batch, found)

    def batches(self, lane: str) -> list[int]:
        """The id of the batch whose output the table is."""
        owner = self._owner()
        return [owner.key.id] if owner is not None and owner.key.lane == lane else []

    def publish(self, stage: StageTable, batch: ExpectedBatch, *, replay: bool) -> Manifest:
        """Publish by one rename if there is no table, by one exchange if there is."""
        with locked(self.files.root / "publish.lock", seconds=TABLE_SECONDS):
            found = self.published(batch)
            if found is not None and found.epoch > stage.epoch and replay:
                raise PublishConflictError(
                    f"batch {stage.key}: attempt {found.epoch} is published, which is later than attempt "
                    f"{stage.epoch}. Nothing was replaced."
                )
            if found is not None and (found.epoch == stage.epoch or not replay):
                if found.epoch == stage.epoch:
                    self._keep_displaced(stage)
                return found
            self.prepare(stage)
            return self._put(stage, batch)

    def drop(self, stage: StageTable) -> None:
        """Remove the stage's files. The lock keeps this from happening just after a publish has exchanged the stage
        with the previous table, which then lies in the stage's place."""
        with locked(self.files.root / "publish.lock", seconds=TABLE_SECONDS):
            self._keep_displaced(stage)
            self.files.drop_stage(stage.batch, stage.epoch)

    def _put(self, stage: StageTable, batch: ExpectedBatch) -> Manifest:
        folder = self._folder(stage)
        own = self.files.manifest(stage.batch, stage.epoch)
        if own is None:
            raise SinkError(f"{stage} is not complete at {folder}. Run the batch again.")
        batch.check_stage(own, where=str(folder))
        check_files(folder, own)
        told = read_schema(folder)
        mark = {
            **stage.owner.to_dict(),
            "version": 1,
            "table": self.table.name,
            "mode": self.table.mode,
            "format": self.table.format,
            "schema": told["schema"] if told else self.table.schema,
        }
        put_mark(folder / TABLE, mark)
        sync_tree(folder)
        make_folders(self.target.parent)
        if not rename_new(folder, self.target):
            # Recorded in advance: after the exchange, the folder in the stage's place is not the stage.
            put_mark(self._exchange(stage), stage.owner.to_dict())
            if not exchange(folder, self.target):
                self._keep_displaced(stage)
                raise SinkError(
                    f"the file system of {self.target} cannot exchange two folders in one step (Linux renameat2), so "
                    f"readers could find table {self.table.name} missing. Nothing was replaced; use a local disk."
                )
        sync(self.target.parent)
        sync(folder.parent)
        self._keep_displaced(stage)
        return own

    def _keep_displaced(self, stage: StageTable) -> None:
        folder, note = self._folder(stage), self._exchange(stage)
        if not note.exists():
            return
        mark = read_mark(folder / TABLE)
        if folder.exists() and Owner.from_dict(mark) != stage.owner:
            kept = self.files.replaced_path(stage.batch) / f"attempt={stage.epoch}"
            if mark is None:
                # Files of another program, maybe their only copy: the janitor does not look there.
                kept = self.files.root / "_kept" / kept.relative_to(self.files.root)
                log.warning("%s was not made by this catalog; it is kept at %s, remove it yourself", self.target, kept)
            make_folders(kept.parent)
            if not rename_new(folder, kept):
                raise SinkError(f"{kept} is in the way of the table that {stage} replaced. Move it away.")
        note.unlink()

    def _is_continuous(self) -> bool:
        mark = read_mark(self.target / TABLE)
        made_as = mark.get("mode") if mark is not None else None
        return made_as == APPEND or any(self.target.glob("lane=*/batch_id=*"))

    def _owner(self) -> Owner | None:
        return Owner.from_dict(read_mark(self.target / TABLE))

    def _folder(self, stage: StageTable) -> Path:
        return Path(self.files.stage(stage.batch, stage.epoch).report.removeprefix("file://"))

    def _exchange(self, stage: StageTable) -> Path:
        folder = self._folder(stage)
        return folder.with_name(f"{folder.name}.exchange")
