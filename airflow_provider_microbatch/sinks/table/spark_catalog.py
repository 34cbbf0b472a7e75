"""Tables of Spark's catalog: a Hive metastore, or whichever catalog is the session catalog.

The catalog is only reachable through a JVM. Publishing is decided here, in the orchestrator, which reads manifests and
marks in the files; each change of the catalog is a statement that Spark runs, as a recorded step. The lock under which
a table is changed covers these steps too: the next holder first ends the steps that the last one left running.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from pathlib import Path

from airflow_provider_microbatch.checkpoint.identity import BatchIdentity
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.definition import reading_back
from airflow_provider_microbatch.exceptions import DefinitionError, PublishConflictError, SinkError
from airflow_provider_microbatch.sinks import ExpectedBatch, Manifest
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sinks.file.lock import locked
from airflow_provider_microbatch.sinks.file.posix import sync_tree
from airflow_provider_microbatch.sinks.file.report import check_files, read_manifest
from airflow_provider_microbatch.sinks.table.catalog import Catalog
from airflow_provider_microbatch.sinks.table.hive_metastore import check_client, check_uri
from airflow_provider_microbatch.sinks.table.marks import TABLE, put_mark, remove_mark, reporting
from airflow_provider_microbatch.sinks.table.metastore import Metastore, TableInfo
from airflow_provider_microbatch.sinks.table.replaced_files import (
    is_older,
    renamed_notes,
    replaced_note,
    replaced_notes,
)
from airflow_provider_microbatch.sinks.table.stage_names import Names
from airflow_provider_microbatch.sinks.table.stage_table import APPEND, StageTable, Table
from airflow_provider_microbatch.sinks.table.statement_steps import StatementSteps
from airflow_provider_microbatch.sinks.table.statements import StatementError, Statements
from airflow_provider_microbatch.sinks.table.table_of_folders import TableOfFolders
from airflow_provider_microbatch.sinks.table.table_of_partitions import TableOfPartitions
from airflow_provider_microbatch.sinks.table.whole_table import WholeTable, properties_of

_UNKNOWN = "columns_are_told_by_the_query STRING"
"""A metastore has no table without a column. This one stands for columns that are unknown before the query."""


_LOCK_SECONDS = 600.0
"""Time limit for the lock: its holder waits for statements, and first for those that the last holder left running."""


Kind = TableOfPartitions | TableOfFolders | WholeTable


@dataclass(frozen=True)
class SparkCatalog(Catalog):
    """Tables of Spark's session catalog, external, with files below ``root``.

    :param statements: runs SQL statements; for example
        :class:`~airflow_provider_microbatch.sinks.table.statements.ConnectStatements`.
    :param root: folder of the tables' files: an absolute local path or ``file:`` URL that the orchestrator, the
        Spark of the jobs and the Spark of the catalog share.
    :param metastore: address of the Hive metastore behind that catalog, ``thrift://host:port``: a table is replaced by
        one of other columns in one call then, by pyiceberg's client. None: by two renames, between which there is no
        table.
    :raises DefinitionError: for a wrong type or value.
    """

    statements: Statements
    root: str
    _: KW_ONLY
    metastore: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.statements, Statements):
            raise DefinitionError(f"SparkCatalog: statements is a {type(self.statements).__name__}, not Statements.")
        _ = FileSink(self.root).root  # must be a folder, not a bucket: nothing can be renamed there
        if self.metastore is not None:
            check_uri(self.metastore)

    def servers(self) -> set[str]:
        return super().servers() | ({self.metastore} if self.metastore is not None else set())

    def check(self, table: Table) -> None:
        super().check(table)
        if self.metastore is not None:
            check_client()

    @property
    def is_cheap_to_ask(self) -> bool:
        return False

    def check_table(self, table: Table) -> None:
        self.files(table)
        if table.mode == APPEND and table.schema is None:
            raise DefinitionError(
                f"table {table.name!r}: give it a schema. A continuous table of Spark's catalog is made before its "
                "first batch, and a metastore has no table without columns."
            )

    def location(self, table: Table) -> str:
        return f"spark_catalog.{table.name}"

    def admits(self, table: Table, batch: BatchIdentity) -> bool:
        with reporting(f"look at table {table.name}"):
            return self._kind(table, self._store(table)).admits(batch)

    def create_table(self, stage: StageTable) -> None:
        table, folder = stage.table, self.folder(stage)
        with reporting(f"create {stage}"), self._changing(table) as store:
            kind = self._kind(table, store)
            kind.prepare(stage)
            if isinstance(kind, TableOfFolders):
                kind.note_of_before(stage)
            if folder.exists():
                raise SinkError(f"{folder} is there already, so {stage} was not made. Move it away.")
            try:
                store.create(
                    self._names(stage).stage,
                    table.schema or _UNKNOWN,
                    provider=table.format,
                    location=folder,
                    properties=properties_of(stage),
                    options=table.options,
                    partitioned_by=table.partition_by if table.schema else (),
                    names_partitions=False,
                )
            except StatementError as error:
                if error.condition != "TABLE_OR_VIEW_ALREADY_EXISTS":
                    raise
                raise SinkError(
                    f"table {self._names(stage).stage} is there already, so {stage} was not made. Drop it."
                ) from error
            # Spark makes a table's folder, and the job refuses to write into an existing folder (another driver's).
            with contextlib.suppress(FileNotFoundError):
                folder.rmdir()

    def drop_table(self, stage: StageTable) -> bool:
        if not self.files(stage.table).root.exists():
            return False  # nothing was ever begun: a process that changes the table makes the folder first
        with reporting(f"drop {stage}"), self._changing(stage.table) as store:
            if self._made(stage, store) is None:
                return False
            names, kind = self._names(stage), self._kind(stage.table, store)
            if not isinstance(kind, WholeTable):
                kind.check_there()
            if isinstance(kind, TableOfFolders) and self._left_unseen(stage, store) is not None:
                kind.hide(stage.key)  # readers would find for good what the metastore names of it
            # Decided by the folder, which no other attempt shares, whichever attempt was published.
            if kind.folder(stage.key) != self.folder(stage):
                is_shown = False
                if isinstance(kind, WholeTable):
                    kind.heal(names)
                    is_shown = kind.may_show(self.folder(stage), names)
                if not is_shown and not replaced_note(self.folder(stage)).exists():
                    self.files(stage.table).drop_stage(stage.batch, stage.epoch)
            # Last: the table lets the next drop find the rest of an interrupted one.
            store.drop(names.ready, names.stage)
        return True

    def publish(self, stage: StageTable, batch: ExpectedBatch, *, replay: bool) -> Manifest:
        names, folder = self._names(stage), self.folder(stage)
        with reporting(f"publish {stage}"), self._changing(stage.table) as store:
            kind = self._kind(stage.table, store)
            kind.settle(batch, goes_on=self._left_unseen(stage, store) is not None)
            found = self._published(kind, batch)
            if found is not None and found.epoch > stage.epoch and replay:
                raise PublishConflictError(
                    f"batch {stage.key}: attempt {found.epoch} is published, which is later than attempt "
                    f"{stage.epoch}. Nothing was replaced."
                )
            if found is None or (replay and found.epoch < stage.epoch):
                kind.prepare(stage)
                self._complete(stage, batch, folder)
                made = self._made(stage, store)
                if made is None:
                    raise SinkError(f"there is no complete stage: {stage} was never made. Run the batch again.")
                kind.put(stage, folder, batch, names, made)
                found = self._published(kind, batch)
            if found is None:
                raise SinkError(f"table {stage.table.name} does not show batch {stage.key} after its publish.")
            if isinstance(kind, TableOfFolders):
                # Whosever it is: its publisher may have died before it could.
                kind.note_whole(stage.key)
            if found.epoch == stage.epoch:
                if isinstance(kind, TableOfFolders):
                    # Who died behind its exchange has left there what it replaced, which only the stage table tells.
                    kind.files.drop_stage(stage.batch, stage.epoch)
                store.drop(names.ready, names.stage)
        return found

    def manifest(self, stage: StageTable) -> Manifest | None:
        with reporting(f"look for {stage}"):
            return super().manifest(stage) or self._left_unseen(stage, self._store(stage.table))

    def published(self, table: Table, batch: ExpectedBatch) -> Manifest | None:
        with reporting(f"look for batch {batch.key}"):
            return self._published(self._kind(table, self._store(table)), batch)

    def seen(self, table: Table, batch: ExpectedBatch) -> Manifest | None:
        with reporting(f"look for batch {batch.key}"):
            kind = self._kind(table, self._store(table))
            return self._seen(kind, batch, kind.folder(batch.key))

    def finish(self, table: Table, batch: ExpectedBatch) -> Manifest | None:
        """Put what a publisher who died has not: that the batch was in. Whoever asks commits it next, and what is left
        of its stage may be dropped when somebody has dropped a part of it."""
        with reporting(f"look for batch {batch.key}"):
            kind = self._kind(table, self._store(table))
            found = self._published(kind, batch)
            if found is None or not isinstance(kind, TableOfFolders) or kind.was_whole(batch.key):
                return found
            with self._changing(table):  # else who takes it out meanwhile would leave a folder with nothing but that
                found = self._published(kind, batch)
                if found is not None:
                    kind.note_whole(batch.key)
            return found

    def batches(self, table: Table, lane: str) -> list[int]:
        with reporting(f"list table {table.name}"):
            return self._kind(table, self._store(table)).batches(lane)

    def lanes(self, table: Table) -> list[str] | None:
        return self.files(table).published_lanes() if table.mode == APPEND and table.partition_by else None

    def withdraw(self, table: Table, batch: ExpectedBatch, epoch: int) -> bool:
        with reporting(f"take batch {batch.key} out of table {table.name}"), self._changing(table) as store:
            kind = self._kind(table, store)
            if isinstance(kind, WholeTable):
                return super().withdraw(table, batch, epoch)
            found = self._seen(kind, batch, kind.folder(batch.key))
            if found is not None and found.epoch != epoch:
                raise SinkError(
                    f"batch {batch.key} of table {table.name} is attempt {found.epoch}'s, not {epoch}'s: replaced "
                    "meanwhile. Nothing was taken out; run the command again."
                )
            kind.take_out(batch, epoch)
        return found is not None

    def stages(self, table: Table, checkpoint: str) -> list[tuple[BatchKey, int]]:
        store = self._store(table)
        tables = [store.table(name) for name in store.named(Names(table.base_name, "").stage)]
        owners = [info.owner for info in tables if info]
        own = [
            owner for owner in owners if owner and (owner.pipeline, owner.checkpoint) == (table.pipeline, checkpoint)
        ]
        return sorted((owner.key, owner.epoch) for owner in own)

    def drop_replaced(self, table: Table, checkpoint: str, *, older_seconds: float, dry_run: bool) -> list[str]:
        files, found = self.files(table), list[str]()
        if table.mode == APPEND and table.partition_by:
            return files.drop_replaced(checkpoint, older_seconds=older_seconds, dry_run=dry_run)
        with reporting(f"remove what was replaced of table {table.name}"):
            # Before the lock: there may be a folder for each batch that ever was, and meanwhile nobody could publish.
            noted = [one for owner in sorted({"", checkpoint}) for one in replaced_notes(files, owner)]
            replaced = [one for one in noted if is_older(one[2], older_seconds)]
            renamed = renamed_notes(files, table)
            if not replaced and not renamed:
                return []
            with contextlib.nullcontext(self._store(table)) if dry_run else self._changing(table) as store:
                kind = self._kind(table, store)
                if isinstance(kind, WholeTable) and not dry_run:
                    kind.put_back()
                if store.table(table.base_name) is None and not dry_run:
                    # What is noted may be the table's own, which is away for a while. A dry run tells it: by that the
                    # definition of a sink that has left something is kept.
                    return []
                # Before the files: these tell whose they are, and whether a table may be dropped.
                if isinstance(kind, WholeTable):
                    for note in renamed:
                        if is_older(note, older_seconds):
                            found += self._drop_renamed(kind, store, note, dry_run=dry_run)
                for batch, epoch, note in replaced:
                    # Who had the lock until now may have replaced these files this moment.
                    if is_older(note, older_seconds):
                        found += self._drop_files(table, kind, batch, epoch, note, dry_run=dry_run)
        return found

    def _drop_files(
        self, table: Table, kind: Kind, batch: BatchIdentity, epoch: int, note: Path, *, dry_run: bool
    ) -> list[str]:
        """Remove files that were replaced, and their note; the note alone if they were not: then the replacement was
        given up."""
        folder = self.folder(self.create_stage_table(table, batch, epoch))
        is_replaced = kind.folder(batch.key) != folder
        if not dry_run:
            if is_replaced:
                self.files(table).drop_stage(batch, epoch)
            remove_mark(note)
        return [str(folder)] if is_replaced else []

    @staticmethod
    def _drop_renamed(kind: WholeTable, store: Metastore, note: Path, *, dry_run: bool) -> list[str]:
        """Drop a table that was replaced, and its note; the note alone if files of somebody else would go with it."""
        info = store.table(note.name)
        is_dropped = info is not None and kind.is_droppable(info)
        if not dry_run:
            if is_dropped:
                store.drop(note.name)
            remove_mark(note)
        return [store.name(note.name)] if is_dropped else []

    def _complete(self, stage: StageTable, batch: ExpectedBatch, folder: Path) -> None:
        """Check that the stage is whole, mark it, and bring it to disk."""
        own = self.manifest(stage)
        if own is None:
            raise SinkError(f"{stage} is no complete stage at {folder}. Run the batch again.")
        batch.check_stage(own, where=str(folder))
        check_files(folder, own)
        put_mark(folder / TABLE, {**stage.owner.to_dict(), "version": 1, "table": stage.table.name})
        sync_tree(folder)

    @classmethod
    def _published(cls, kind: Kind, batch: ExpectedBatch) -> Manifest | None:
        """The batch in its place; None if it is not in. What its readers find of another one's is an error."""
        whole = kind.folder(batch.key)
        seen = cls._seen(kind, batch, whole)
        return None if whole is None else seen

    @staticmethod
    def _seen(kind: Kind, batch: ExpectedBatch, whole: Path | None) -> Manifest | None:
        """What readers find of the batch in its place, which may be a part of it.

        :param whole: the folder of a batch that is in.
        :raises ForeignBatchError: if it is another one's.
        """
        key = batch.key
        folder = kind.seen(key) if whole is None and isinstance(kind, TableOfFolders) else whole
        if folder is None:
            return None
        found = read_manifest(folder, key)
        if found is None:
            raise SinkError(
                f"table {kind.table.name} says that batch {key} is at {folder}, where there is no manifest: this "
                "package did not publish it. Look at it, and drop the partition or table."
            )
        return kind.find(batch, found)

    def _left_unseen(self, stage: StageTable, store: Metastore) -> Manifest | None:
        """What the attempt has put in its place, where no reader sees it yet. It is the attempt's stage still, and is
        dropped with the stage table: what is not in by then never will be. What lay there before the attempt began is
        none of its own: the checkpoint was restored, and did not know that its number was taken."""
        kind = self._kind(stage.table, store)
        if not isinstance(kind, TableOfFolders):
            return None
        found = kind.manifest(stage.key)
        # A file tells whose it is. Of others' output nothing is asked: the server may be what the job has died of.
        if found is None or not found.is_of(stage.batch, stage.epoch) or kind.is_of_before(stage.key):
            return None
        return found if kind.folder(stage.key) is None and self._made(stage, store) is not None else None

    def _made(self, stage: StageTable, store: Metastore) -> TableInfo | None:
        """The stage table in the metastore, if it is this attempt's."""
        info = store.table(self._names(stage).stage)
        return info if info and info.owner == stage.owner else None

    def _kind(self, table: Table, store: Metastore) -> Kind:
        continuous = TableOfFolders if table.partition_by else TableOfPartitions
        kind = continuous if table.mode == APPEND else WholeTable
        return kind(table, self.files(table), store)

    def _store(self, table: Table) -> Metastore:
        return Metastore(self.statements, table.namespace)

    def files(self, table: Table) -> FileSink:
        root = FileSink(self.root).root.joinpath(*table.name.split("."))
        with reading_back():  # the options of the user's sink were already checked
            return FileSink(str(root), format=table.format, partition_by=table.partition_by, options=table.options)

    @contextlib.contextmanager
    def _changing(self, table: Table) -> Iterator[Metastore]:
        """The metastore, locked for changes of the table: one process at a time, because no statement changes a table
        on a condition, and only after all statements of the previous process have ended. The kernel frees the lock of a
        process that dies; it does not end statements that the process has sent to the server.

        :raises SinkError: if such a statement cannot be ended.
        """
        root = self.files(table).root
        steps = StatementSteps(
            self.statements, root / "_statements", disarm=lambda: store.give_version(table.base_name)
        )
        store = Metastore(self.statements, table.namespace, steps, self.metastore)
        with locked(root / "_publish.lock", seconds=_LOCK_SECONDS):
            steps.end_all()
            yield store

    @staticmethod
    def _names(stage: StageTable) -> Names:
        return Names(stage.table.base_name, hashlib.sha256(stage.owner.to_json().encode()).hexdigest()[:12])
