"""Features that a table requires of its writers, and that delta-rs does not provide when it is given finished files. A
table that requires any of them is refused by name, before anything runs:
https://github.com/delta-io/delta/blob/master/PROTOCOL.md
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.runtime.intake import constrains, needs
from airflow_provider_microbatch.sinks.delta.columns import nullable_type
from airflow_provider_microbatch.sinks.delta.history import is_of_batch
from airflow_provider_microbatch.sinks.delta.intake import constraints_of
from airflow_provider_microbatch.sinks.delta.log import Snapshot, in_words
from airflow_provider_microbatch.sinks.delta.put_back import is_of_whole, restoring
from airflow_provider_microbatch.sinks.placed.records import Records

_HARMLESS = {
    "appendOnly",  # checked when output is to be replaced
    "invariants",  # declared invariants are found in the columns
    "checkConstraints",  # and declared constraints in the properties
    "generatedColumns",
    "changeDataFeed",  # appended files need no change files, nor do whole files that are removed
    "timestampNtz",
    "vacuumProtocolCheck",
    # delta-rs sets these on tables that it makes; they require nothing unless a column has the type.
    "variantType",
    "variantType-preview",
}
"""Writer features that require nothing, or whose use is checked separately."""

_OF_COLUMNS = {
    "delta.invariants": "an invariant",
    "delta.generationExpression": "a generated value",
    "delta.identity.start": "an identity (a value counted by the writer)",
    "delta.columnMapping.id": "a mapped name",
    "CURRENT_DEFAULT": "a default",
}

_OF_PROPERTIES = {
    "delta.enableDeletionVectors": "deletion vectors",
    "delta.enableRowTracking": "row tracking",
    "delta.enableInCommitTimestamps": "in-commit timestamps",
    "delta.enableIcebergCompatV1": "Iceberg compatibility",
    "delta.enableIcebergCompatV2": "Iceberg compatibility",
    "delta.enableTypeWidening": "type widening",
}

FORGETS = "delta.setTransactionRetentionDuration"


def check(
    snapshot: Snapshot, *, partition_by: Sequence[str], where: str, records: Records, held: Collection[str] = ()
) -> None:
    """Check that files can be added to the table as it is.

    :param partition_by: the partition columns in the sink's definition.
    :param records: the manifests of the table.
    :param held: the table's rules for rows that the rows of the files are held against, row by row.
    :raises SinkError: naming what cannot be written, and the way on.
    """
    check_memory(snapshot, where=where)
    check_whole(snapshot, partition_by=partition_by, where=where, records=records)
    found = list(_unwritable(snapshot, held))
    if found:
        raise SinkError(
            f"the Delta table {where} cannot be written: it has {', '.join(found)}, which files that Spark has written "
            "as plain Parquet do not honour. Drop it from the table (ALTER TABLE … DROP FEATURE, DROP CONSTRAINT, …), "
            "or give the pipeline another table. (Rows are held against NOT NULL and constraints where the pipeline "
            "has dead_letters=….) Nothing was written."
        )
    if snapshot.partition_columns != tuple(partition_by):
        raise SinkError(
            f"the Delta table {where} is partitioned by {list(snapshot.partition_columns)}, and the sink says "
            f"{list(partition_by)}: DeltaSink(…, partition_by={list(snapshot.partition_columns)}). Nothing was written."
        )


def check_memory(snapshot: Snapshot, *, where: str) -> None:
    """Check that the table does not forget its application transactions.

    :raises SinkError: if it does: it would then be unknown which batches are in.
    """
    if FORGETS in snapshot.properties:
        raise SinkError(
            f"the Delta table {where} forgets application transactions ({FORGETS}="
            f"{snapshot.properties[FORGETS]!r}), by which it is known which batches are in. Unset it: ALTER TABLE … "
            f"UNSET TBLPROPERTIES ('{FORGETS}'). Nothing was written."
        )


def check_whole(snapshot: Snapshot, *, partition_by: Sequence[str], where: str, records: Records) -> None:
    """Check that nobody has made another table of it.

    :param partition_by: the partition columns in the sink's definition.
    :param records: the manifests of the table.
    :raises SinkError: if it has files of another one, which removes them without asking; or if somebody has partitioned
        it anew since a batch came in, so that the sink can neither bring a batch in nor take one out.
    """
    if (path := snapshot.of_another) is not None:
        raise of_another(path, where=where)
    if snapshot.partition_columns == tuple(partition_by):
        return
    infos = snapshot.history_after(0)
    with suppress(SinkError):  # Spark's CLONE, which cannot be read here, is a table's first commit, and none of ours
        infos = snapshot.history_after(-1)
    # Before the first batch, whoever has made the table has made it so, and a RESTORE would take out what others have.
    ours = [info["version"] for info in infos if is_of_batch(info)]
    # The log forgets commits, and never a batch: then that came in before all commits that are left.
    first = min(ours) if ours else 0 if snapshot.has_any(records) else snapshot.version
    for info in filter(is_of_whole, infos):
        before = snapshot.log.at(info["version"] - 1) if info["version"] > first else None
        if before is not None and before.partition_columns == tuple(partition_by):
            raise SinkError(
                f"the Delta table {where} is partitioned by {list(snapshot.partition_columns)} since {in_words(info)}, "
                f"and was by {list(partition_by)} before, as the sink says: no batch can come in or go out, and with "
                f"another partition_by none could either. Bring version {before.version} back: "
                f"{restoring(snapshot.log.home, before.version, at=snapshot.version)} (where VACUUM has removed its "
                "files, give the pipeline another table and another checkpoint). That takes out what others have "
                "committed since. Nothing was written."
            )


def of_another(path: str, *, where: str) -> SinkError:
    """A file is another table's."""
    return SinkError(
        f"the Delta table {where} has the file {path!r}, which lies in another table's folder: it is a clone (SHALLOW "
        "CLONE), and loses its rows with that one's VACUUM. Nothing was changed. Lead the sink to that table; or to a "
        "copy of its whole folder, its log included."
    )


