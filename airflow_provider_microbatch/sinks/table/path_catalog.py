"""A catalog of folders: ``namespace.table`` is ``<root>/namespace/table``.

A stage table is a folder, with a mark beside it that records its owner and schema. The mark exists from CREATED on;
Spark makes the folder when it writes.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from airflow_provider_microbatch.checkpoint.identity import BatchIdentity
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.checkpoint.known_tables import KnownTables
from airflow_provider_microbatch.definition import reading_back
from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.sinks import ExpectedBatch, Manifest
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sinks.table.catalog import Catalog
from airflow_provider_microbatch.sinks.table.folder_of_batches import FolderOfBatches
from airflow_provider_microbatch.sinks.table.marks import put_mark, read_mark, remove_mark, reporting
from airflow_provider_microbatch.sinks.table.stage_table import APPEND, Owner, StageTable, Table
from airflow_provider_microbatch.sinks.table.whole_folder import WholeFolder

_MARK = re.compile(r"lane=[^/]+/batch_id=\d+/attempt=\d+\.table")


@dataclass(frozen=True)
class PathCatalog(Catalog):
    """Tables as folders of one local or shared POSIX file system.

    :param root: absolute local path or ``file:`` URL.
    :raises DefinitionError: for a wrong type or value.
    """

    root: str

    def __post_init__(self) -> None:
        _ = FileSink(self.root).root  # must be a folder, not a bucket: nothing can be renamed there

    def location(self, table: Table) -> str:
        return f"file://{self._target(table)}"

    def unlike(self, table: Table, before: Table) -> str | None:
        # Of the form, the table's mark has the format alone. A table that is made whole has no batches side by side.
        if (table.mode, before.mode) != (APPEND, APPEND) or table.partition_by == before.partition_by:
            return None
        return (
            f"the table {table.name} has batches that were written with partition_by={before.partition_by!r}, not "
            f"{table.partition_by!r}."
        )

    def admits(self, table: Table, batch: BatchIdentity) -> bool:
        with reporting(f"look at table {table.name}"):
            return self._kind(table).admits(batch)

    def make_ready(self, table: Table, tables: KnownTables, *, is_there: Callable[[], bool]) -> None:
        self.files(table).make_ready(tables, is_there=is_there)

    def create_table(self, stage: StageTable) -> None:
        mark, folder = self._mark(stage), self.folder(stage)
        with reporting(f"create {stage}"):
            self._kind(stage.table).prepare(stage)
            made = {**stage.owner.to_dict(), "version": 1, "table": stage.table.name, "schema": stage.table.schema}
            if folder.exists() or not put_mark(mark, made):
                raise SinkError(f"{folder} is there already, so {stage} was not made. Move it away.")

    def drop_table(self, stage: StageTable) -> bool:
        with reporting(f"drop {stage}"):
            if not self._is_own(stage):
                return False
            self._kind(stage.table).drop(stage)
            remove_mark(self._mark(stage))  # last: the mark lets the next drop find the rest of an interrupted one
        return True

    def publish(self, stage: StageTable, batch: ExpectedBatch, *, replay: bool) -> Manifest:
        with reporting(f"publish {stage}"):
            kind = self._kind(stage.table)
            found = kind.published(batch)
            if (found is None or (replay and found.epoch < stage.epoch)) and not self._is_own(stage):
                raise SinkError(f"there is no complete stage: {stage} was never made. Run the batch again.")
            published = kind.publish(stage, batch, replay=replay)
            if published.epoch == stage.epoch:
                remove_mark(self._mark(stage))
        return published

    def published(self, table: Table, batch: ExpectedBatch) -> Manifest | None:
        with reporting(f"look for batch {batch.key}"):
            return self._kind(table).published(batch)

    def batches(self, table: Table, lane: str) -> list[int]:
        with reporting(f"list table {table.name}"):
            return self._kind(table).batches(lane)

    def lanes(self, table: Table) -> list[str] | None:
        if table.mode != APPEND:
            return None
        with reporting(f"list table {table.name}"):
            return self.files(table).published_lanes()

    def stages(self, table: Table, checkpoint: str) -> list[tuple[BatchKey, int]]:
        staging = self.files(table).root / "_staging" / checkpoint
        with reporting(f"list the stages of table {table.name}"):
            marks = [
                Owner.from_dict(read_mark(path))
                for path in staging.glob("lane=*/batch_id=*/attempt=*.table")
                if _MARK.fullmatch(path.relative_to(staging).as_posix())
            ]
        own = [owner for owner in marks if owner and (owner.pipeline, owner.checkpoint) == (table.pipeline, checkpoint)]
        return sorted((owner.key, owner.epoch) for owner in own)

    def drop_replaced(self, table: Table, checkpoint: str, *, older_seconds: float, dry_run: bool) -> list[str]:
        return self.files(table).drop_replaced(checkpoint, older_seconds=older_seconds, dry_run=dry_run)

    def _kind(self, table: Table) -> FolderOfBatches | WholeFolder:
        files = self.files(table)
        return FolderOfBatches(table, files) if table.mode == APPEND else WholeFolder(table, self._target(table), files)

    def withdraw(self, table: Table, batch: ExpectedBatch, epoch: int) -> bool:
        if table.mode != APPEND:
            return super().withdraw(table, batch, epoch)
        return self.files(table).withdraw(batch, epoch)

    def would_show(self, table: Table, location: str) -> bool:
        if table.mode == APPEND:
            return super().would_show(table, location)
        # Each batch puts another folder in this place: everything in the old one goes, even hidden files.
        target = self._target(table)
        return Path(location.removeprefix("file://")).is_relative_to(target) or super().would_show(table, location)

    def files(self, table: Table) -> FileSink:
        target = self._target(table)
        # A table that is replaced as a whole cannot contain its own stage.
        root = target if table.mode == APPEND else target.parent / "_tables" / target.name
        with reading_back():  # the options of the user's sink were already checked
            return FileSink(
                str(root), format=table.format, partition_by=table.partition_by, options=table.options
            )  # fmt: skip

    def _target(self, table: Table) -> Path:
        return FileSink(self.root).root.joinpath(*table.name.split("."))

    def _mark(self, stage: StageTable) -> Path:
        folder = self.folder(stage)
        return folder.with_name(f"{folder.name}.table")

    def _is_own(self, stage: StageTable) -> bool:
        return Owner.from_dict(read_mark(self._mark(stage))) == stage.owner
