"""What is asked of a table of PostgreSQL whatever its rows are planned by, in one snapshot."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from airflow_provider_microbatch.exceptions import SourceError
from airflow_provider_microbatch.sources.jdbc.cluster import Cluster, cluster_now
from airflow_provider_microbatch.sources.jdbc.session import KIN, quoted
from airflow_provider_microbatch.sources.jdbc.transactions import (
    NEXT,
    TRANSACTION,
    check_told,
    check_written_here,
    unseen,
)

WHOLE = (20, 21, 23)  # oids of int8, int2, int4
WRITTEN_BY = "ALTER TABLE that changes a type or makes it LOGGED, TRUNCATE"
"""What gives the rows of a table other transactions."""

_NUMERIC = (1700, 1231)  # oids of numeric and of its array
_SPARK_DIGITS = 38
_MOVED = "tableoid IN (SELECT oid FROM pg_catalog.pg_class WHERE relfilenode <> oid)"


FILES = f"(SELECT sum(p.relfilenode::bigint)::bigint FROM pg_catalog.pg_class AS p WHERE p.oid IN {KIN})"
"""The sum of the file numbers of a table and of all whose rows are its own too."""


class Relation:
    """:param opened: a connection in a transaction of one snapshot.
    :param table: as the user wrote it.
    :param ran: the first transaction id of which no row was visible before the snapshot, and the lower ids that ran, as
        :func:`~airflow_provider_microbatch.sources.jdbc.transactions.running_now` returns them.
    """

    def __init__(self, opened: Any, *, table: str, ran: tuple[int, list[int]]) -> None:
        self._opened, self._ran = opened, ran
        self._table = quoted(table)

    def inexact(self, *, texts: Sequence[str]) -> list[str]:
        """Columns whose numbers Spark would silently cut or turn into null: ``numeric`` without a precision, or with
        more digits than Spark's decimals have.

        :param texts: columns that are read as texts.
        """
        result = self._opened.execute(f"SELECT * FROM {self._table} LIMIT 0").pgresult
        found = []
        for at in range(result.nfields):
            name, kind, modifier = result.fname(at).decode(), result.ftype(at), result.fmod(at)
            if kind not in _NUMERIC or name in texts:
                continue
            # PostgreSQL's numeric_typmod: precision above, eleven bits of a signed scale below.
            precision, scale = (modifier - 4) >> 16 & 0xFFFF, ((modifier - 4 & 0x7FF) ^ 1024) - 1024
            if modifier < 4 or precision > _SPARK_DIGITS or not 0 <= scale <= precision:
                found.append(name)
        return found

    def check_told(self) -> None:
        """See :func:`~airflow_provider_microbatch.sources.jdbc.transactions.check_told`."""
        check_told(self._opened, self._table)

    def check_written_here(self) -> None:
        """See :func:`~airflow_provider_microbatch.sources.jdbc.transactions.check_written_here`."""
        check_written_here(self._opened, self._table)

    def below(self) -> int:
        """The first transaction id of which no row is visible: the highest one that has ended, plus one. Newer ones may
        run, see :meth:`bound`."""
        (found,) = self._row(f"SELECT {NEXT}")
        return int(found)

    def bound(self) -> int:
        """An id above those of all transactions that had one when the snapshot was taken.

        It is an id of its own, which the plan of a batch takes, and a sensor's look does not: ids are given in order,
        so none of before is above it. The snapshot tells no such id: its ``xmax`` lies below each transaction that is
        newer than all that have ended. Nor does ``pg_locks``, which does not have what has ended since the snapshot.
        """
        (found,) = self._row("SELECT pg_current_xact_id()::text::bigint")
        return int(found)

    def any(self, *conditions: str) -> bool:
        """Whether one of the conditions holds for a row."""
        asked = " OR ".join(f"EXISTS (SELECT FROM {self._table} WHERE {condition})" for condition in conditions)
        (found,) = self._row(f"SELECT {asked}")
        return bool(found)

    def count_of(self, condition: str, *, most: int | None = None) -> int:
        """Number of rows for which the condition holds, or ``most`` if there are more."""
        limit = "" if most is None else f" LIMIT {most}"
        (found,) = self._row(f"SELECT count(*) FROM (SELECT FROM {self._table} WHERE {condition}{limit}) AS found")
        return int(found)

    def any_anew(self, condition: str, *, since: int) -> bool:
        """Whether the condition holds for a row that may be an older one, written anew: by a transaction since, in a
        table or partition that has another file than it was made with.

        :param since: the first transaction id that counts.
        """
        return self.any(f"({condition}) AND {TRANSACTION} >= {since} AND {_MOVED}")

    def is_written_anew(self, *, unseen: str, seen: str, before: str) -> bool:
        """Whether rows of a place have other transactions than those by which they were read: all of them, or all rows
        of a partition that has another file than it was made with. VACUUM FULL and CLUSTER keep the transaction of each
        row; ALTER TABLE, and a restore behind TRUNCATE, replace it.

        Rows of the place may also be gone one by one, changed or deleted. What gives a table or a partition other files
        and transactions leaves it no row that was visible, at any place: where one is, the others came late.

        :param unseen: rows of the place that were not visible when they were read.
        :param seen: rows of it that were.
        :param before: rows of any place that were.
        """
        parts = self._opened.execute(f"SELECT DISTINCT tableoid::bigint, {_MOVED} FROM {self._table} WHERE {unseen}")
        found = parts.fetchall()
        none_seen = bool(found) and not self.any(seen)
        return any((moved or none_seen) and not self.any(f"tableoid = {oid} AND {before}") for oid, moved in found)

    def has_column(self, name: str, number: int | None) -> bool:
        """Whether the table has a column of this name.

        :param number: the database's number of the column; None for any.
        """
        found = self._row(
            "SELECT attnum FROM pg_catalog.pg_attribute WHERE attrelid = %s::regclass AND attname = %s::name "
            "AND attnum > 0",
            self._table,
            name,
        )
        return found is not None and number in (None, found[0])

    def _described(self, columns: Sequence[str]) -> tuple[list[int], tuple[int, ...]]:
        """The oid of each column's type, and each column's number, as PostgreSQL itself has understood the names: from
        then on the transaction has a lock, and they stay.

        :param columns: as SQL has them.
        """
        result = self._opened.execute(f"SELECT {', '.join(columns)} FROM {self._table} LIMIT 0").pgresult
        each = range(len(columns))
        return [result.ftype(at) for at in each], tuple(result.ftablecol(at) for at in each)

    @cached_property
    def _cluster(self) -> Cluster:
        return cluster_now(self._opened)

    def _made(self, more: str, *values: Any) -> Any:
        """Name and oid of the table, and what else is asked of it.

        :param more: an SQL expression over ``pg_class AS c``.
        :param values: of its placeholders.
        :raises SourceError: if the table is being made again.
        """
        found = self._row(
            f"SELECT n.nspname || '.' || c.relname, c.oid::bigint, {more} FROM pg_catalog.pg_class AS c "
            "JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace WHERE c.oid = %s::regclass",
            *values,
            self._table,
        )
        if found is None:  # the name is resolved now, and everything else as of the snapshot
            raise SourceError(f"{self._table} is being made again at this moment: look again")
        return found

    def _unseen(self, below: int, *, rows: str) -> list[int]:
        """Transactions that may still commit rows.

        :param below: see :meth:`below`.
        :param rows: which rows, in SQL from ``FROM`` on.
        """
        return unseen(self._opened, self._ran, below, rows=rows)

    def _row(self, statement: str, *values: Any) -> Any:
        return self._opened.execute(statement, values or None).fetchone()
