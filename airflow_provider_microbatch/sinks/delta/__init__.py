"""A Delta table on a local or shared POSIX file system. A batch is published by one commit of the table's own log,
which the orchestrator makes with delta-rs; Spark writes plain Parquet and needs no jar of Delta's.

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

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from importlib.util import find_spec
from pathlib import Path

from airflow_provider_microbatch.exceptions import DefinitionError
from airflow_provider_microbatch.sinks import OpenSink, Sink, SinkContext
from airflow_provider_microbatch.sinks.file.arguments import check_options, check_path, local_path, partition_columns
from airflow_provider_microbatch.sinks.table_folder import TableFolder

SCHEMA_POLICIES = ("fail", "add_columns")


@dataclass(frozen=True)
class DeltaSink(Sink):
    """Publishes each batch as one commit of a Delta table.

    The table gets two columns, ``lane`` and ``batch_id``, which say which batch each row belongs to, even after
    OPTIMIZE has merged the row's file with others. The first publish makes the table, unless it exists.

    :param path: the table: an absolute local path or ``file:`` URL. As in Spark, a URL is not percent-decoded.
    :param partition_by: the table's partition columns.
    :param schema_policy: how to treat columns that the table does not have: ``"fail"`` publishes only rows with exactly
        the table's columns; ``"add_columns"`` adds columns missing on either side, as null. A type never changes.
    :param options: options of Spark's Parquet writer, such as ``{"compression": "zstd"}``.
    :raises DefinitionError: for a wrong type or value, naming the field.
    """

    path: str
    _: KW_ONLY
    partition_by: tuple[str, ...] = ()
    schema_policy: str = "fail"
    options: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        where = f"DeltaSink({self.path!r})"
        check_path(self.path, where=where)
        if "%" in str(self.root):
            raise DefinitionError(f"{where}: path must not have '%': delta-rs decodes it, and looks elsewhere.")
        object.__setattr__(self, "partition_by", partition_columns(self.partition_by, where=where))
        if self.schema_policy not in SCHEMA_POLICIES:
            raise DefinitionError(f"{where}: schema_policy {self.schema_policy!r} is none of {SCHEMA_POLICIES}.")
        check_options(self.options, where=where)

    def open(self, context: SinkContext) -> OpenSink:
        for client in ("deltalake", "pyarrow"):
            if find_spec(client) is None:
                raise DefinitionError(
                    f"DeltaSink({self.path!r}) needs {client}, which is not installed here. Run: "
                    "pip install 'airflow-provider-microbatch[delta]'"
                )
        from airflow_provider_microbatch.sinks.delta.opened import OpenDelta

        return OpenDelta(self)

    @property
    def root(self) -> Path:
        """The table's folder."""
        return local_path(self.path, where=f"DeltaSink({self.path!r})")

    @property
    def folder(self) -> TableFolder:
        """The table's folder, as a folder that may be away."""
        return TableFolder(self.root)

    def location(self) -> str:
        return self.folder.location

    @property
    def can_withdraw(self) -> bool:
        return True

    def not_compactable(self) -> str | None:
        return None

    @property
    def remembers_batches(self) -> bool:
        return True

    @property
    def only_folder(self) -> Path | None:
        return self.root

    def is_same_place(self, other: Sink) -> bool:
        return isinstance(other, DeltaSink) and self.folder.is_same_place(other.folder)

    def would_show(self, location: str) -> bool:
        """Whether the address lies in the table: readers would see no file there, but a VACUUM would remove it."""
        return self.folder.would_show(location)

    def unlike(self, before: Sink) -> str | None:
        if isinstance(before, DeltaSink) and before.partition_by != self.partition_by:
            return (
                f"the Delta table {self.root} is partitioned by {list(before.partition_by)}, not by "
                f"{list(self.partition_by)}."
            )
        return None