def check_not_merged(snapshot: Snapshot, *, where: str) -> None:
    """:raises SinkError: if changes are merged into the table: the next change of a key would take an appended row
    away, and no batch could be told from the others."""
    if snapshot.merged is not None:
        raise SinkError(
            f"changes are merged into the Delta table {where}. Give the sink its merge=… again, or write to another "
            "table. Nothing was written."
        )


def check_may_merge(snapshot: Snapshot, *, where: str) -> None:
    """:raises SinkError: if the table's files may not be written anew, as a merge does."""
    for name in ("delta.appendOnly", "delta.enableChangeDataFeed"):
        if _is_set(snapshot.properties, name):
            raise SinkError(
                f"changes cannot be merged into the Delta table {where}, which has {name}: a merge writes files anew, "
                "with the rows of keys that have not changed. Unset it (ALTER TABLE … UNSET TBLPROPERTIES "
                f"('{name}')), or give the pipeline another table. Nothing was written."
            )


def check_may_remove(snapshot: Snapshot, *, where: str) -> None:
    """:raises SinkError: if nothing may be taken out of the table."""
    if _is_set(snapshot.properties, "delta.appendOnly"):
        raise SinkError(
            f"the Delta table {where} is append-only (delta.appendOnly): no batch of it can be replaced or taken out. "
            "Nothing was changed."
        )


def has_change_feed(snapshot: Snapshot) -> bool:
    """Whether the table records its changes row by row, for readers that follow them."""
    return _is_set(snapshot.properties, "delta.enableChangeDataFeed")


def _unwritable(snapshot: Snapshot, held: Collection[str]) -> Iterator[str]:
    properties, protocol = snapshot.properties, snapshot.table.protocol()
    for feature in sorted(set(protocol.writer_features or ()) - _HARMLESS):
        yield f"the table feature {feature}"
    if protocol.min_writer_version > 7 or protocol.min_reader_version > 3:
        yield f"a protocol of versions {protocol.min_reader_version} and {protocol.min_writer_version}"
    for name, condition in constraints_of(snapshot).items():
        if constrains(name, condition) not in held:
            yield f"the constraint {name} ({condition})"
    for name, what in _OF_PROPERTIES.items():
        if _is_set(properties, name):
            yield what
    if properties.get("delta.columnMapping.mode", "none") != "none":
        yield "column mapping"
    if properties.get("delta.checkpointPolicy", "classic") != "classic":
        yield "v2 checkpoints"
    for column in snapshot.schema["fields"]:
        yield from _of_column(column, held)


def _of_column(column: Mapping[str, Any], held: Collection[str]) -> Iterator[str]:
    name = column["name"]
    is_held = column["nullable"] or needs(name) in held
    if not is_held or nullable_type(column["type"]) != column["type"]:
        yield f"the column {name} that is, or has in it what is, NOT NULL"
    for key, what in _OF_COLUMNS.items():
        if key in column["metadata"]:
            yield f"the column {name} with {what}"


def _is_set(properties: Mapping[str, str], name: str) -> bool:
    return properties.get(name, "false").lower() == "true"
