"""The differences between kinds of databases."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from airflow_provider_microbatch.connections import type_of
from airflow_provider_microbatch.exceptions import CheckpointError
from airflow_provider_microbatch.stores.sql.address import Address

if TYPE_CHECKING:
    import sqlalchemy
    from sqlalchemy.engine import Connection as Session
    from sqlalchemy.engine import Engine

    from airflow_provider_microbatch.connections import Connection

PATIENCE_SECONDS = 30.0
"""The time limit of one statement, and the time for which an unreachable database is tried again: a failover takes that
long. A third of a lease, the time after which its holder must renew it, is twenty seconds, and two renewals may
fail."""


class Kind(Protocol):
    """A kind of database, for one Airflow connection. Creating an instance touches nothing."""

    name: ClassVar[str]
    """The kind's name, for people."""

    clock_ms: ClassVar[str]
    """SQL expression: the database's clock at this moment, milliseconds since the epoch."""

    name_in_key: ClassVar[str]
    """SQL expression: the name in ``key`` that follows ``:folder``, which is ``:length`` bytes long."""

    past_name: ClassVar[str]
    """SQL expression: the least key in ``:folder`` that comes after ``name``; see
    :func:`~airflow_provider_microbatch.stores.sql.keys.past`."""

    below_name: ClassVar[str]
    """SQL expression: the least key below ``name`` as a folder."""

    migrations: ClassVar[Sequence[Sequence[str]]]
    """Statements that bring the tables from each version to the next, the first from none; ``{schema}`` is quoted."""

    def __init__(self, connection: Connection) -> None:
        """:raises CheckpointError: if the connection lacks a field that the kind needs."""

    @property
    def place(self) -> str:
        """The place of the database, for messages; contains no secret."""

    @property
    def secrets(self) -> Sequence[str]:
        """Texts that must appear in no message."""

    def engine(self) -> Engine:
        """Create an engine. Opens no connection. :raises CheckpointError: if the driver is not installed."""

    def check(self, address: Address) -> None:
        """:raises CheckpointError: if the database can have no such schema."""

    def exists(self) -> bool:
        """Whether the database may exist: if not, it holds no entries, and a read does not create it."""

    def unfit(self) -> str | None:
        """The reason, in words, why no checkpoint should be kept there; None if none is known."""
        return None

    def before(self, session: Session) -> None:
        """Send the settings that precede each statement, in the statement's transaction."""

    def migrating(self, session: Session, address: Address) -> AbstractContextManager[None]:
        """A transaction in which no other process migrates the same tables. An exception leaves it open."""

    def version(self, session: Session, address: Address) -> int:
        """The version of the tables; 0 if there are none."""

    def make_schema(self, session: Session, address: Address) -> None:
        """Create the schema unless it is there, within the transaction of :meth:`migrating`."""

    def remedy(self, error: BaseException) -> str:
        """Advice on an error of the driver; empty if there is none."""

    def is_lost(self, error: sqlalchemy.exc.DBAPIError) -> bool:
        """Whether the answer is unknown, or the database has rolled the statement back for another: try again."""


def kind_of(connection: Connection) -> Kind:
    """Return the kind of database that a connection leads to.

    :raises CheckpointError: if no checkpoint can be kept there.
    """
    kind: Any
    if connection.conn_type in ("postgres", "postgresql"):
        from airflow_provider_microbatch.stores.sql.postgres import Postgres as kind
    elif connection.conn_type == "sqlite":
        from airflow_provider_microbatch.stores.sql.sqlite import Sqlite as kind
    else:
        raise CheckpointError(
            f"connection {connection.conn_id!r} is of type {type_of(connection)}, and a checkpoint is kept in "
            "databases of type postgres and sqlite only: others (MySQL too) compare and put in other words."
        )
    made: Kind = kind(connection)
    return made
