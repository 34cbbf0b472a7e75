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
