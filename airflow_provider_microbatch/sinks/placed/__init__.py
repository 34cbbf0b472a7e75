"""The common part of tables on a file system whose readers find files through a log: Delta and Iceberg. An attempt's
files lie in the table's folder before the log names them, so that publishing is one commit that names them.

::

    <path>/microbatch/live/7/<number>/…                     files of batch 7, named by the commit that put it in
    <path>/_table_id/<id>                                   a file: by it the table is known again
    <path>/_microbatch/_staging/<checkpoint>/lane=live/batch_id=7/attempt=2/…   written by attempt 2, hidden
    <path>/_microbatch/_placed/<checkpoint>/…/attempt=2.<number>   a file: attempt 2 lies in place, maybe uncommitted
    <path>/_microbatch/_placed/<checkpoint>/…/attempt=2.<number>.out    a file: it goes out, and then its files go
    <path>/_microbatch/batches/lane=live/7.<number>.json    the manifest of batch 7, if the log has that number
    <path>/_microbatch/_fenced/…                            a file: tells the Spark of an attempt to end
    <path>/_microbatch/_locks/…                             one process at a time publishes or removes an attempt
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from airflow_provider_microbatch.checkpoint.identity import BatchIdentity
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.checkpoint.known_tables import KnownTables
from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.runtime.job import Stage
from airflow_provider_microbatch.settings import make_private_folder
from airflow_provider_microbatch.sinks import ExpectedBatch, Manifest
from airflow_provider_microbatch.sinks.file import STAGING, FileSink
from airflow_provider_microbatch.sinks.file.posix import check_no_link, make_folders, sync_tree
from airflow_provider_microbatch.sinks.file.report import check_files, read_manifest, reporting
from airflow_provider_microbatch.sinks.placed.logged import WRITER, OpenLogged, Published, constants_of
from airflow_provider_microbatch.sinks.placed.places import DATA, IsIn, Place, Places
from airflow_provider_microbatch.sinks.placed.records import FolderRecords, encode, number_of
from airflow_provider_microbatch.sinks.staged_in_files import StagedInFiles
from airflow_provider_microbatch.sinks.table_folder import TableFolder

HIDDEN = "_microbatch"


@dataclass(frozen=True)
class Placed:
    """Output of an attempt, in a place where the log can name it."""

    manifest: Manifest
    place: Place


class OpenPlaced(StagedInFiles, OpenLogged):
    """The operations that such sinks share on a file system: all but those of the log.

    :param folder: the table's folder.
    :param partition_by: columns by whose values Spark divides files into folders; Spark leaves them out of the files.
    :param options: options of Spark's Parquet writer.
    :param data: the folder below the table's of all files of batches.
    """

    def __init__(
        self,
        folder: TableFolder,
        *,
        partition_by: tuple[str, ...] = (),
        options: Mapping[str, str] | None = None,
        data: str = DATA,
    ) -> None:
        self._folder = folder
        self._root = folder.root
        hidden = folder.root / HIDDEN
        self._files = FileSink(str(hidden), format="parquet", partition_by=partition_by, options=options or {})
        self._records = FolderRecords(hidden / "batches")
        self._places = Places(folder.root, hidden, data)

    @abstractmethod
    def _numbers_for_good(self, key: BatchKey) -> Collection[int]:
        """The numbers by which the table's log has the batch, which no commit begun earlier can change: one, or none if
        the batch is not in; of a table with branches, those of all branches, which share its files and marks."""

    @abstractmethod
    def _is_in_now(self) -> IsIn:
        """Tells of many batches whether the table's log has them by a number: the log as it is when it is asked first,
        which is looked at once."""

    @abstractmethod
    def _forget(self, place: Place) -> None:
        """Remove the mark of the place of an attempt that is in, if it has one; not the one that it goes out."""

    def drop_stage(self, batch: BatchIdentity, epoch: int) -> bool:
        dropped = self._files.drop_stage(batch, epoch)
        with reporting("drop a stage of", batch.key):
            if not self._places.marked(batch, epoch):
                return dropped
            with self._places.locked(batch, epoch):
                numbers = self._numbers_for_good(batch.key)
                # After the numbers: a replay first removes the mark of the attempt it replaces, which has readers.
                for place in self._places.marked(batch, epoch):
                    if place.number in numbers:
                        self._forget(place)
                    else:
                        self._records.drop(batch.key, place.number)
                        dropped |= self._places.remove(place)
        return dropped

    def make_ready(self, tables: KnownTables, *, is_there: Callable[[], bool]) -> None:
        with reporting("make ready", self._root):
            self._folder.make_known(tables, is_there=is_there)
            for folder in (self._root / HIDDEN, self._files.root / STAGING):
                check_no_link(self._root, folder)
                make_folders(folder.parent)
                make_private_folder(folder)

    def stage(self, batch: BatchIdentity, epoch: int) -> Stage:
        stage = self._files.stage(batch, epoch)
        return replace(stage, writer=WRITER, arguments={**stage.arguments, "constants": constants_of(batch.key)})

    def manifest(self, batch: BatchIdentity, epoch: int) -> Manifest | None:
        staged = self._files.manifest(batch, epoch)
        if staged is not None:
            return staged
        with reporting("read the stage of", batch.key):
            return next((found for _, found in self._marked(batch, epoch)), None)

    def stages(self, checkpoint: str) -> list[tuple[BatchKey, int]]:
        with reporting("list the stages of", self._root):
            placed = self._places.stages(checkpoint, is_in=self._is_in_now())
            return sorted({*self._files.stages(checkpoint), *placed})

    def seems_away(self, tables: KnownTables) -> str | None:
        return self._folder.seems_away(tables)

    def _marked(self, batch: BatchIdentity, epoch: int) -> Iterator[tuple[Place, Manifest]]:
        """Places and manifests of the attempt's output that is in place, and not known to be published, nor taken out:
        that goes, and whoever has slept since before it was in must not publish it again."""
        for place in self._places.marked(batch, epoch):
            found = None if place.out.exists() else read_manifest(self._root / place.below, batch.key)
            if found is not None and number_of(encode(found)) == place.number:
                yield place, found

    def _place_of(self, found: Published) -> Place:
        identity = found.manifest.identity or BatchIdentity.at(found.manifest.key)
        return self._places.of(identity, found.manifest.epoch, found.number)

    def _place(self, batch: ExpectedBatch, epoch: int) -> Placed:
        """Move a stage that is whole, of this plan and on disk to a place where the log can name its files.

        :raises SinkError: if there is no such stage.
        """
        staged, key = batch.staged, batch.key
        own = self._files.manifest(staged, epoch)
        stage = Path(self._files.stage(staged, epoch).report.removeprefix("file://"))
        if own is not None:
            batch.check_stage(own, where=str(stage))
            check_files(stage, own)
            sync_tree(stage)
            place = self._places.of(staged, epoch, self._records.put(own))
            if self._places.take(stage, place):
                return Placed(own, place)
        for place, found in self._marked(staged, epoch):
            return Placed(batch.check_stage(found, where=str(self._root / place.below)), place)
        raise SinkError(f"batch {key} attempt {epoch} has no complete stage at {stage}. Run the batch again.")
