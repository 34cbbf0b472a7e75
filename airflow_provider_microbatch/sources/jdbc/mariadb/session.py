"""Sessions of MariaDB, and names as its SQL has them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import cache
from typing import Any

from airflow_provider_microbatch.connections import Connection, type_of
from airflow_provider_microbatch.exceptions import SourceError
from airflow_provider_microbatch.sources.jdbc.access import Access

_CONNECT_SECONDS = 10
_LOCK_SECONDS = 60
"""The longest wait for an ALTER TABLE that is at work; MariaDB's own limit is a day."""

_TYPE = "mysql"  # Airflow's type of connections to MariaDB too
_SSL = "ssl"
_ALL_ROWS = "sql_select_limit = 18446744073709551615"
_NO_RIGHT = 1227  # MariaDB's number of the error
_ELSEWHERE = "variable_name IN ('Slaves_running', 'wsrep_cluster_size')"
"""What of the server's status tells that rows are committed on another one."""
_READ_ONLY = "@@global.read_only"


def quoted(name: str) -> str:
    """A name as SQL has it, with each of its parts quoted."""
    return ".".join(quoted_column(part) for part in name.split("."))


def quoted_column(name: str) -> str:
    """A column's name as SQL has it; a dot is part of the name."""
    return "`" + name.replace("`", "``") + "`"


def access(connection: Connection, *, table: str) -> Access:
    """How Spark reaches a table.

    :param table: as the user wrote it.
    """
    ca = _authority(connection)
    options = {
        # Instants are the same whatever the time zones of the server, of Spark's JVM and of the session are.
        "connectionTimeZone": "UTC",
        "forceConnectionTimeZoneToSession": "true",
        "preserveInstants": "true",
        # A TINYINT(1) may be 2, and a year is no date.
        "tinyInt1isBit": "false",
        "yearIsDateType": "false",
        # Whatever the server's default is: rows that nobody has committed are no rows, and a query is not cut.
        "transactionIsolation": "REPEATABLE-READ",
        "sessionVariables": _ALL_ROWS,
        # As a text a FLOAT has six digits: 1234567 would be 1234570.
        "useServerPrepStmts": "true",
        "sessionInitStatement": _checked(table),
        **({} if ca is None else {"sslMode": "verify-full", "serverSslCert": ca}),
    }
    # Spark knows how MariaDB quotes names by this scheme only. By jdbc:mariadb: it would quote them as the standard
    # does, MariaDB would take them for texts, and each row would be the names of its columns.
    database = f"{connection.host}:{connection.port or 3306}/{connection.schema or ''}"
    return Access(
        url=f"jdbc:mysql://{database}?permitMysqlScheme",
        driver="org.mariadb.jdbc.Driver",
        options=options,
        table=quoted(table),
    )


def _checked(table: str) -> str:
    """What a session by which Spark reads rows begins with. It is another one than that of the plan, and may be led to
    another server: on a replica that lags, rows of the plan would be missing, all of which are there for who counts
    them on the primary. And where the server prepares no further statement, the driver has it write texts, without a
    word."""
    *database, bare = (f"_utf8mb4 x'{part.encode().hex()}'" for part in table.split("."))
    status = "FROM information_schema.global_status WHERE"
    return (
        "BEGIN NOT ATOMIC "
        f"IF {_is_on(_READ_ONLY)} OR EXISTS (SELECT 1 {status} {_ELSEWHERE} AND variable_value > 0) THEN "
        "SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'Spark was led to a replica, a read_only server or a node of a "
        "Galera cluster, which may lack rows that were planned. The connection must lead to the primary.'; END IF; "
        "IF EXISTS (SELECT 1 FROM information_schema.columns WHERE data_type = 'float' AND table_schema = "
        f"{database[0] if database else 'database()'} AND table_name = {bare}) AND @@global.max_prepared_stmt_count <= "
        f"(SELECT variable_value + 0 {status} variable_name = 'Prepared_stmt_count') THEN "
        "SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'The server prepares no further statement "
        "(max_prepared_stmt_count), and values of FLOAT would be rounded to six digits.'; END IF; END"
    )


def _is_on(setting: str) -> str:
    """An SQL condition: whether a setting of the server is on, in whatever way. ``read_only`` is a number, and a text
    from MariaDB 12.0 on, any of which is true in Python, and none in SQL: a primary would be refused, and a replica
    read.

    :param setting: as SQL has it.
    """
    return f"upper(cast({setting} AS char)) NOT IN ('0', 'OFF')"


class Session:
    """Asks MariaDB, whose numbers and texts are not changed on the way.

    :param opened: a connection of PyMySQL.
    """

    def __init__(self, opened: Any) -> None:
        self._opened = opened

    def rows(self, statement: str, *values: Any) -> Sequence[tuple[Any, ...]]:
        """All rows of a statement. With ``values`` a ``%`` of the statement is a placeholder's."""
        with self._opened.cursor() as cursor:
            cursor.execute(statement, values or None)
            found: Sequence[tuple[Any, ...]] = cursor.fetchall()
            return found

    def row(self, statement: str, *values: Any) -> tuple[Any, ...]:
        """The only row of a statement."""
        return self.rows(statement, *values)[0]

    def begin(self) -> None:
        """Begin a transaction of one snapshot, which is that of this moment. What was begun before ends."""
        self.rows("START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")


