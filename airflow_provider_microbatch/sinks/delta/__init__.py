"""A Delta table on a local or shared POSIX file system, or on S3. A batch is published by one commit of the table's own
log, which the orchestrator makes with delta-rs; Spark writes plain Parquet and needs no jar of Delta's. On a file
system (:mod:`airflow_provider_microbatch.sinks.delta.objects` has what is different in a bucket):

::

    <path>/_delta_log/…                                     the table's log, which readers look at
    <path>/microbatch/live/7/<number>/…                     files of batch 7, named by the commit that put it in
    <path>/microbatch/rest/…                                rows of others out of files that a replay took apart
    <path>/microbatch/rest/live/3-9/…                       rows of batches 3 to 9, in files that a compaction joined

(The rest of the folder: :mod:`airflow_provider_microbatch.sinks.placed`.)

A Delta table's log does not keep everything: commit infos go with the log's clean-up, files with OPTIMIZE, their rows
with DELETE. Application transactions stay, so each batch has one of its own: ``microbatch/<lane>/<id>``, whose version
is a number made of the manifest's digest (0: taken out). No writer skips a commit because of these versions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

from airflow_provider_microbatch.exceptions import DefinitionError
from airflow_provider_microbatch.sinks import OpenSink, Sink, SinkContext
from airflow_provider_microbatch.sinks.file.arguments import (
    RESERVED_COLUMNS,
    address_of,
    check_options,
    check_path,
    coordinates,
    is_object,
    lies_in,
    local_path,
    partition_columns,
)
from airflow_provider_microbatch.sinks.merge import Merge, check_bounds, other_batches
from airflow_provider_microbatch.sinks.table_folder import TableFolder
from airflow_provider_microbatch.stores.object_store.address import Address

SCHEMA_POLICIES = ("fail", "add_columns")


@dataclass(frozen=True)
class DeltaSink(Sink):
    """Publishes each batch as one commit of a Delta table.

    The table gets two columns, ``lane`` and ``batch_id``, which say which batch each row belongs to, even after
    OPTIMIZE has merged the row's file with others. The first publish makes the table, unless it exists.

    :param path: the table: an absolute local path or ``file:`` URL. As in Spark, a URL is not percent-decoded. Or a
        folder of a bucket, ``s3://conn_id@bucket/folder`` (docs/delta.md).
    :param partition_by: the table's partition columns.
    :param schema_policy: how to treat columns that the table does not have: ``"fail"`` publishes only rows with exactly
        the table's columns; ``"add_columns"`` adds columns missing on either side, as null. A type never changes.
    :param merge: each row is a change, and the table has the newest state of each key, or all of its versions. Without
        ``partition_by``.
    :param options: options of Spark's Parquet writer, such as ``{"compression": "zstd"}``.
    :param packages: for a table in a bucket: Maven coordinates of Hadoop's connector for it, for spark-submit. None:
        the connector that belongs to the installed PySpark; empty: Spark already has a connector.
    :raises DefinitionError: for a wrong type or value, naming the field.
    """

    keeps_form: ClassVar[bool] = True

    path: str
    _: KW_ONLY
    partition_by: tuple[str, ...] = ()
    schema_policy: str = "fail"
    merge: Merge | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    packages: Sequence[str] | None = None

    def __post_init__(self) -> None:
        # A malformed address may contain a password, and is not repeated.
        where = f"DeltaSink({str(self.address) if is_object(self.path) else self.path!r})"
        if not is_object(self.path):
            check_path(self.path, where=where)
            if "%" in str(self.root):
                raise DefinitionError(f"{where}: path must not have '%': delta-rs decodes it, and looks elsewhere.")
        object.__setattr__(self, "packages", coordinates(self.packages, where=where))
        object.__setattr__(self, "partition_by", partition_columns(self.partition_by, where=where))
        if self.schema_policy not in SCHEMA_POLICIES:
            raise DefinitionError(f"{where}: schema_policy {self.schema_policy!r} is none of {SCHEMA_POLICIES}.")
        if self.merge is not None and not isinstance(self.merge, Merge):
            raise DefinitionError(f"{where}: merge must be a Merge, not {type(self.merge).__name__}.")
        if self.merge is not None and self.partition_by:
            raise DefinitionError(f"{where}: partition_by cannot be given with merge.")
        check_bounds(self.merge, beside=RESERVED_COLUMNS, where=where)
        check_options(self.options, where=where)

    def open(self, context: SinkContext) -> OpenSink:
        clients = {"deltalake": "delta", "pyarrow": "delta"}
        if is_object(self.path):
            clients["obstore"] = "object-store"
        for client, extra in clients.items():
            if find_spec(client) is None:
                raise DefinitionError(
                    f"DeltaSink({self.path!r}) needs {client}, which is not installed here. Run: "
                    f"pip install 'airflow-provider-microbatch[{extra}]'"
                )
        if self.merge is not None and is_object(self.path):
            from airflow_provider_microbatch.sinks.delta.merged.in_bucket import OpenMergedDeltaInBucket

            return OpenMergedDeltaInBucket(self, self.merge, context)
        if self.merge is not None:
            from airflow_provider_microbatch.sinks.delta.merged.in_folder import OpenMergedDelta

            return OpenMergedDelta(self, self.merge)
        if is_object(self.path):
            from airflow_provider_microbatch.sinks.delta.objects import OpenDeltaInBucket

            return OpenDeltaInBucket(self, self.address, context)
        from airflow_provider_microbatch.sinks.delta.opened import OpenDelta

        return OpenDelta(self, rows_are_judged=context.rows_are_judged)

    @property
    def root(self) -> Path:
        """The table's folder."""
        return local_path(self.path, where=f"DeltaSink({self.path!r})")

    @property
    def folder(self) -> TableFolder:
        """The table's folder, as a folder that may be away."""
        return TableFolder(self.root)

    @property
    def address(self) -> Address:
        """The table's place in a bucket."""
        return address_of(self.path, sink="DeltaSink")

    def location(self) -> str:
        return f"s3a://{self.address.place}" if is_object(self.path) else self.folder.location

    @property
    def can_withdraw(self) -> bool:
        return True

    def not_compactable(self) -> str | None:
        if self.merge is not None:
            return "a publish joins small files of a table into which changes are merged, as it writes others anew"
        return None

    @property
    def remembers_batches(self) -> bool:
        return True

    @property
    def only_folder(self) -> Path | None:
        return None if is_object(self.path) else self.root

    def is_same_place(self, other: Sink) -> bool:
        if not isinstance(other, DeltaSink) or is_object(self.path) or is_object(other.path):
            return super().is_same_place(other)
        return self.folder.is_same_place(other.folder)

    def would_show(self, location: str) -> bool:
        """Whether the address lies in the table: readers would see no file there, but a VACUUM would remove it."""
        return lies_in(location, self.address) if is_object(self.path) else self.folder.would_show(location)

    def unlike(self, before: Sink) -> str | None:
        others = other_batches(before.merge, self.merge) if isinstance(before, DeltaSink) else None
        if others is not None:
            return f"the Delta table {self.location().removeprefix('file://')} {others}"
        if isinstance(before, DeltaSink) and before.partition_by != self.partition_by:
            return (
                f"the Delta table {self.location().removeprefix('file://')} is partitioned by "
                f"{list(before.partition_by)}, not by {list(self.partition_by)}."
            )
        return None
