"""A continuous table of folders: made before batch 0; each batch is a folder of it. The file sink publishes it."""

from __future__ import annotations

import os
from dataclasses import dataclass

from airflow_provider_microbatch.checkpoint.identity import BatchIdentity
from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.sinks import ExpectedBatch, Manifest
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sinks.table.marks import TABLE, put_mark, read_mark
from airflow_provider_microbatch.sinks.table.stage_table import StageTable, Table


@dataclass(frozen=True)
class FolderOfBatches:
    """:param table: the table.
    :param files: the sink of its files, whose root is the table's folder.
    """

    table: Table
    files: FileSink

    def admits(self, batch: BatchIdentity) -> bool:
        """:raises SinkError: if the folder is another table's."""
        mark = read_mark(self.files.root / TABLE)
        if mark is None:
            # Hidden entries may be this table's own: of the first attempt, if it died before it made the mark.
            found = self.files.root.iterdir() if os.path.lexists(self.files.root) else ()
            if any(not path.name.startswith(("_", ".")) for path in found):
                raise SinkError(
                    f"table {self.table.name}: {self.files.root} is there and was not made by this catalog. Choose "
                    "another name, or move it away."
                )
            return True
        for what, own in (("pipeline", self.table.pipeline), ("format", self.table.format), ("mode", self.table.mode)):
            if mark.get(what) != own:
                raise SinkError(
                    f"table {self.table.name}: {self.files.root} was made with {what} {mark.get(what)!r}, not {own!r}. "
                    "Batches of two pipelines or formats would mix; choose another name."
                )
        return True

    def prepare(self, stage: StageTable) -> None:
        """Make the table before its first batch runs. :raises SinkError: if the folder is another table's."""
        self.admits(stage.batch)
        put_mark(
            self.files.root / TABLE,
            {
                "version": 1,
                "table": self.table.name,
                "mode": self.table.mode,
                "pipeline": self.table.pipeline,
                "format": self.table.format,
                "schema": self.table.schema,
            },
        )
        self.admits(stage.batch)  # if two pipelines make it at once, one of them finds the other's mark

    def published(self, batch: ExpectedBatch) -> Manifest | None:
        """The manifest of the batch's folder."""
        return self.files.contains(batch)

    def batches(self, lane: str) -> list[int]:
        """Ids of the lane for which there are folders."""
        return self.files.published_ids(lane)

    def publish(self, stage: StageTable, batch: ExpectedBatch, *, replay: bool) -> Manifest:
        """Publish by one rename, or replace by one exchange."""
        return (self.files.replace if replay else self.files.publish)(batch, stage.epoch)

    def drop(self, stage: StageTable) -> None:
        """Remove the stage's files."""
        self.files.drop_stage(stage.batch, stage.epoch)