@cache
def _client() -> type[Any]:
    """PyMySQL's connections, all of which have one context of TLS where no certificate is checked: for each of its own
    PyMySQL loads the machine's authorities, which nobody asks then, and that takes longer than the questions of a
    look."""
    from pymysql.connections import Connection as Plain

    class Client(Plain):  # type: ignore[misc]  # PyMySQL has no types
        _unchecked: Any = None

        def _create_ssl_ctx(self, given: Any) -> Any:
            if given:
                return super()._create_ssl_ctx(given)
            if Client._unchecked is None:
                Client._unchecked = super()._create_ssl_ctx(given)
            return Client._unchecked

    return Client


@contextmanager
def connected(connection: Connection, *, seconds: float | None = None) -> Iterator[Session]:
    """Open a session of MariaDB, whose times are in UTC. It is in no transaction.

    :param seconds: the longest time that a statement may take, locks included; None for no limit.
    :raises SourceError: if the database cannot be asked, or does not know what runs.
    """
    try:
        import pymysql
    except ImportError as error:
        raise SourceError(
            "PyMySQL is not installed, which plans for tables of MariaDB. Run: pip install "
            "'airflow-provider-microbatch[mariadb]'"
        ) from error
    if connection.conn_type != _TYPE:
        raise SourceError(
            f"connection {connection.conn_id!r} is of type {type_of(connection)}, and database='mariadb' takes one of "
            f"type {_TYPE!r}."
        )
    ca = _authority(connection)
    try:
        opened = _client()(
            host=connection.host,
            port=connection.port or 3306,
            database=connection.schema,
            user=connection.login,
            password=connection.password or "",
            connect_timeout=_CONNECT_SECONDS,
            charset="utf8mb4",
            autocommit=True,
            program_name="microbatch",
            ssl=None if ca is None else {"ca": ca, "check_hostname": True},
        )
        with closing(opened):
            session = Session(opened)
            waits = _LOCK_SECONDS if seconds is None else math.ceil(seconds)
            session.rows("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            session.rows(
                f"SET SESSION time_zone = '+00:00', sql_mode = '', {_ALL_ROWS}, "
                f"lock_wait_timeout = {waits}, max_statement_time = {0 if seconds is None else float(seconds)}"
            )
            _check_knows_what_runs(session, connection)
            yield session
    except pymysql.MySQLError as error:
        if error.args[:1] == (_NO_RIGHT,):
            raise SourceError(
                f"user {connection.login!r} may not see which transactions run, whose rows have to be waited for, nor "
                "by what a table that was made again is told from the one before. Run: "
                f"GRANT PROCESS ON *.* TO '{connection.login}'@'…'"
            ) from error
        raise SourceError(f"MariaDB says: {' '.join(str(part) for part in error.args)}") from error


def _check_knows_what_runs(session: Session, connection: Connection) -> None:
    """:raises SourceError: if transactions that may still commit rows run elsewhere: nobody would wait for them."""
    version, is_read_only = session.row(f"SELECT version(), {_is_on(_READ_ONLY)}")
    if "mariadb" not in version.lower():
        raise SourceError(
            f"{connection.host} is no MariaDB, but MySQL or another ({version}), which this version does not read."
        )
    found = {name.lower(): int(value) for name, value in session.rows(f"SHOW GLOBAL STATUS WHERE {_ELSEWHERE}")}
    if is_read_only or found.get("slaves_running", 0):
        raise SourceError(
            f"{connection.host} is a replica, or read_only: it does not know what runs on the primary. Connection "
            f"{connection.conn_id!r} must lead to the primary."
        )
    if found.get("wsrep_cluster_size", 0):
        raise SourceError(
            f"{connection.host} is a node of a Galera cluster, and does not know what runs on the others: a row that "
            "is committed there behind a later one would be lost. This version does not read one."
        )


def _authority(connection: Connection) -> str | None:
    """The file of the authority that the server's certificate must be of; None for a connection without TLS. The path
    must be valid both where Airflow runs and where Spark runs."""
    given = connection.extra.get(_SSL)
    others = {name for name in connection.extra if name.lower().startswith(_SSL)} - {_SSL}
    if given is None and not others:
        return None
    if others or not isinstance(given, dict) or given.keys() != {"ca"}:
        raise SourceError(
            f"connection {connection.conn_id!r} has other settings of TLS than {{'ssl': {{'ca': '/path/ca.pem'}}}}, "
            "and the plan and Spark's driver can both heed that one only."
        )
    return str(given["ca"])
