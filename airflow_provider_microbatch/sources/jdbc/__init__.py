"""Rows of a table of PostgreSQL or MariaDB, by an incrementing column or by timestamps: planned without a JVM, read by
Spark's JDBC source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass

from airflow_provider_microbatch.exceptions import DefinitionError
from airflow_provider_microbatch.sources import OpenSource, Source, SourceContext
from airflow_provider_microbatch.sources.arguments import check_limit

POSTGRES, MARIADB = "postgres", "mariadb"
DRIVER = "org.postgresql:postgresql:42.7.8"
MARIADB_DRIVER = "org.mariadb.jdbc:mariadb-java-client:3.5.6"
FAIL, SKIP = "fail", "skip"


@dataclass(frozen=True)
class JdbcSource(Source):
    """The rows of a table, in the order of a column that a sequence fills, or of a column of timestamps.

    By ``timestamp``, an offset names the latest timestamp that was read and the transactions that were visible then. A
    row that another transaction commits later, at or before that timestamp, is read by the next batch, and once, if its
    timestamp is less than ``late_seconds`` behind, or if its transaction had written something, anywhere, when a batch
    was planned meanwhile. A row that is updated, with a new timestamp, comes again.

    By ``timestamp`` data intervals can be read too: an interval has the rows whose timestamp lies in it, and what one
    lane has read no other lane reads.

    By ``column`` alone: a transaction that takes a number may commit after another one that took a later number. So an
    offset names, in addition to the highest number, the lower numbers that were not visible: once such a row is
    visible, the next batch reads it, once. A number is awaited until every transaction that ran when the number was
    first missed has ended, and ``late_seconds`` have passed.

    :param table: ``table`` or ``schema.table``.
    :param conn_id: a connection of type ``postgres``, or ``mysql`` for MariaDB: host, port, database (``schema``),
        login, password.
    :param database: ``postgres`` or ``mariadb``, which has a page of its own in the docs: it does not tell which
        transaction wrote a row.
    :param column: whole numbers, unique, from a sequence; an index must begin with this column. With ``timestamp`` it
        orders rows that have the same timestamp, so that a batch may end among them; None if there is no such column.
    :param timestamp: a column of ``timestamptz`` or ``timestamp``, set whenever a row is inserted or updated; an index
        must begin with this column. None to read by ``column``.
    :param time_zone: the time zone of a ``timestamp`` without one (of MariaDB's ``DATETIME``), as PostgreSQL knows it.
        Rows of the future are read when their time has come.
    :param first: the first number; rows with lower numbers are not read. Not with ``timestamp``.
    :param late_seconds: the minimum time for which a missed number is awaited. It covers transactions that take a
        number before they write anything. With ``timestamp`` the window behind the latest timestamp: longer than the
        longest time between the timestamp that a transaction writes and its first write.
    :param max_rows: the largest number of new rows in a batch; None for no limit.
    :param partitions: the number of concurrent queries that read a batch.
    :param on_missing: reaction to a planned row that is gone when it is read, or read again: ``fail``, or ``skip`` it,
        which the batch then reports.
    :param texts: columns that are read as texts, as PostgreSQL writes them: ``numeric`` without a precision, which is
        refused otherwise, or timestamps that may be ``infinity``.
    :param driver: Maven coordinates of the JDBC driver, by default that of the database; None if Spark has one.
    :raises DefinitionError: for a wrong type or value, naming the field.
    """

    table: str
    conn_id: str
    _: KW_ONLY
    database: str = POSTGRES
    column: str | None = "id"
    timestamp: str | None = None
    time_zone: str = "UTC"
    first: int = 1
    late_seconds: float = 3600
    max_rows: int | None = None
    partitions: int = 1
    on_missing: str = FAIL
    texts: Sequence[str] = ()
    driver: str | None = DRIVER

    def __post_init__(self) -> None:
        where = f"JdbcSource({self.table!r:.200})"
        if self.database not in (POSTGRES, MARIADB):
            raise DefinitionError(f"{where}: database must be {POSTGRES!r} or {MARIADB!r}, not {self.database!r:.200}.")
        if self.database == MARIADB and self.driver == DRIVER:
            object.__setattr__(self, "driver", MARIADB_DRIVER)
        if self.timestamp is not None and self.first != 1:
            raise DefinitionError(f"{where}: first is a number of a column that is read by, and not for timestamps.")
        for name in ("table", "conn_id", "column", "timestamp", "time_zone"):
            value = getattr(self, name)
            if value is None and (name == "timestamp" or (name == "column" and self.timestamp is not None)):
                continue
            if not isinstance(value, str) or not value or "\0" in value:
                raise DefinitionError(f"{where}: {name} must be a name, not {value!r:.200}.")
        if not 1 <= len(self.table.split(".")) <= 2 or not all(self.table.split(".")):
            raise DefinitionError(f"{where}: table must be 'table' or 'schema.table'.")
        for name in ("first", "partitions"):
            if type(getattr(self, name)) is not int or (name == "partitions" and self.partitions < 1):
                raise DefinitionError(f"{where}: {name} must be a whole number, of partitions at least 1.")
        check_limit("max_rows", self.max_rows, wrong=lambda text: DefinitionError(f"{where}: {text}."))
        seconds = self.late_seconds
        if not isinstance(seconds, (int, float)) or isinstance(seconds, bool) or not 0 < seconds < float("inf"):
            raise DefinitionError(f"{where}: late_seconds must be a number above 0, not {seconds!r}.")
        if self.on_missing not in (FAIL, SKIP):
            raise DefinitionError(f"{where}: on_missing must be {FAIL!r} or {SKIP!r}, not {self.on_missing!r:.200}.")
        if isinstance(self.texts, str) or not all(isinstance(one, str) and one for one in self.texts):
            raise DefinitionError(f"{where}: texts must be a list of columns' names, not {self.texts!r:.200}.")
        object.__setattr__(self, "texts", list(self.texts))
        if self.driver is not None and (not isinstance(self.driver, str) or self.driver.count(":") != 2):
            raise DefinitionError(f"{where}: driver must be 'group:artifact:version', or None; not {self.driver!r}.")

    def open(self, context: SourceContext) -> OpenSource:
        """Return the source opened for one checkpoint."""
        if self.database == MARIADB:
            if self.timestamp is not None:
                from airflow_provider_microbatch.sources.jdbc.mariadb.by_time import OpenTimedMariaDb

                return OpenTimedMariaDb(self, context)
            from airflow_provider_microbatch.sources.jdbc.mariadb.open import OpenMariaDb

            return OpenMariaDb(self, context)
        if self.timestamp is not None:
            from airflow_provider_microbatch.sources.jdbc.by_time import OpenTimedTable

            return OpenTimedTable(self, context)
        from airflow_provider_microbatch.sources.jdbc.open import OpenJdbcSource

        return OpenJdbcSource(self, context)

    @property
    def refuses_intervals(self) -> str | None:
        """Numbers tell no time."""
        if self.timestamp is not None:
            return None
        return (
            f"({self.location()!r}) is read by the numbers of {self.column!r}, which tell no time: read it by a column "
            "of timestamps, timestamp='updated_at'"
        )

    def reads_as(self) -> Mapping[str, str | None]:
        texts = ", ".join(self.texts) or None
        by_time = {} if self.timestamp is None else {"timestamp": self.timestamp, "time_zone": self.time_zone}
        database = {} if self.database == POSTGRES else {"database": self.database}
        return {**database, "table": self.table, "column": self.column, **by_time, "texts": texts}

    def location(self) -> str:
        """The connection and the table."""
        return f"{self.conn_id}:{self.table}"
