"""A SQLite file: for one machine, and for tests. Its hosts share a disk, and so a clock.

SQLite has one writer: the statements of writers follow each other, and each is a transaction of its own. A reader rolls
back changes that a killed writer has left.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import quote

from airflow_provider_microbatch.exceptions import CheckpointError
from airflow_provider_microbatch.settings import open_private_file
from airflow_provider_microbatch.stores.posix.file_system import unfit
from airflow_provider_microbatch.stores.sql.address import Address
from airflow_provider_microbatch.stores.sql.kind import PATIENCE_SECONDS, Kind

if TYPE_CHECKING:
    import sqlalchemy
    from sqlalchemy.engine import Connection as Session
    from sqlalchemy.engine import Engine

    from airflow_provider_microbatch.connections import Connection

_MAIN = "main"


class Sqlite(Kind):
    """SQLite as a kind of database; see the module."""

    name: ClassVar[str] = "SQLite"
    # julianday returns the day as a number whose precision is a twentieth of a millisecond.
    clock_ms: ClassVar[str] = "CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER)"
    name_in_key: ClassVar[str] = (
        "substr(key, :length + 1, CASE instr(substr(key, :length + 1), x'00')"
        " WHEN 0 THEN length(key) ELSE instr(substr(key, :length + 1), x'00') - 1 END)"
    )
    past_name: ClassVar[str] = "CAST(:folder || name || x'01' AS BLOB)"
    below_name: ClassVar[str] = "CAST(:folder || name || x'00' AS BLOB)"
    migrations: ClassVar[Sequence[Sequence[str]]] = (
        (
            "CREATE TABLE {schema}.microbatch_entries (key BLOB PRIMARY KEY, data BLOB NOT NULL, token TEXT NOT NULL,"
            " modified_ms INTEGER NOT NULL)",
        ),
    )

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        # Airflow parses the path of sqlite:////path/to/file.db as the schema, and the form's field as the host.
        path = connection.host or connection.schema or ""
        if not path.startswith("/"):
            raise CheckpointError(
                f"connection {connection.conn_id!r} of type sqlite has host {path!r}; give it the absolute path of the "
                "database file."
            )
        self._file = Path(path)

    @property
    def place(self) -> str:
        return str(self._file)

    @property
    def secrets(self) -> Sequence[str]:
        return []

    def engine(self) -> Engine:
        import sqlalchemy

        # One connection for each statement: a connection that a fork takes along could not even be closed in the child.
        return sqlalchemy.create_engine(
            "sqlite://",
            creator=self._open,
            poolclass=sqlalchemy.pool.NullPool,
            isolation_level="AUTOCOMMIT",
            hide_parameters=True,
        )

    def check(self, address: Address) -> None:
        if address.schema != _MAIN:
            raise CheckpointError(
                f"{address}: connection {address.conn_id!r} leads to a SQLite file, whose only schema is {_MAIN!r}. "
                f"Write sql://{address.conn_id}/{_MAIN}/{address.prefix or 'PREFIX'}."
            )

    def exists(self) -> bool:
        return self._file.exists()

    def unfit(self) -> str | None:
        return unfit(self._file)

    def before(self, session: Session) -> None:
        return None

    @contextmanager
    def migrating(self, session: Session, address: Address) -> Iterator[None]:
        import sqlalchemy

        session.execute(sqlalchemy.text("BEGIN IMMEDIATE"))
        yield
        session.execute(sqlalchemy.text("COMMIT"))

    def version(self, session: Session, address: Address) -> int:
        import sqlalchemy

        there = sqlalchemy.text("SELECT 1 FROM sqlite_master WHERE name = 'microbatch_version'")
        if session.execute(there).scalar() is None:
            return 0
        return int(session.execute(sqlalchemy.text("SELECT max(version) FROM microbatch_version")).scalar() or 0)

    def make_schema(self, session: Session, address: Address) -> None:
        return None

    def remedy(self, error: BaseException) -> str:
        code = getattr(error, "sqlite_errorname", "") or ""
        if code.startswith("SQLITE_CANTOPEN"):
            return "Make the folder, and give it to this user."
        if code.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
            return "Another process holds the file: end it."
        return ""

    def is_lost(self, error: sqlalchemy.exc.DBAPIError) -> bool:
        return False

    def _open(self) -> Any:
        if not self._file.exists() and self._file.parent.is_dir():
            # Private to this user, or open to the group as the settings say; the journal beside it gets the same
            # rights.
            with contextlib.suppress(FileExistsError):
                os.close(open_private_file(self._file))
        address = f"file:{quote(str(self._file))}?mode=rw"
        opened = sqlite3.connect(address, uri=True, timeout=PATIENCE_SECONDS, check_same_thread=False)
        opened.execute("PRAGMA synchronous = FULL")
        return opened
