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
    :param numbers: the database's numbers of these columns. A column keeps its own under another name, and no other one
        of the table ever gets it; None where the database has none, or an older version wrote the offset.
    """

    name: str
    oid: int
    cluster: Cluster = UNKNOWN
    by: str | None = None
    numbers: tuple[int, ...] | None = None

    def values_behind(self) -> list[Any]:
        """What JSON has behind the other values, see :func:`told_behind`."""
        by: list[Any] = [one for one in (self.by, self.numbers) if one is not None]
        return [*self.cluster.values(), *by]

    def elsewhere(self, now: Identity) -> str | None:
        """That the definition names another table now, or other columns, in words; None if it does not, as far as is
        known."""
        of = "" if self.name == now.name else f"of table {self.name}"
        if self.is_by_others(now):
            same = ": other columns have the same name since then" if self.by == now.by else ""
            return f"the position is one {of and of + ' '}by {self.by}, and {now.name} is read by {now.by} now{same}"
        return f"the position is one {of}, and {now.name} is read now" if of else None

    def is_by_others(self, now: Identity) -> bool:
        """Whether the table is read by other columns now, as far as is known."""
        return (None not in (self.by, now.by) and self.by != now.by) or self.has_others(now)

    def has_others(self, now: Identity, *, among: int | None = None) -> bool:
        """Whether other columns of the same table have these names now, as far as is known.

        :param among: so many of the columns are asked for; None for all.
        """
        if self.numbers is None or now.numbers is None or not self.is_same_table(now):
            return False
        return self.numbers[:among] != now.numbers[:among]

    def is_same_table(self, now: Identity) -> bool:
        """Whether it is the same table, whatever its name is and whatever it is read by, as far as is known: rows that
        were read are in it."""
        return self.oid == now.oid and self.cluster.differs(now.cluster) is None


def told_behind(values: list[Any]) -> dict[str, Any]:
    """Cluster, columns and their numbers out of what :meth:`Identity.values_behind` returned; of an older version as
    far as it wrote them. :raises TypeError: if that is something else."""
    told: dict[str, Any] = {}
    if values and isinstance(values[-1], list):
        *values, numbers = values
        if not all(type(one) is int for one in numbers):
            raise TypeError("'of' has something else than numbers of columns")
        told["numbers"] = tuple(numbers)
    if values and type(values[-1]) is str:
        *values, told["by"] = values
    return {"cluster": Cluster.of(values), **told}
