"""Transactions, and their retries.

A transaction that fails for a temporary reason (a lock, a deadlock, a server that restarts or fails over) is run again
from its beginning. So is a transaction whose COMMIT was sent and not answered, so that it is unknown whether it took
effect; therefore each transaction first looks whether it did, by a statement that waits for a commit in progress.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_provider_microbatch.connections import Connect, type_of
from airflow_provider_microbatch.exceptions import DefinitionError, SinkError
from airflow_provider_microbatch.runtime.masking import HIDDEN, mask

if TYPE_CHECKING:
    import psycopg

    from airflow_provider_microbatch.sinks.postgres import PostgresSink

log = logging.getLogger(__name__)

T = TypeVar("T")
Row = tuple[Any, ...]

_PASSING = ("40001", "40P01", "55P03", "57P01", "57P02", "57P03", "53300", "25006", "25P03", "57P05")
"""Serialization failure, deadlock, lock not available, a server that goes down or comes up, too many connections, a
standby that is to become primary, an idle transaction that the server has ended."""
_REMEDIES = {
    "28": "Look at login and password of the connection, and at the server's pg_hba.conf.",
    "3D000": "Look at the database (the field 'schema') of the connection.",
    "42501": "Grant the login USAGE and CREATE on the schema, and SELECT, INSERT, UPDATE and DELETE on the table; and "
    "BYPASSRLS where the table has policies.",
    "57014": "Raise statement_seconds, or look at what slows the table down (triggers, indexes).",
    "55P03": "Somebody holds a lock for long; look at pg_locks, or raise lock_seconds or patience_seconds.",
    "40P01": "Somebody else changes the table in another order; look at the server's log.",
    "25006": "The connection leads to a standby; name the primary, or give its extra target_session_attrs=read-write.",
    "53100": "The server's disk is full.",
    "53300": "The server has no connection left; raise max_connections, or use a pooler.",
    "22P05": "The database's encoding has no such character; a database of UTF8 has.",
    "23502": "The table wants a value there: look at the transform.",
    "23505": "A unique constraint of the table refuses the row: a batch adds rows, merge=Merge(keys=…) updates them.",
}
_OF_AIRFLOW = {"cursor", "iam", "redshift", "aws_conn_id", "region_name", "cluster-identifier", "workgroup-name",
               "enable_log_db_messages", "azure_conn_id", "azure_oauth_scope", "__extra__", "sqlalchemy_scheme",
               "sqlalchemy_query", "is_redshift", "database", "client_encoding"}  # fmt: skip
"""Keys of the extra that Airflow's hook reads itself, or that this module decides."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0
_ALL_ROWS = "SET LOCAL row_security = off"
"""With this setting, a policy that hides rows from the login fails the statement: a replay would leave such rows in."""
_EXACT = "SET LOCAL extra_float_digits = 1"
"""Rows are compared by their text: if numbers were rounded, a change in their last digits would go unnoticed."""
_DURABLE = """
SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') = 'off'
"""
"""Some databases and roles answer COMMIT before it is on disk. The checkpoint's record of a batch would then survive a
crash that the batch does not."""


