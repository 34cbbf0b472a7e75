"""A branch as pyiceberg describes it: the table that it belongs to, and its snapshots in order."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from airflow_provider_microbatch.exceptions import SourceError
from airflow_provider_microbatch.sources.iceberg import MAIN
from airflow_provider_microbatch.sources.stretch import Unit

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot


@dataclass(frozen=True, kw_only=True)
class Commit:
    """A snapshot, and its changes.

    :param parent: the id of the preceding snapshot; None if there is none, or if the link was cut.
    :param sequence: sequence number, which orders the snapshots of a table.
    :param operation: ``append``, ``replace`` (the same rows in other files), ``overwrite`` or ``delete``.
    :param added: the files and rows that it has appended.
    :param words: its operation and its author, for people.
    :param time_ms: its time, milliseconds since the epoch.
    :param schema: the id of the table's schema at that time.
    :param is_first: whether the table had no file before it. A snapshot without a parent need not be the first:
        expiring snapshots may cut the links to them.
    """

    id: int
    parent: int | None
    sequence: int
    operation: str
    added: Unit
    words: str
    time_ms: int
    schema: int | None
    is_first: bool


class Branch:
    """:param table: as pyiceberg has loaded it.
    :param name: name of the branch.
    :raises SourceError: if there is no branch of that name, or its snapshots have no order.
    """

    def __init__(self, table: Table, name: str) -> None:
        self._table = table
        metadata = table.metadata
        if metadata.format_version < 2:
            raise SourceError(
                f"{'.'.join(table.name())} is of Iceberg's format 1, whose snapshots have no sequence numbers: ALTER "
                "TABLE … SET TBLPROPERTIES ('format-version' = '2')."
            )
        if name not in metadata.refs and (name != MAIN or metadata.refs.get(MAIN)):
            raise SourceError(f"{'.'.join(table.name())} has no branch {name!r}; it has {', '.join(metadata.refs)}.")
        self._head = metadata.snapshot_by_name(name)
        self.uuid = str(metadata.table_uuid)

    @cached_property
    def chain(self) -> list[Commit]:
        """The snapshots from the oldest that has not expired to the head."""
        found, at = list[Commit](), self._head
        while at is not None:
            found.append(_commit(at))
            parent = at.parent_snapshot_id
            at = None if parent is None else self._table.metadata.snapshot_by_id(parent)
        return found[::-1]

    @property
    def head(self) -> Commit | None:
        """The newest snapshot; None if there is none."""
        return None if self._head is None else _commit(self._head)

    def has(self, id: int) -> bool:
        """Whether the table has the snapshot, on any branch."""
        return self._table.metadata.snapshot_by_id(id) is not None

    def files(self, id: int) -> list[Unit]:
        """All files that the table has at a snapshot, always in the same order.

        :raises SourceError: if the snapshot is expired.
        """
        from pyiceberg.manifest import ManifestContent

        snapshot = self._table.metadata.snapshot_by_id(id)
        if snapshot is None:
            raise SourceError(f"snapshot {id} is expired")
        io = self._table.io
        manifests = snapshot.manifests(io)
        is_whole = all(one.content == ManifestContent.DATA for one in manifests)
        entries = [
            entry for one in manifests if one.content == ManifestContent.DATA for entry in one.fetch_manifest_entry(io)
        ]
        found = sorted(entries, key=lambda entry: (entry.sequence_number or 0, entry.data_file.file_path))
        return [
            Unit(
                path=entry.data_file.file_path,
                size=entry.data_file.file_size_in_bytes,
                rows=entry.data_file.record_count if is_whole else None,
            )
            for entry in found
        ]

    def as_of(self, commit: Commit | None) -> tuple[str, list[tuple[str, str]]]:
        """The address by which Spark finds a snapshot: that of the oldest metadata that has the snapshot and still
        exists, so that a range is read as it was when it was committed. And its columns: the name in that metadata, and
        the name at the time of the snapshot. Columns that the metadata no longer has cannot be read.

        :param commit: None for the table as it is now.
        """
        now = self._table.metadata
        if commit is None:
            return self._table.metadata_location, [(column.name, column.name) for column in now.schema().fields]
        address, found = self._table.metadata_location, now
        for entry in now.metadata_log:
            if entry.timestamp_ms < commit.time_ms:
                continue
            known = self._metadata(entry.metadata_file)
            if known is not None and known.snapshot_by_id(commit.id) is not None:
                address, found = entry.metadata_file, known
                break
        then = next((one for one in now.schemas if one.schema_id == commit.schema), now.schema())
        names = {column.field_id: column.name for column in found.schema().fields}
        pairs = [(names[column.field_id], column.name) for column in then.fields if column.field_id in names]
        return address, pairs

    def _metadata(self, address: str) -> TableMetadata | None:
        """The metadata at an address; None if it is gone."""
        from pyiceberg.serializers import FromInputFile

        try:
            return FromInputFile.table_metadata(self._table.io.new_input(address))
        except FileNotFoundError:
            return None


def _commit(snapshot: Snapshot) -> Commit:
    summary = snapshot.summary
    told = {} if summary is None else summary.additional_properties

    def count(name: str) -> int | None:
        value = None if summary is None else summary[name]
        return int(value) if value is not None and str(value).isdecimal() else None

    operation = "unknown" if summary is None else summary.operation.value
    who = told.get("engine-name") or told.get("spark.app.id") or "somebody"
    batch = told.get("microbatch.batch")
    added, total = count("added-data-files"), count("total-data-files")
    if added is None:
        # A writer that counts leaves out counts of 0. A writer that does not count, which the spec does not require,
        # may have added files.
        added = 0 if total is not None else 1
    return Commit(
        id=snapshot.snapshot_id,
        parent=snapshot.parent_snapshot_id,
        sequence=snapshot.sequence_number or 0,
        operation=operation,
        added=Unit(
            path=str(snapshot.snapshot_id),
            size=count("added-files-size") or 0,
            rows=count("added-records") if summary is not None else None,
            files=added,
        ),
        words=f"{operation}{'' if batch is None else f' of batch {batch}'} by {who}",
        time_ms=snapshot.timestamp_ms,
        schema=snapshot.schema_id,
        is_first=snapshot.parent_snapshot_id is None
        and (total == added if total is not None else snapshot.sequence_number == 1),
    )
