"""PostgreSQL, and databases that speak its protocol and SQL.

Every statement is a transaction of its own, sent in a single round trip. Each is correct under READ COMMITTED,
PostgreSQL's default, and under any stricter level that a server or role is set to:

- A put is ``INSERT … ON CONFLICT DO NOTHING``. The unique index decides, not a snapshot: a writer that meets an entry
  that another transaction has just inserted waits for the end of that transaction, so that ``False`` is only returned
  for a committed entry. The caller's next read has a new snapshot, which includes the entry.
- Compare-and-put is ``UPDATE … WHERE key = … AND token = …``. Under READ COMMITTED the second of two writers waits for
  the first, and its condition is evaluated again on the row as it is then: the token is another one, and no row is
  changed. Under REPEATABLE READ and SERIALIZABLE the second writer gets error 40001 instead, and repeats the statement.
- A removal is ``DELETE … WHERE key = … [AND data = …]``: the same holds.
- Each read is one statement, so it has one snapshot. No decision depends on two reads: the checkpoint's protocol makes
  its decisions by puts.

Transaction poolers (pgbouncer) give each transaction another session. So no statement is prepared on the server, no
advisory lock outlives its transaction, and nothing is ``SET`` for a session. Time limits are sent at the start of the
connection, or, where the connection has ``options`` of its own (a pooler refuses those of this package: give it
``"options": ""``), in the transaction of each statement.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_provider_microbatch.exceptions import CheckpointError
from airflow_provider_microbatch.stores.sql.address import Address
from airflow_provider_microbatch.stores.sql.kind import PATIENCE_SECONDS, Kind

if TYPE_CHECKING:
    import sqlalchemy
    from sqlalchemy.engine import Connection as Session
    from sqlalchemy.engine import Engine

    from airflow_provider_microbatch.connections import Connection

_MS = int(PATIENCE_SECONDS * 1000)
_SETTINGS = {
    "statement_timeout": str(_MS),
    "lock_timeout": str(_MS // 2),
    "idle_in_transaction_session_timeout": str(_MS),
    # Otherwise an entry could be gone after a crash of the server, although the put had reported that it is durable.
    # Where the server has synchronous standbys, the put waits for one: the entry survives a failover too.
    "synchronous_commit": "on",
}
_TO_LIBPQ = {
    "connect_timeout": 10,
    "application_name": "microbatch",
    "client_encoding": "utf8",  # a database of SQL_ASCII would give bytes in place of texts
    # A server that disappears silently is detected within the time limit of one statement.
    "keepalives": 1,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": _MS,
}
_OF_LIBPQ = frozenset(
    {*_TO_LIBPQ, "channel_binding", "gssencmode", "gsslib", "hostaddr", "krbsrvname",
     "load_balance_hosts", "options", "passfile", "require_auth", "requirepeer", "service", "ssl_max_protocol_version",
     "ssl_min_protocol_version", "sslcert", "sslcrl", "sslcrldir", "sslkey", "sslmode", "sslnegotiation", "sslpassword",
     "sslrootcert", "sslsni", "target_session_attrs"}
)  # fmt: skip
"""The keys of a connection's extra that are libpq's; the others are for Airflow's hooks."""

