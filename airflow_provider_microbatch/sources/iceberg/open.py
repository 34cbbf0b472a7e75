"""A branch of an Iceberg table, opened for its checkpoint: plans ranges of snapshots and describes how to read them."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from airflow_provider_microbatch.checkpoint.entries import Offset
from airflow_provider_microbatch.exceptions import SourceError
from airflow_provider_microbatch.iceberg_catalog import OpenCatalog
from airflow_provider_microbatch.runtime.job import Read
from airflow_provider_microbatch.sources import SourceContext
from airflow_provider_microbatch.sources.iceberg import EARLIEST, IcebergSource
from airflow_provider_microbatch.sources.iceberg.branch import Branch, Commit
from airflow_provider_microbatch.sources.iceberg.history import History
from airflow_provider_microbatch.sources.iceberg.offset import Place
from airflow_provider_microbatch.sources.stretch import Limits, Spot, Stretch, Unit, passed_over
from airflow_provider_microbatch.sources.versions import OpenVersions

_READER = "airflow_provider_microbatch.runtime.iceberg:read"
_MERGED = "microbatch.merged"
"""The property that IcebergSink leaves in a table into which it merges changes."""


class OpenIcebergSource(OpenVersions[Place, History, Unit]):
    """A version is a snapshot's sequence number. Offsets are
    :class:`~airflow_provider_microbatch.sources.iceberg.offset.Place` as JSON."""

    numbered = "sequence number"

    def __init__(self, source: IcebergSource, context: SourceContext) -> None:
        limits = Limits(files=source.max_files, bytes=source.max_bytes)
        super().__init__(context, place=Place, limits=limits, begins_with_all=source.start == EARLIEST)
        self._source = source
        self._catalog = OpenCatalog(
            source.conn_id,
            source.table,
            connect=context.connect,
            at_end=context.at_end,
            failed=SourceError,
            busy=SourceError,
        )

    def _read(self, start: Offset | None, end: Offset | None) -> Read:
        history = self._history()
        stretches = self._range(start, end, history)
        begin = self._start(start)
        files = [file.path for one in stretches if one.in_snapshot for file in one.files]
        address, columns = history.branch.as_of(history.last(stretches, begin))
        return Read(
            reader=_READER,
            arguments={
                "name": self._name,
                "address": address,
                "columns": [list(pair) for pair in columns],
                "snapshot": None if begin is None or not files else begin.snapshot,
                "files": files,
                "runs": runs_of(history.commits(stretches)),
                "told": {"passed_over": passed_over(stretches)},
            },
            requires=self._source.requires(),
        )

    def _range(self, start: Offset | None, end: Offset | None, history: History | None = None) -> list[Stretch[Unit]]:
        # The table must exist even for an empty range.
        return super()._range(start, end, history or self._history())

    def _history(self) -> History:
        try:
            import pyiceberg  # noqa: F401
        except ImportError as error:
            raise SourceError(
                "pyiceberg is not installed, which plans for Iceberg tables. Run: pip install "
                "'airflow-provider-microbatch[iceberg]'"
            ) from error
        table = self._catalog.load()
        if table is None:
            raise SourceError(
                f"the catalog of connection {self._source.conn_id!r} has no table {self._source.table}: it was dropped "
                "or renamed, or the connection leads to another catalog."
            )
        if _MERGED in table.metadata.properties:
            raise SourceError(
                f"changes are merged into the Iceberg table {self._source.table}: each of its snapshots writes rows of "
                "earlier ones anew, and which are new is not told. Read what its pipeline reads, or what it has "
                "written elsewhere."
            )
        return History(
            self._source,
            branch=Branch(table, self._source.branch),
            set_offset=self._set_offset,
            old_before_ms=self._old_before_ms(),
        )

    def _beginning(self, history: History) -> Place:
        return history.beginning()

    def _first(self, history: History) -> Place:
        return replace(history.beginning(), table=history.branch.uuid)

    def _head(self, begin: Place, history: History) -> Spot:
        return Place(version=2**63, snapshot=begin.snapshot)

    def _pinned(self, place: Place, history: History) -> Place:
        # The snapshot is the one that was read. Of those of format 1, which all have the number 0, that is the one of
        # the start: only as a whole are they read.
        branch, is_of_start = history.branch, place.in_snapshot or place.sequence == 0
        read = None if is_of_start else next((one.id for one in branch.chain if one.sequence == place.sequence), None)
        return replace(place, snapshot=place.snapshot if read is None else read, table=branch.uuid)


def runs_of(commits: list[Commit]) -> list[list[int | None]]:
    """Runs of snapshots that are read together: the snapshot before the first, which is not read, and the last. No
    snapshot in a run is passed over; the first snapshot of a table has none before it."""
    found = list[list[int | None]]()
    for before, one in pairwise([None, *commits]):
        assert one is not None
        if found and before is not None and one.parent == before.id:
            found[-1][1] = one.id
        else:
            found.append([one.parent, one.id])
    return found
