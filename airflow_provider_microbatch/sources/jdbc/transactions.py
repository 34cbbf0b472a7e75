"""Determines the rows of PostgreSQL that were visible at a moment, by the transactions that wrote them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_microbatch.exceptions import SourceError
from airflow_provider_microbatch.sources.jdbc.session import KIN

RECYCLED = 2**31
"""So many ids after a plan, its rows' numbers may be those of other transactions: rows keep the last 32 bits."""

NEXT = "(SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint)"
"""The first id of which no row is visible."""

TRANSACTION = f"({NEXT} - (({NEXT} - xmin::text::bigint) & 4294967295))"
"""A row's transaction with its epoch, which the row does not store: of the ids below :data:`NEXT` the newest one with
the row's number."""

_TABLES = ("r", "p")  # plain tables, and partitioned ones; a view's rows have no transaction

# As old as the oldest writer is, so many ids there are: at 500 a second, 14 million in eight hours. Where it is known
# what had ended at a moment, what ran then and what came after it are asked for alone. A server that took the place of
# another one may give ids again: where one runs that had ended then, all from there on are asked for.
_RUNNING = (
    "SELECT last, ARRAY(SELECT x FROM ("
    "SELECT generate_series(greatest(lower(r), first), least(upper(r), new, last) - 1) AS x FROM unnest(ran) AS r "
    "UNION ALL SELECT generate_series(greatest(new, first), last - 1)) AS asked "
    "WHERE pg_xact_status(x::text::xid8) = 'in progress' ORDER BY x) "
    "FROM (SELECT ran, pg_snapshot_xmin(s)::text::bigint AS first, pg_snapshot_xmax(s)::text::bigint AS last, "
    "least(%s::bigint, (SELECT min(x::text::bigint) FROM pg_snapshot_xip(s) AS x WHERE NOT ran @> x::text::bigint)) "
    "AS new FROM (SELECT pg_current_snapshot() AS s, %s::int8multirange AS ran OFFSET 0) AS now OFFSET 0) AS known"
)

_ENDED = (
    "SELECT x FROM unnest(%s::bigint[]) AS x WHERE pg_visible_in_snapshot(x::text::xid8, pg_current_snapshot()) "
    "AND pg_xact_status(x::text::xid8) IS DISTINCT FROM 'in progress'"
)


@dataclass(frozen=True, kw_only=True)
class Ended:
    """What had ended at a moment: the transactions below ``below`` that are not ``running``. By default nothing is
    known to have.

    :param below: the first id of which no row was visible then.
    :param running: first and last of the ids that ran.
    """

    below: int = 0
    running: Sequence[tuple[int, int]] = ()


def running_now(opened: Any, ended: Ended) -> tuple[int, list[int]]:
    """Return the first id of which no row is visible, and the lower ids that run. These include subtransactions, which
    a snapshot does not name although rows have their ids. Called before a snapshot is taken, so that no transaction
    that runs then is missed.

    :param opened: a session that is in no transaction.
    :param ended: what had ended at an earlier moment.
    """
    opened.autocommit = True
    first_unknown, ran = opened.execute(_RUNNING, [ended.below, _multirange(ended.running)]).fetchone()
    opened.autocommit = False
    return int(first_unknown), list(ran)


def check_told(opened: Any, table: str) -> None:
    """Check that rows tell which transaction wrote them: those of a view do not.

    :param table: as SQL has it.
    :raises SourceError: if they do not.
    """
    (kind,) = opened.execute(
        "SELECT relkind::text FROM pg_catalog.pg_class WHERE oid = %s::regclass", [table]
    ).fetchone() or (None,)
    if kind not in _TABLES:
        raise SourceError(f"{table} is no table: only a table's rows tell who wrote them")


def check_written_here(opened: Any, table: str) -> None:
    """Check that rows come by transactions of this server, as far as it tells. Of one elsewhere nothing tells whether
    it is over: its rows would not be waited for as long as it is at work there.

    :param table: as SQL has it.
    :raises SourceError: if they do not.
    """
    (is_foreign,) = opened.execute(
        f"SELECT EXISTS (SELECT FROM pg_catalog.pg_class WHERE relkind = 'f' AND oid IN {KIN})", [table]
    ).fetchone()
    if is_foreign:
        raise SourceError(
            f"{table} has partitions, or children, that are foreign tables, whose rows do not tell who wrote them. "
            "Read these where they are written, and the others by their own names."
        )
    name = _subscription(opened, table)
    if name is not None:
        raise SourceError(
            f"{table} is filled by logical replication, by subscription {name!r}: a row that is applied late would not "
            "be waited for while its transaction is at work at the publisher. Read the table at the publisher. What is "
            "left here of a publisher that is no more is read once the subscription is disabled (ALTER SUBSCRIPTION … "
            "DISABLE) or dropped."
        )


def _subscription(opened: Any, table: str) -> str | None:
    """The enabled subscription that fills a table, a table that it is a partition of, or one of its own; None if there
    is none, or the role may not ask, as before PostgreSQL 14."""
    import psycopg

    try:
        with opened.transaction():
            found = opened.execute(
                "SELECT s.subname FROM pg_catalog.pg_subscription_rel AS r JOIN pg_catalog.pg_subscription AS s "
                f"ON s.oid = r.srsubid WHERE s.subenabled AND (r.srrelid IN {KIN} OR r.srrelid IN "
                "(SELECT relid FROM pg_partition_ancestors(%s::regclass))) ORDER BY 1 LIMIT 1",
                [table, table],
            ).fetchone()
    except psycopg.errors.InsufficientPrivilege:
        return None
    return None if found is None else str(found[0])


def unseen(opened: Any, ran: tuple[int, list[int]], below: int, *, rows: str) -> list[int]:
    """Return the transactions that may still commit rows: they ran, or have begun since, and none of their rows is
    visible.

    :param opened: a session in its snapshot.
    :param ran: the result of :func:`running_now`.
    :param below: the first id of which no row is visible in the snapshot.
    :param rows: the statement's ``FROM`` and ``WHERE`` that find their rows.
    """
    first_unknown, before = ran
    asked = sorted({*before, *range(first_unknown, below)})
    if not asked:
        return []
    there = rows.replace("%", "%%")  # a column's name may have one
    found = opened.execute(f"SELECT DISTINCT {TRANSACTION} {there} AND {TRANSACTION} = ANY(%s::bigint[])", [asked])
    # A frozen row of an earlier epoch may have the number of an id that has not ended: it is another one's.
    ended = opened.execute(_ENDED, [[int(one) for (one,) in found]])
    seen = {int(one) for (one,) in ended}
    return [one for one in asked if one not in seen]


def seen(below: int, running: Iterable[tuple[int, int]]) -> str:
    """An SQL condition for the rows that were visible.

    :param below: the first id of which no row was visible then.
    :param running: first and last of the ids that ran.
    """
    # A constant that supports binary search: there may be thousands of spans, and each row is looked up.
    spans = _multirange(running)
    ran = f" AND NOT '{spans}'::int8multirange @> {TRANSACTION}" if spans != "{}" else ""
    return f"{TRANSACTION} < {below}{ran}"


def _multirange(spans: Iterable[tuple[int, int]]) -> str:
    return "{" + ",".join(f"[{first},{last}]" for first, last in spans) + "}"