_LOST_STATES = ("08", "57P0", "40001", "40P01", "25006", "53300")
"""The connection or the server is lost; another transaction came first; or this server was a standby after all."""
_REMEDIES = (
    ("42501", "Grant the role the rights to the schema and its tables; to make them, GRANT CREATE ON SCHEMA."),
    ("25006", "The database is read-only: let the connection lead to the primary, or let it be written to."),
    ("3D000", "Give the connection the name of a database that is there, as its schema field."),
    ("28", "Correct login and password of the connection."),
    ("57014", "The database is overloaded, or a lock is held on the table: look at pg_stat_activity."),
    ("55P03", "A lock is held on the table: look at pg_locks."),
    ("53100", "The database's disk is full."),
)
_LENGTH = "CAST(:length AS integer)"
_ZERO = "decode('00', 'hex')"
# Read the catalog's rows, not to_regclass, which may answer with what the session knew before it waited for the lock.
_SCHEMA = "SELECT oid FROM pg_catalog.pg_namespace WHERE nspname = :schema"
_TABLE = (
    "SELECT oid FROM pg_catalog.pg_class WHERE relname = 'microbatch_version' AND relnamespace ="
    " (SELECT oid FROM pg_catalog.pg_namespace WHERE nspname = :schema)"
)
_LEVEL = "ISOLATION LEVEL READ COMMITTED"
_MIGRATE_LOCK = "SELECT pg_advisory_xact_lock(hashtext(CAST(:name AS text)))"


