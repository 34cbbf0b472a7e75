"""What differs from one kind of database to another."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from airflow_provider_microbatch.exceptions import CheckpointError
from airflow_provider_microbatch.stores.sql.address import Address

if TYPE_CHECKING:
    import sqlalchemy
    from sqlalchemy.engine import Connection as Session
    from sqlalchemy.engine import Engine

    from airflow_provider_microbatch.connections import Connection

PATIENCE_SECONDS = 30.0
"""So long one statement may wait, and so long a database that is away is looked for: a failover takes that long. The
third of a lease that nobody is to sleep through is twenty seconds, and two renewals may fail."""


class Kind(Protocol):
    """A kind of database, for one Airflow connection. Making one touches nothing."""

    name: ClassVar[str]
    """For people."""

    clock_ms: ClassVar[str]
    """Expression of SQL: the database's clock at this moment, milliseconds since the epoch."""

    name_in_key: ClassVar[str]
    """Expression of SQL: of ``key``, the name that follows ``:folder``, which is ``:length`` bytes long."""

    past_name: ClassVar[str]
    """Expression of SQL: of ``name``, the least key in ``:folder`` that comes after it; see
    :func:`~airflow_provider_microbatch.stores.sql.keys.past`."""

    below_name: ClassVar[str]
    """The same: the least key of what is below it as a folder."""

    migrations: ClassVar[Sequence[Sequence[str]]]
    """Statements that bring the tables from each version to the next, the first from none; ``{schema}`` is quoted."""

    def __init__(self, connection: Connection) -> None:
        """:raises CheckpointError: if the connection lacks what is needed."""

    @property
    def place(self) -> str:
        """Where the database is, for messages: no secret."""

    @property
    def secrets(self) -> Sequence[str]:
        """Texts that are in no message."""

    def engine(self) -> Engine:
        """Opens no connection. :raises CheckpointError: if the driver is not installed."""

    def check(self, address: Address) -> None:
        """:raises CheckpointError: if there can be no such schema."""

    def exists(self) -> bool:
        """Whether there may be a database: else nothing is in it, and nothing is made by a look."""

    def before(self, session: Session) -> None:
        """What is said to the database before each statement, in the statement's transaction."""

    def migrating(self, session: Session, address: Address) -> AbstractContextManager[None]:
        """A transaction in which no other process migrates the same tables. What raises in it leaves it open."""

    def version(self, session: Session, address: Address) -> int:
        """The version of the tables; 0 if there are none."""

    def make_schema(self, session: Session, address: Address) -> None:
        """Make the schema unless it is there, within that transaction."""

    def remedy(self, error: BaseException) -> str:
        """What to do about an error of the driver, in words; empty if nobody knows."""

    def is_lost(self, error: sqlalchemy.exc.DBAPIError) -> bool:
        """Whether the statement's answer is not known, or the database has taken it back for another: look again."""


def kind_of(connection: Connection) -> Kind:
    """The kind of database that a connection leads to.

    :raises CheckpointError: if no checkpoint can be kept there.
    """
    kind: Any
    if connection.conn_type in ("postgres", "postgresql"):
        from airflow_provider_microbatch.stores.sql.postgres import Postgres as kind
    elif connection.conn_type == "sqlite":
        from airflow_provider_microbatch.stores.sql.sqlite import Sqlite as kind
    else:
        raise CheckpointError(
            f"connection {connection.conn_id!r} is of type {connection.conn_type!r}, and a checkpoint is kept in "
            "databases of type postgres and sqlite only: others (MySQL too) compare and put in other words."
        )
    made: Kind = kind(connection)
    return made
