"""Names in Spark's catalog of the tables that an attempt makes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Names:
    """Names in the catalog of the tables that an attempt makes.

    :param table: the table's base name.
    :param digest: digest of the owner.
    """

    table: str
    digest: str

    @classmethod
    def of_replaced(cls, name: str) -> Names:
        """The names beside that of a previous table, which has the form of :attr:`replaced`."""
        table, _, digest = name.rpartition("__replaced_")
        return cls(table, digest)

    @property
    def stage(self) -> str:
        """Name of the stage table."""
        return f"{self.table}__stage_{self.digest}"

    @property
    def ready(self) -> str:
        """Name of a second stage table, with the columns that the query turned out to have."""
        return f"{self.table}__ready_{self.digest}"

    @property
    def replaced(self) -> str:
        """Name for the previous table, if it had other columns."""
        return f"{self.table}__replaced_{self.digest}"
