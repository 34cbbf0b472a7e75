"""How Spark's JDBC source reaches a database."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Access:
    """:param url: of the database, without secrets.
    :param driver: the driver's class.
    :param options: of the driver.
    :param table: the table as the database's SQL has it.
    """

    url: str
    driver: str
    options: Mapping[str, str]
    table: str
