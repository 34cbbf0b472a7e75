"""The identity of a table, as an offset has it: what lies at a place of one table tells nothing of another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from airflow_provider_microbatch.sources.jdbc.cluster import UNKNOWN, Cluster


@dataclass(frozen=True, kw_only=True)
class Identity:
    """:param name: ``schema.table``.
    :param oid: PostgreSQL's oid of the table.
    :param cluster: the table's database cluster.
    :param by: the columns that the table is read by; None where an older version wrote the offset.
    """

    name: str
    oid: int
    cluster: Cluster = UNKNOWN
    by: str | None = None

    def values_behind(self) -> list[Any]:
        """What JSON has behind the other values, see :func:`told_behind`."""
        return [*self.cluster.values(), *([] if self.by is None else [self.by])]

    def elsewhere(self, now: Identity) -> str | None:
        """That the definition names another table now, or other columns, in words; None if it does not, as far as is
        known."""
        of = "" if self.name == now.name else f"of table {self.name}"
        if self.is_by_others(now):
            return f"the position is one {of and of + ' '}by {self.by}, and {now.name} is read by {now.by} now"
        return f"the position is one {of}, and {now.name} is read now" if of else None

    def is_by_others(self, now: Identity) -> bool:
        """Whether the table is read by other columns now, as far as is known."""
        return None not in (self.by, now.by) and self.by != now.by

    def is_same_table(self, now: Identity) -> bool:
        """Whether it is the same table, whatever its name is and whatever it is read by, as far as is known: rows that
        were read are in it."""
        return self.oid == now.oid and self.cluster.differs(now.cluster) is None


def told_behind(values: list[Any]) -> tuple[Cluster, str | None]:
    """Cluster and columns out of what :meth:`Identity.values_behind` returned; None for columns that an older version
    did not write. :raises TypeError: if that is something else."""
    by = values[-1] if values and type(values[-1]) is str else None
    return Cluster.of(values if by is None else values[:-1]), by
