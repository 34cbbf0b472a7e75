"""A user's own sink, in plain Python: one function that brings a batch's rows to their target. Spark writes an
attempt's rows into a folder; when the stage is whole, the task calls the function with the rows.

::

    <stages>/_staging/<checkpoint>/lane=live/batch_id=7/attempt=2/…   written by attempt 2, hidden from readers
    <stages>/lane=live/batch_id=7/_manifest                           the function has returned for batch 7
    <stages>/_locks/…                                                 one process at a time calls it for a batch
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import DefinitionError, SinkError
from airflow_provider_microbatch.sinks import OpenSink, Sink, SinkContext
from airflow_provider_microbatch.sinks.file import FileSink

__all__ = ["ForeachBatch", "ForeachSink", "StagedRows"]


@dataclass(frozen=True, kw_only=True)
class ForeachBatch:
    """The batch for which a function is called.

    :param key: its lane and id, such as ``live/7``. Each checkpoint has a batch of that key: :attr:`name` tells them
        apart.
    :param checkpoint: id of the checkpoint whose batch it is.
    :param pipeline: name of the pipeline.
    :param epoch: the attempt. Another attempt at the batch has the same rows.
    :param is_replay: whether the target may have other rows of the batch, from an earlier attempt, which must go.
    """

    key: BatchKey
    checkpoint: str
    pipeline: str
    epoch: int
    is_replay: bool

    @property
    def name(self) -> str:
        """What the batch is known by for ever, and no batch of another checkpoint: checkpoint, lane and id."""
        return f"{self.checkpoint}/{self.key}"


@dataclass(frozen=True)
class StagedRows:
    """The rows of a stage, in the files that Spark wrote.

    :param files: the files, in order; a batch without rows may have none.
    :param format: ``parquet`` or ``json``.
    """

    files: tuple[Path, ...]
    format: str

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Iterate over the rows, as dicts by column."""
        import json

        if self.format == "json":
            for path in self.files:
                with path.open(encoding="utf-8") as lines:
                    yield from map(json.loads, lines)
            return
        for batch in self._batches():
            yield from batch.to_pylist()

    @cached_property
    def frame(self) -> Any:
        """All rows as a pyarrow table, in memory; None for a batch that has no file.

        :raises SinkError: if the files are JSON, which has no types.
        """
        import pyarrow as pa

        if self.format != "parquet":
            raise SinkError('rows as JSON have no frame: say format="parquet" in the sink, or go through them.')
        parts = list(self._batches())
        return pa.Table.from_batches(parts) if parts else None

    def _batches(self) -> Iterator[Any]:
        from pyarrow import parquet

        for path in self.files:
            with parquet.ParquetFile(path) as file:
                yield from file.iter_batches()


@dataclass(frozen=True)
class ForeachSink(Sink):
    """Base of the user's class::

        @dataclass(frozen=True)
        class Warehouse(ForeachSink):
            url: str

            def write(self, batch, rows):
                with connect(self.url) as transaction:
                    transaction.execute("DELETE FROM orders WHERE batch = %s", [batch.name])
                    transaction.insert("orders", [{**row, "batch": batch.name} for row in rows])

    **What it must promise**: calling ``write`` again for a batch, with whichever attempt, has the same effect as
    calling it once, because a process may die after the call, before its return is on record. So ``write`` has to find
    the batch's rows again, by ``batch.name`` or by a key of their own. And it is one transaction: readers see all of a
    batch or none of it, and a call that raises has changed nothing.

    ``microbatch check-sink module:Warehouse --set stages=… --set url=…`` tests the class. Fields are stored in the
    checkpoint and in Airflow's database, so they must hold no secret.

    :param stages: a folder for this sink only that Spark and the tasks both see: an absolute path or ``file:`` URL.
    :param format: format of the files that Spark writes there: ``parquet``, for which tasks need pyarrow, or ``json``.
    :raises DefinitionError: for a wrong type or value, naming the field.
    """

    stages: str
    _: KW_ONLY
    format: str = "parquet"

    def __post_init__(self) -> None:
        if self.format not in ("parquet", "json"):
            raise DefinitionError(f"{type(self).__name__}: format {self.format!r:.100} is none of parquet, json.")
        _ = self.files.root  # must be a folder, not a bucket

    @abstractmethod
    def write(self, batch: ForeachBatch, rows: StagedRows) -> None:
        """Bring the batch's rows to the target, and remove other rows of that batch. An error fails the attempt."""

    def take_out(self, batch: ForeachBatch) -> None:
        """Remove all rows of the batch. A class that defines this method can be rewound (``rewind --drop-output``)."""
        raise SinkError(f"{type(self).__name__} has no take_out: batch {batch.key} has to be taken out by hand.")

    def held(self, batch: ForeachBatch) -> list[Mapping[str, Any]]:
        """The batch's rows that are in the target now, as they were given. Only ``check-sink`` calls this method:
        without it, the command cannot see the effect of ``write``."""
        raise NotImplementedError

    def look(self) -> None:
        """Raise if the target cannot be written at all; called before anything runs."""

    @property
    def files(self) -> FileSink:
        """The sink of the folder in which attempts write, and in which published batches are on record."""
        return FileSink(self.stages, format=self.format)

    def open(self, context: SinkContext) -> OpenSink:
        from airflow_provider_microbatch.sinks.foreach.opened import OpenForeach

        return OpenForeach(self)

    def location(self) -> str:
        return f"{type(self).__name__}:{self.files.root}"

    @property
    def can_withdraw(self) -> bool:
        return type(self).take_out is not ForeachSink.take_out

    def is_same_place(self, other: Sink) -> bool:
        return isinstance(other, ForeachSink) and self.files.is_same_place(other.files)

    def would_show(self, location: str) -> bool:
        return self.files.would_show(location)
