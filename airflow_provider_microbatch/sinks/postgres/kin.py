"""Tables that have rows in common with a table: it is a part of them (a partition, or by INHERITS), or they of it.

Lane and number tell whose a row is, and two pipelines have the same numbers. So one of the two alone may have a batch
of a number there: whoever replays his own takes out all rows of it.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from airflow_provider_microbatch.checkpoint.identity import BatchIdentity
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import ForeignBatchError
from airflow_provider_microbatch.sinks.postgres.database import Row, execute
from airflow_provider_microbatch.sinks.postgres.names import BATCHES, LANE, TableName, quoted

if TYPE_CHECKING:
    import psycopg

log = logging.getLogger(__name__)

_KIN = """
WITH RECURSIVE above AS (
    SELECT inhparent AS oid FROM pg_inherits WHERE inhrelid = to_regclass(%s)
    UNION SELECT inhparent FROM pg_inherits JOIN above ON inhrelid = above.oid),
below AS (
    SELECT inhrelid AS oid FROM pg_inherits WHERE inhparent = to_regclass(%s)
    UNION SELECT inhrelid FROM pg_inherits JOIN below ON inhparent = below.oid),
kin AS (SELECT oid, true AS is_above FROM above UNION ALL SELECT oid, false FROM below)
"""
_RELATED = f"""{_KIN}
SELECT nspname, relname, is_above FROM kin JOIN pg_class USING (oid) JOIN pg_namespace AS n ON n.oid = relnamespace
ORDER BY nspname, relname
"""
_TO_LOCK = f"""{_KIN}
SELECT oid::bigint, true FROM above UNION SELECT to_regclass(%s)::oid::bigint, false WHERE EXISTS (SELECT FROM kin)
ORDER BY 1
"""
_MAY_READ = """
SELECT has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT')
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = relnamespace WHERE nspname = %s AND relname = %s
"""
"""By the catalog alone: whoever names a table of a schema that he may not use gets an error."""


@dataclass(frozen=True)
class Kin:
    """Within a transaction.

    :param table: the table. If changes are merged into it, its rows have no lane, and :meth:`names` alone is asked.
    """

    connection: psycopg.Connection[Row]
    table: TableName

    def names(self) -> list[TableName]:
        """The tables, by schema and name."""
        return [TableName(schema, name) for schema, name, _ in self._related()]

    def hold(self, key: BatchKey) -> None:
        """Called first in a transaction that publishes the batch: makes those wait that publish one of its number to
        tables which have rows in common with this one, but not those of other parts, nor of other numbers. Without it
        both would look for the other's batch before either is in.
        """
        name = self.table.text
        found = execute(self.connection, _TO_LOCK, name, name, name).fetchall()
        for oid, is_shared in found:  # in the order of all others, so that none waits for another in a circle
            lock = f"SELECT pg_advisory_xact_lock{'_shared' if is_shared else ''}(hashtextextended(%s, 0))"
            execute(self.connection, lock, f"microbatch {oid} {key}")

    def check_alone(self, batch: BatchIdentity, *, is_sole: Callable[[], bool]) -> TableName | None:
        """Check that no pipeline has a batch of that number in a table that has rows in common with this one.

        :param batch: whose place is asked for; that of nobody in particular is in nobody's way.
        :param is_sole: whether all rows of the number in this table are the batch's own: then they are none of a table
            that this one is a part of.
        :return: a record of batches that may have one, and that the login may not read; None if there is none.
        :raises ForeignBatchError: if one has.
        """
        unseen = None
        for records, names in self._records().items() if batch.checkpoint else ():
            may_read = self._may_read(records)
            if may_read is False:
                unseen = records
            for other, pipeline in self._others(records, names, batch) if may_read else ():
                is_above = names[other.table]
                if not self._is_merged(other) and not (is_above and is_sole()):
                    raise self._shared(batch.key, other, pipeline, is_above=is_above)
        return unseen

    def _records(self) -> Mapping[TableName, Mapping[str, bool]]:
        """For the record of each schema the tables that have rows in common, with whether this one is a part of it. A
        table has thousands of parts, mostly of one schema."""
        found = defaultdict[TableName, dict[str, bool]](dict)
        for schema, name, is_above in self._related():
            found[TableName(schema, BATCHES)][name] = is_above
        return found

    def _related(self) -> list[Row]:
        return execute(self.connection, _RELATED, self.table.text, self.table.text).fetchall()

    def _others(
        self, records: TableName, names: Collection[str], batch: BatchIdentity
    ) -> Iterator[tuple[TableName, str]]:
        """Those of the tables of which another checkpoint has a batch of that number, with its pipeline."""
        found = execute(
            self.connection,
            f"SELECT table_name, pipeline FROM {records.sql} WHERE table_name = ANY(%s) AND lane = %s AND id = %s "
            "AND checkpoint <> %s ORDER BY 1",
            list(names),
            batch.key.lane,
            batch.key.id,
            batch.checkpoint,
        )
        for name, pipeline in found.fetchall():
            yield records.sibling(name), pipeline

    def _may_read(self, records: TableName) -> bool | None:
        """Whether the login may read a schema's record of batches; None if it has none."""
        found = execute(self.connection, _MAY_READ, records.schema, records.table).fetchone()
        if found == (False,):
            _tell_unseen(self.table, records)
        return None if found is None else found == (True,)

    def _is_merged(self, table: TableName) -> bool:
        asked = "SELECT to_regclass(%s) IS NOT NULL OR to_regclass(%s) IS NOT NULL"
        found = execute(self.connection, asked, *(table.changes(scd_type).text for scd_type in (1, 2))).fetchone()
        return found == (True,)

    def _shared(self, key: BatchKey, other: TableName, pipeline: str, *, is_above: bool) -> ForeignBatchError:
        related = f"of which {self.table} is a part" if is_above else f"which is a part of {self.table}"
        part = self.table if is_above else other
        return ForeignBatchError(
            f"batch {key} of pipeline {pipeline!r} is in {other}, {related}: lane and number tell whose a row is, and "
            "each of the two pipelines would take out what the other has of that number. Nothing was published or "
            "taken out. Have one of them write to another table. Where both have it already, have the pipeline of "
            f"{part} take its own out first (microbatch rewind … --drop-output), as long as no rows of the other are "
            f"there. If pipeline {pipeline!r} is no more, have its rows be nobody's (UPDATE {other.text} SET "
            f"{quoted(LANE)} = 'nobody' WHERE …), then take its batches off the record (DELETE FROM "
            f"{other.sibling(BATCHES).text} WHERE table_name = '{other.table}')."
        )


def of_unseen(records: TableName) -> str:
    """Whose rows may be of a batch beside its own, and the way on.

    :param records: a record of batches that the login may not read.
    """
    return (
        f"they may be those of another pipeline, whose record of batches, {records}, the login may not read. Grant it "
        f"that (GRANT USAGE ON SCHEMA {quoted(records.schema)} TO …; GRANT SELECT ON {records.text} TO …), then clear "
        "the batch's task"
    )


@cache
def _tell_unseen(table: TableName, records: TableName) -> None:
    """Once for each process: a pipeline that has run so goes on."""
    log.warning(
        "%s has rows in common with tables of schema %s, and the login may not read %s: whether another pipeline has "
        "batches there cannot be seen, and a batch is not made again that has more rows than it brought. Grant it "
        "USAGE on that schema, and SELECT on that table.", table, records.schema, records,
    )  # fmt: skip