class Database:
    """The database of a sink. Each transaction has a connection of its own: between two transactions Spark may run for
    hours, and firewalls and poolers cut idle connections."""

    def __init__(self, sink: PostgresSink, connect: Connect) -> None:
        self._sink = sink
        self._connect = connect

    def run(self, doing: str, work: Callable[[psycopg.Connection[Row]], T], *, lock_seconds: float | None = None) -> T:
        """Run ``work`` in a transaction, and again if it failed for a temporary reason, within the sink's patience.

        :param doing: the action, for messages.
        :param work: may be called several times, even after a call that was committed without an answer.
        :param lock_seconds: replaces the sink's setting.
        :raises SinkError: naming connection, table and remedy; never the password.
        """
        psycopg = client()
        until, pause = time.monotonic() + self._sink.patience_seconds, _FIRST_PAUSE
        while True:
            try:
                with self._transaction(lock_seconds) as connection:
                    return work(connection)
            except psycopg.Error as error:
                if not _passes(error) or time.monotonic() + pause > until:
                    raise self._told(doing, error) from None
                log.warning("%s Trying again in %.1f s", self._told(doing, error), pause)
            # Two transactions that collided would collide again if they waited equally long.
            time.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, _LONGEST_PAUSE)

    @contextmanager
    def _transaction(self, lock_seconds: float | None) -> Iterator[psycopg.Connection[Row]]:
        psycopg, sink = client(), self._sink
        with psycopg.connect(**self._parameters(psycopg)) as connection:
            # After a wait for a lock, reads must see what its holder committed, whatever the database's default is.
            connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
            connection.read_only = False
            # Poolers share one server connection between many clients: no state may outlive the transaction.
            connection.prepare_threshold = None
            limits = {
                "lock_timeout": sink.lock_seconds if lock_seconds is None else lock_seconds,
                "statement_timeout": sink.statement_seconds,
                # A process that sleeps in the middle of a publish must not block others: the server ends it.
                "idle_in_transaction_session_timeout": max(sink.lock_seconds, 1.0),
            }
            for name, seconds in limits.items():
                connection.execute(f"SET LOCAL {name} = {round(seconds * 1000)}")
            connection.execute(_EXACT)
            connection.execute(_ALL_ROWS)
            connection.execute(_DURABLE)
            yield connection

    def _parameters(self, psycopg: Any) -> dict[str, Any]:
        found, known = self._connect(self._sink.conn_id), _keywords(psycopg)
        where = f"connection {self._sink.conn_id!r}"
        if found.conn_type not in ("postgres", "postgresql"):
            raise DefinitionError(f"{where} is of type {type_of(found)}; PostgresSink needs one of type 'postgres'.")
        unknown = sorted(name for name in found.extra if name not in known and name not in _OF_AIRFLOW)
        if unknown:
            raise DefinitionError(f"{where}: its extra has {', '.join(unknown)}, which libpq does not know.")
        own = {"host": found.host, "port": found.port, "dbname": found.schema or found.extra.get("database")}
        secret = {"user": found.login, "password": found.password}
        extra = {name: value for name, value in found.extra.items() if name in known and name not in _OF_AIRFLOW}
        defaults = {
            "application_name": "airflow-provider-microbatch",
            "connect_timeout": 10,
            # A server that has vanished is noticed within a minute, not within hours.
            "keepalives_idle": 20,
            "keepalives_interval": 10,
            "keepalives_count": 4,
            "tcp_user_timeout": 60_000,
        }
        given = {name: value for name, value in {**own, **secret}.items() if value}
        return {**defaults, **extra, **given, "client_encoding": "utf8"}

    def _told(self, doing: str, error: psycopg.Error) -> SinkError:
        state = error.sqlstate or ""
        remedy = _REMEDIES.get(state) or _REMEDIES.get(state[:2]) or ""
        where = f"connection {self._sink.conn_id!r}, table {self._sink.name}"
        said = self._without_secrets(_said(error))
        return SinkError(f"cannot {doing} ({where}): {said}{f' [{state}]' if state else ''}. {remedy}".rstrip())

    def _without_secrets(self, text: str) -> str:
        try:
            password = self._connect(self._sink.conn_id).password
        except Exception:
            password = None  # the original error is more important
        return mask(text.replace(password, HIDDEN) if password else text)


def execute(connection: psycopg.Connection[Row], text: str, *parameters: object) -> psycopg.Cursor[Row]:
    """Run a statement, whose names are quoted by :func:`~airflow_provider_microbatch.sinks.postgres.names.quoted`."""
    return connection.execute(text.encode(), parameters)


def client() -> Any:
    """The module psycopg (version 3). :raises DefinitionError: if it is not installed."""
    try:
        import psycopg
    except ImportError as error:
        raise DefinitionError(
            f"PostgresSink needs a package that is not installed ({error}). "
            "Run: pip install 'airflow-provider-microbatch[postgres]'"
        ) from error
    return psycopg


def _keywords(psycopg: Any) -> Mapping[str, None]:
    return {option.keyword.decode(): None for option in psycopg.pq.Conninfo.get_defaults()}


def _passes(error: psycopg.Error) -> bool:
    """Whether a retry may succeed. A connection that broke has no SQLSTATE."""
    psycopg, state = client(), error.sqlstate
    if state is None:
        return isinstance(error, psycopg.OperationalError) and not _is_refused(error)
    # A standby's answer to BEGIN READ WRITE, with which each transaction here begins.
    is_standby = state == "0A000" and "recovery" in str(error)
    return state in _PASSING or state.startswith("08") or is_standby


def _is_refused(error: psycopg.Error) -> bool:
    """Whether the server has refused the connection. libpq sets no SQLSTATE for errors before a session begins."""
    words = ("password authentication failed", "does not exist", "no pg_hba.conf entry", "no password supplied",
             "invalid connection option", "certificate", "fe_sendauth")  # fmt: skip
    return any(word in str(error) for word in words)


def _said(error: psycopg.Error) -> str:
    """The server's message, and its place. Not the whole refused row: logs are kept for long, and read by many."""
    diag = error.diag
    if diag.message_primary is None:
        return " ".join(str(error).split())
    parts = [diag.message_primary]
    parts += [f"column {diag.column_name}"] if diag.column_name and diag.column_name not in parts[0] else []
    if diag.message_detail and "Failing row contains" not in diag.message_detail:
        parts.append(diag.message_detail)
    if diag.context and diag.context.startswith("COPY"):
        parts.append(diag.context.splitlines()[0].partition(': "')[0])
    return "; ".join(part.rstrip(".") for part in parts)
