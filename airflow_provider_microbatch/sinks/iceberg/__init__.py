"""An Iceberg table on a local or shared POSIX file system, in any catalog that pyiceberg knows. A batch is published by
one snapshot that the orchestrator commits; Spark writes plain Parquet, needs no jar of Iceberg's, and sees neither the
catalog nor its credentials.

::

    <path>/metadata/…                                       the table's metadata, which readers look at
    <path>/microbatch/live/7/<number>/…                     files of batch 7, named by the snapshot that put it in
    <path>/_microbatch/ledger/<digest>.json                 which batches are in: pages that the table's properties name
    <path>/_microbatch/table_uuid                           the table that was made, or found, here

(The rest of the folder: :mod:`airflow_provider_microbatch.sinks.placed`.)

Snapshots expire, files are rewritten, rows are deleted. The table's properties stay, and a commit changes them together
with its snapshot, or not at all: they say which batches are in (:mod:`.ledger`), and which snapshot was the last of
this package, so that a rollback of the branch is noticed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

from airflow_provider_microbatch.exceptions import DefinitionError
from airflow_provider_microbatch.sinks import OpenSink, Sink, SinkContext
from airflow_provider_microbatch.sinks.file.arguments import RESERVED_COLUMNS, check_options, check_path, local_path
from airflow_provider_microbatch.sinks.iceberg.partitions import Partition
from airflow_provider_microbatch.sinks.merge import Merge, check_bounds, other_batches
from airflow_provider_microbatch.sinks.table_folder import TableFolder

SCHEMA_POLICIES = ("fail", "add_columns")
MAIN = "main"


@dataclass(frozen=True)
class IcebergSink(Sink):
    """Publishes each batch as one snapshot of an Iceberg table.

    The table gets two columns, ``lane`` and ``batch_id``, which say which batch each row belongs to, even after a
    compaction has merged the row's file with others. The first publish makes the table, unless it exists.

    :param conn_id: the Airflow connection of the catalog, of type ``iceberg``: see ``docs/iceberg.md``.
    :param table: the table's name in the catalog, ``namespace.table``.
    :param path: the table's folder, which is also its location in the catalog: an absolute local path or ``file:`` URL.
    :param partition_by: the table's partition fields: columns, or ``year(column)``, ``month(…)``, ``day(…)`` and
        ``hour(…)`` of a date or time, in UTC.
    :param schema_policy: how to treat columns that the table does not have: ``"fail"`` publishes only rows with exactly
        the table's columns; ``"add_columns"`` adds columns missing on either side, as null. A type never changes.
    :param branch: the branch to publish to; a branch other than ``main`` has to exist.
    :param merge: each row is a change, and the table has the newest state of each key, or all of its versions. Without
        ``partition_by``, on the branch ``main``.
    :param options: options of Spark's Parquet writer, such as ``{"compression": "zstd"}``.
    :raises DefinitionError: for a wrong type or value, naming the field.
    """

    keeps_form: ClassVar[bool] = True

    conn_id: str
    table: str
    _: KW_ONLY
    path: str
    partition_by: tuple[str, ...] = ()
    schema_policy: str = "fail"
    branch: str = MAIN
    merge: Merge | None = None
    options: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        where = f"IcebergSink({self.conn_id!r:.100}, {self.table!r:.100})"
        if not isinstance(self.conn_id, str) or not self.conn_id:
            raise DefinitionError(f"{where}: conn_id must be the id of a connection.")
        names = self.table.split(".") if isinstance(self.table, str) else []
        if len(names) < 2 or not all(name and name == name.strip() for name in names):
            raise DefinitionError(f"{where}: table must be a name in the catalog, such as 'shop.orders'.")
        check_path(self.path, where=where)
        for sign in "%?#":
            if sign in str(self.root):
                raise DefinitionError(f"{where}: path must not have {sign!r}: readers take it for another address.")
        given: object = self.partition_by
        if isinstance(given, str) or not isinstance(given, (list, tuple)):
            raise DefinitionError(f"{where}: partition_by must be a sequence of fields, not {given!r:.100}.")
        object.__setattr__(self, "partition_by", tuple(given))
        names = [partition.name for partition in self.partitions]
        if len(set(names)) < len(names):
            raise DefinitionError(f"{where}: partition_by names a field twice: {', '.join(names)}.")
        if self.schema_policy not in SCHEMA_POLICIES:
            raise DefinitionError(f"{where}: schema_policy {self.schema_policy!r} is none of {SCHEMA_POLICIES}.")
        if not isinstance(self.branch, str) or not self.branch:
            raise DefinitionError(f"{where}: branch must be the name of a branch.")
        if self.merge is not None and not isinstance(self.merge, Merge):
            raise DefinitionError(f"{where}: merge must be a Merge, not {type(self.merge).__name__}.")
        if self.merge is not None and self.partition_by:
            raise DefinitionError(f"{where}: partition_by cannot be given with merge.")
        check_bounds(self.merge, beside=RESERVED_COLUMNS, where=where)
        if self.merge is not None and self.branch != MAIN:
            raise DefinitionError(
                f"{where}: branch cannot be given with merge: a table has the newest changes of its main branch alone."
            )
        check_options(self.options, where=where)

    @property
    def partitions(self) -> tuple[Partition, ...]:
        """The table's partition fields."""
        where = f"IcebergSink({self.conn_id!r:.100}, {self.table!r:.100})"
        return tuple(Partition.parse(text, where=where) for text in self.partition_by)

    @property
    def root(self) -> Path:
        """The table's folder."""
        return local_path(self.path, where=f"IcebergSink({self.conn_id!r:.100}, {self.table!r:.100})")

    @property
    def folder(self) -> TableFolder:
        """The table's folder, as a folder that may be away."""
        return TableFolder(self.root)

    def open(self, context: SinkContext) -> OpenSink:
        for client in ("pyiceberg", "pyarrow"):
            if find_spec(client) is None:
                raise DefinitionError(
                    f"IcebergSink({self.conn_id!r}, {self.table!r}) needs {client}, which is not installed here. Run: "
                    "pip install 'airflow-provider-microbatch[iceberg]'"
                )
        if self.merge is not None:
            from airflow_provider_microbatch.sinks.iceberg.merged.opened import OpenMergedIceberg

            return OpenMergedIceberg(self, context, self.merge)
        from airflow_provider_microbatch.sinks.iceberg.opened import OpenIceberg

        return OpenIceberg(self, context)

    def location(self) -> str:
        branch = "" if self.branch == MAIN else f"@{self.branch}"
        return f"iceberg:{self.conn_id}/{self.table}{branch}"

    @property
    def can_withdraw(self) -> bool:
        return True

    def not_compactable(self) -> str | None:
        if self.merge is not None:
            return "a publish joins small files of a table into which changes are merged, as it writes others anew"
        return (
            "compact it by Spark (CALL catalog.system.rewrite_data_files): each row names its batch, so that a replay "
            "finds it in a file that was rewritten"
        )

    @property
    def remembers_batches(self) -> bool:
        return True

    def is_same_place(self, other: Sink) -> bool:
        return isinstance(other, IcebergSink) and self.branch == other.branch and self.is_branch_beside(other)

    def is_branch_beside(self, other: IcebergSink) -> bool:
        """Whether both write to one table, to whichever of its branches."""
        is_named_so = (self.conn_id, self.table) == (other.conn_id, other.table)
        return is_named_so or self.folder.is_same_place(other.folder)

    def would_show(self, location: str) -> bool:
        """Whether the address lies in the table: readers would see no file there, but a clean-up would remove it."""
        return self.folder.would_show(location)

    def unlike(self, before: Sink) -> str | None:
        # Of partition_by only the table's own counts, which check holds it against: each file is of the partition spec
        # that it was written by, so that readers read the files of before and after a change of it as one table.
        others = other_batches(before.merge, self.merge) if isinstance(before, IcebergSink) else None
        return None if others is None else f"the Iceberg table {self.table} {others}"
