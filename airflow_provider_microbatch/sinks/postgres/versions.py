"""The versions of each key, in the table that readers read: a function of the changes that are in."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from airflow_provider_microbatch.runtime.changes import DELETED
from airflow_provider_microbatch.sinks.postgres.columns import OWN, columns_of
from airflow_provider_microbatch.sinks.postgres.database import execute
from airflow_provider_microbatch.sinks.postgres.names import TableName, listed, quoted
from airflow_provider_microbatch.sinks.postgres.rows import Merged

_FIRST, _SINCE, _STATE, _BEFORE = (f"microbatch_{name}" for name in ("first", "since", "state", "before"))
"""Columns within the statement, none of which is named as a user's would be."""


class Versioned(Merged):
    """Each row of a batch is a change; for each key, the table has a row for every state that the key has been in."""

    def follow(self, touched: Sequence[TableName]) -> None:
        """Make the versions of the touched keys anew, from the last one that began before the first touched change: the
        changes before that are as they were, so it begins where it did, and the versions before it end where they did.
        """
        names = [column.name for column in columns_of(self.connection, self.place) if column.name not in OWN]
        if not names or not touched:
            return
        merge, keys, sequence = self.merge, listed(self.merge.keys), quoted(self.merge.sequence_by[0])
        shown = self._shown(names)
        told = [*shown, *merge.bounds]
        start, end = quoted(merge.valid_from), quoted(merge.valid_to)
        came = " UNION ALL ".join(f"SELECT {keys}, {sequence} FROM {table.sql}" for table in touched)
        chain = f"PARTITION BY {keys} ORDER BY {sequence}"
        # What readers see of a change, and null where they see nothing.
        state = (
            f"CASE WHEN NOT {quoted(DELETED)} THEN "
            f"ROW({listed(name for name in shown if name not in merge.keys)})::text END"
        )
        execute(
            self.connection,
            f"WITH touched AS (SELECT DISTINCT ON ({keys}) {keys}, {sequence} AS {_FIRST} FROM ({came}) AS came "
            f"ORDER BY {keys}, {sequence}), "
            f"since AS MATERIALIZED (SELECT {keys}, COALESCE((SELECT t.{start} FROM {self.table.sql} AS t "
            f"WHERE {self._same('t', 'a')} AND t.{start} < a.{_FIRST} ORDER BY t.{start} DESC LIMIT 1), a.{_FIRST}) "
            f"AS {_SINCE} FROM touched AS a), "
            # For each key its winning changes, found in the index.
            f"winning AS (SELECT w.* FROM since AS a CROSS JOIN LATERAL ("
            f"SELECT DISTINCT ON ({listed(merge.distinct_by, of='c')}) * FROM {self.place.sql} AS c "
            f"WHERE {self._same('c', 'a')} AND c.{sequence} >= a.{_SINCE} ORDER BY {self._order('c', names)}) AS w), "
            f"states AS (SELECT {listed(names)}, {state} AS {_STATE} FROM winning), "
            f"chained AS (SELECT *, lag({_STATE}) OVER ({chain}) AS {_BEFORE} FROM states), "
            # What is left are the changes that begin a version, end one, or do both.
            f"turning AS (SELECT *, {sequence} AS {start}, lead({sequence}) OVER ({chain}) AS {end} FROM chained "
            f"WHERE {_STATE} IS DISTINCT FROM {_BEFORE}), "
            f"versions AS MATERIALIZED (SELECT {listed(told)} FROM turning WHERE {_STATE} IS NOT NULL), "
            f"gone AS (DELETE FROM {self.table.sql} AS t USING since AS a WHERE {self._same('t', 'a')} "
            f"AND t.{start} >= a.{_SINCE} AND NOT EXISTS (SELECT 1 FROM versions AS v WHERE {self._same('v', 't')} "
            f"AND v.{start} = t.{start}) RETURNING 1) "
            f"INSERT INTO {self.table.sql} AS t ({listed(told)}) SELECT {listed(told)} FROM versions "
            # Old versions go before others take their place, and each ends before the next one begins: a constraint of
            # the user's, by which versions of a key do not overlap, holds at every row.
            f"WHERE (SELECT count(*) FROM gone) IS NOT NULL ORDER BY {start} "
            f"ON CONFLICT ({listed((*merge.keys, merge.valid_from))}) {self._update(told)}",
        )

    def _newest(self, of: str) -> str:
        return f" AND {of}.{quoted(self.merge.valid_to)} IS NULL"

    def _differs(self, has: Collection[str]) -> str:
        return super()._differs(())  # a version begins with the first of the changes that left it as it is
