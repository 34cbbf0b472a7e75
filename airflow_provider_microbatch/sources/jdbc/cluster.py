"""Identifies the database cluster that a table lies in, and the database in it, so that a copy is not taken for the
same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

_ASKED = (
    "SELECT system_identifier, ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::int, "
    "(SELECT oid::bigint FROM pg_database WHERE datname = current_database()) FROM pg_control_system()"
)


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """The identity of a cluster: None where this is unknown, since the role may not ask, or an older version wrote it.

    :param system: PostgreSQL's system identifier. Standbys and physical copies have it from their primary.
    :param timeline: a higher one begins with each promotion: a failover, or a restore to a moment.
    :param database: oid of the database: one that was made of another as its template has the same tables.
    """

    system: int | None = None
    timeline: int | None = None
    database: int | None = None

    def values(self) -> list[int]:
        """The values as JSON has them; none where the cluster is unknown."""
        if self.system is None or self.timeline is None:
            return []
        return [self.system, self.timeline, *([] if self.database is None else [self.database])]

    @classmethod
    def of(cls, values: list[Any]) -> Self:
        """:raises TypeError: if the values are not those of :meth:`values`."""
        if not values:
            return cls()
        system, timeline, *database = values
        if len(database) > 1 or not all(type(one) is int for one in values):
            raise TypeError("'of' has something else than a system identifier, a timeline and a database's oid")
        return cls(system=system, timeline=timeline, database=database[0] if database else None)

    def differs(self, now: Cluster) -> str | None:
        """The reason why transactions of this cluster tell nothing about the current one; None if they do, as far as is
        known. A higher timeline is taken for a failover's, which keeps the transactions; one to a standby that lagged,
        or a restore to a moment, does not, and cannot be told from it."""
        if self.system is None or now.system is None:
            return None
        if self.system != now.system:
            return f"it lies in another database cluster, of system identifier {now.system}, and {self.system} then"
        if None not in (self.database, now.database) and self.database != now.database:
            return f"it lies in another database of the cluster, of oid {now.database}, and {self.database} then"
        if self.timeline is not None and now.timeline is not None and now.timeline < self.timeline:
            return (
                f"the database is on timeline {now.timeline}, and was on {self.timeline}: it is the server of before a "
                "failover, or an older copy"
            )
        return None


UNKNOWN = Cluster()


def cluster_now(opened: Any) -> Cluster:
    """Return the cluster of a session, in whose transaction nothing fails for it."""
    import psycopg

    try:
        with opened.transaction():  # a savepoint: the role may not call these functions
            system, timeline, database = opened.execute(_ASKED).fetchone()
    except psycopg.Error:
        return UNKNOWN
    return Cluster(system=int(system), timeline=int(timeline), database=int(database))
