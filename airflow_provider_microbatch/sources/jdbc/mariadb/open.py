"""A MariaDB table that is read by an incrementing column, opened for its checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from airflow_provider_microbatch.checkpoint.entries import Offset
from airflow_provider_microbatch.sources.jdbc.mariadb.opened import OpenMariaDbTable
from airflow_provider_microbatch.sources.jdbc.mariadb.session import quoted_column
from airflow_provider_microbatch.sources.jdbc.mariadb.spans import within
from airflow_provider_microbatch.sources.jdbc.mariadb.table import Snapshot, snapshot
from airflow_provider_microbatch.sources.jdbc.numbered import MOST_GAPS, OpenNumbered
from airflow_provider_microbatch.sources.jdbc.offset import Place, Table, divided


class OpenMariaDb(OpenMariaDbTable, OpenNumbered[Snapshot]):
    """A transaction of a gap is known by the time at which it began: a gap's ``xmax`` is the
    millisecond after its plan."""

    def has_new(self, position: Offset | None) -> bool:
        if len(self._place(position).gaps) >= MOST_GAPS:  # rows behind the next gap have to wait, as in the plan
            return self.latest_offset(position) != position
        return super().has_new(position)

    def _next(self, table: Snapshot, begin: Place, most: int | None) -> Place | None:
        end = self._planned(table, begin, most)
        if end is None or len(end.gaps) <= MOST_GAPS:
            return end
        waited = [gap for gap in end.gaps if gap.last <= begin.number]
        new = end.gaps[len(waited) :]
        room = max(0, MOST_GAPS - len(waited))
        if len(new) > room:
            # The batch ends before the first gap that cannot be listed. The others come when some are given up.
            end = replace(end, number=new[room].first - 1, gaps=(*waited, *new[:room]))
            if end.number == begin.number and not end.late:
                return None
        return replace(end, rows=table.count(end.spans(begin.number)))

    @property
    def _column(self) -> str:
        return quoted_column(self._source.column or "")

    def _predicates(self, start: Offset | None, end: Offset | None) -> list[str]:
        parts = divided(self._place(end).spans(self._place(start).number), self._source.partitions)
        return [within(self._column, part) for part in parts]

    def _made_again(self, then: Table, now: Table) -> str:
        return f"InnoDB's id of the table was {then.oid} then, and is {now.oid} now"

    def _same_rows(self) -> str:
        return "OPTIMIZE, ALTER TABLE, restored, renamed"

    @contextmanager
    def _snapshot(self, *, begin: Place | None = None, seconds: float | None = None) -> Iterator[Snapshot]:
        source, connection = self._source, self._connect(self._source.conn_id)
        waits = begin is not None and bool(begin.gaps)  # only what was missed may be waited for no more
        opened = snapshot(connection, table=source.table, column=source.column or "", waits=waits, seconds=seconds)
        with self._named(), opened as table:
            yield table