class Postgres(Kind):
    """PostgreSQL as a kind of database; see the module."""

    name: ClassVar[str] = "PostgreSQL"
    clock_ms: ClassVar[str] = "CAST(floor(extract(epoch FROM clock_timestamp()) * 1000) AS bigint)"
    name_in_key: ClassVar[str] = (
        f"substring(key FROM {_LENGTH} + 1 FOR CASE position({_ZERO} IN substring(key FROM {_LENGTH} + 1))"
        f" WHEN 0 THEN octet_length(key) ELSE position({_ZERO} IN substring(key FROM {_LENGTH} + 1)) - 1 END)"
    )
    past_name: ClassVar[str] = "CAST(:folder AS bytea) || name || decode('01', 'hex')"
    below_name: ClassVar[str] = f"CAST(:folder AS bytea) || name || {_ZERO}"
    migrations: ClassVar[Sequence[Sequence[str]]] = (
        (
            "CREATE TABLE {schema}.microbatch_entries (key bytea PRIMARY KEY, data bytea NOT NULL,"
            " token text NOT NULL, modified_ms bigint NOT NULL)",
            # Uncompressed, so that a part of an entry can be read without the rest.
            "ALTER TABLE {schema}.microbatch_entries ALTER COLUMN data SET STORAGE EXTERNAL",
        ),
    )

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        given: Mapping[str, Any] = {name: value for name, value in connection.extra.items() if name in _OF_LIBPQ}
        self._says_settings = "options" in given
        options = " ".join(f"-c {name}={value}" for name, value in _SETTINGS.items())
        hosts = (connection.host or "").count(",") + 1
        chosen = {"target_session_attrs": "read-write"} if hosts > 1 else {}
        fields = {
            "host": connection.host,
            "port": connection.port,
            "user": connection.login,
            "password": connection.password,
            "dbname": connection.schema,
        }
        self._to_libpq = {
            **_TO_LIBPQ,
            "options": options,
            **chosen,
            **given,
            **{name: value for name, value in fields.items() if value not in (None, "")},
        }

    @property
    def place(self) -> str:
        found = self._connection
        return f"{found.host or 'localhost'}:{found.port or 5432}, database {found.schema or found.login!r}"

    @property
    def secrets(self) -> Sequence[str]:
        return [str(text) for text in (self._connection.password, self._connection.extra.get("sslpassword")) if text]

    def engine(self) -> Engine:
        import sqlalchemy

        driver = next((name for name in ("psycopg", "psycopg2") if importlib.util.find_spec(name)), None)
        if driver is None:
            raise CheckpointError(
                f"connection {self._connection.conn_id!r} leads to PostgreSQL, whose driver is not installed. Run: "
                "pip install 'airflow-provider-microbatch[postgres]'"
            )
        # psycopg prepares a statement on the server after five uses; a pooler's next session would not know it.
        own: dict[str, Any] = {"prepare_threshold": None} if driver == "psycopg" else {}
        engine = sqlalchemy.create_engine(
            f"postgresql+{driver}://",
            connect_args={**self._to_libpq, **own},
            hide_parameters=True,
            pool_size=2,
            max_overflow=8,
            pool_timeout=PATIENCE_SECONDS,
            use_native_hstore=False,
            **({} if self._says_settings else {"isolation_level": "AUTOCOMMIT"}),
        )
        sqlalchemy.event.listen(engine, "connect", self._check_writable)
        return engine

    def check(self, address: Address) -> None:
        if len(address.schema.encode()) > 63:
            raise CheckpointError(f"{address}: PostgreSQL has no schema of a name of more than 63 bytes.")

    def exists(self) -> bool:
        return True

    def before(self, session: Session) -> None:
        import sqlalchemy

        if self._says_settings:
            sets = ", ".join(f"set_config('{name}', '{value}', true)" for name, value in _SETTINGS.items())
            session.execute(sqlalchemy.text(f"SELECT {sets}"))

    @contextmanager
    def migrating(self, session: Session, address: Address) -> Iterator[None]:
        import sqlalchemy

        # The snapshot of a stricter level is older than the lock: a process that waited for it would create the tables
        # again.
        if self._says_settings:
            session.commit()
            session.execute(sqlalchemy.text(f"SET TRANSACTION {_LEVEL}"))
        else:
            session.execute(sqlalchemy.text(f"BEGIN {_LEVEL}"))
        self.before(session)
        session.execute(sqlalchemy.text(_MIGRATE_LOCK), {"name": f"microbatch {address.schema}"})
        yield
        session.execute(sqlalchemy.text("COMMIT"))
        self.before(session)  # the settings ended with the transaction, and the caller's statement follows

    def version(self, session: Session, address: Address) -> int:
        import sqlalchemy

        quoted = session.dialect.identifier_preparer.quote_identifier(address.schema)
        if session.execute(sqlalchemy.text(_TABLE), {"schema": address.schema}).scalar() is None:
            return 0
        newest = sqlalchemy.text(f"SELECT max(version) FROM {quoted}.microbatch_version".replace(":", r"\:"))
        return int(session.execute(newest).scalar() or 0)

    def make_schema(self, session: Session, address: Address) -> None:
        import sqlalchemy

        # IF NOT EXISTS requires the right to create the schema even if it is there.
        if session.execute(sqlalchemy.text(_SCHEMA), {"schema": address.schema}).scalar() is None:
            quoted = session.dialect.identifier_preparer.quote_identifier(address.schema)
            session.execute(sqlalchemy.text(f"CREATE SCHEMA {quoted}".replace(":", r"\:")))

    def remedy(self, error: BaseException) -> str:
        state = _state(error)
        found = next((text for begin, text in _REMEDIES if state.startswith(begin)), "")
        if not found and "startup parameter" in str(error):
            found = (
                "A pooler is in between that takes no settings at the start of a connection. Give the connection's "
                'extra "options": "" and they go into each transaction.'
            )
        return found

    def is_lost(self, error: sqlalchemy.exc.DBAPIError) -> bool:
        return error.connection_invalidated or _state(error.orig).startswith(_LOST_STATES)

    def _check_writable(self, opened: Any, _: Any) -> None:
        """Refuse a read replica at each new connection: after a failover the address may lead to the former primary."""
        with opened.cursor() as cursor:
            cursor.execute("SELECT pg_is_in_recovery()")
            in_recovery = cursor.fetchone()[0]
        opened.rollback()
        if in_recovery:
            opened.close()
            raise CheckpointError(
                f"connection {self._connection.conn_id!r} leads to a read replica ({self.place}): nothing can be "
                "written there, and what is read may be old, by which a batch would be planned twice. Let it lead to "
                "the primary; with several hosts, separated by commas, the one that can be written to is taken."
            )


def _state(error: BaseException | None) -> str:
    """SQLSTATE of an error of psycopg or psycopg2."""
    return str(getattr(error, "sqlstate", None) or getattr(error, "pgcode", None) or "")
