"""A continuous table of Spark's catalog: it is made before its first batch, and each batch is a partition of it.

Files never move: an attempt writes them where they stay; publishing is one call that has the metastore name them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.sinks import ExpectedBatch, Manifest
from airflow_provider_microbatch.sinks.table.continuous import Continuous
from airflow_provider_microbatch.sinks.table.metastore import TableInfo
from airflow_provider_microbatch.sinks.table.replaced_files import note_replaced
from airflow_provider_microbatch.sinks.table.stage_names import Names
from airflow_provider_microbatch.sinks.table.stage_table import StageTable


@dataclass(frozen=True)
class TableOfPartitions(Continuous):
    """Each batch is the partition ``(lane, batch_id)``, whose location is the stage's folder."""

    def folder(self, key: BatchKey) -> Path | None:
        """The folder of the batch's published files."""
        return self.store.partition(self.table.base_name, key)

    def find(self, batch: ExpectedBatch, found: Manifest) -> Manifest | None:
        """The output in the batch's partition. :raises ForeignBatchError: if it is another batch's."""
        return batch.check(found, where=f"table {self.table.name}")

    def batches(self, lane: str) -> list[int]:
        """Ids of the lane for which there are partitions."""
        return self.store.batches(self.table.base_name, lane)

    def settle(self, batch: ExpectedBatch, *, goes_on: bool) -> None:
        """Nothing to do: a partition is in, or it is not."""

    def put(self, stage: StageTable, folder: Path, batch: ExpectedBatch, names: Names, info: TableInfo) -> None:
        """Have the metastore name the files, in one call. If two attempts add one partition, the metastore decides."""
        before = self.folder(stage.key)
        if before is None:
            self.store.add_partition(self.table.base_name, stage.key, folder)
        else:
            note_replaced(self.files, before)
            self.store.move_partition(self.table.base_name, stage.key, folder)

    def take_out(self, batch: ExpectedBatch, epoch: int) -> None:
        """Remove the batch's partition, in one call. Its files are kept as replaced ones are."""
        before = self.folder(batch.key)
        if before is not None:
            note_replaced(self.files, before)
            self.store.drop_partition(self.table.base_name, batch.key)
