"""How a local Airflow's processes open its SQLite database. The setting ``[database] sql_alchemy_connect_args`` names
what is here, so each of them imports it.
"""

from __future__ import annotations

import sqlite3
from typing import Any

PATIENCE = 60
"""Seconds that a process waits for the database; after five, sqlite3's default, a scheduler dies of a busy one."""


class UnsyncedConnection(sqlite3.Connection):
    """Does not wait for the disk. A commit holds the only write lock until its fsync is done, and beside a Spark, or an
    installer that fills the disk, that takes longer than the API server's clients wait. What is committed outlives
    every process that is killed; only a machine that loses its power may lose it, and this Airflow with it.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.execute("PRAGMA synchronous=OFF")


CONNECT_ARGS: dict[str, Any] = {"factory": UnsyncedConnection, "timeout": PATIENCE}
