"""Rows of a PostgreSQL table that only grows, by an incrementing column: planned by psycopg, read by Spark's JDBC."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass

from airflow_provider_microbatch.exceptions import DefinitionError
from airflow_provider_microbatch.sources import OpenSource, Source, SourceContext
from airflow_provider_microbatch.sources.arguments import check_limit

DRIVER = "org.postgresql:postgresql:42.7.8"
FAIL, SKIP = "fail", "skip"


@dataclass(frozen=True)
class JdbcSource(Source):
    """The rows of a table, in the order of a column that a sequence fills.

    A transaction that takes a number may commit after one that took a later number. So an offset names, beside the
    highest number, those below it that nobody could see: once one is there it is read, by the next batch, and once.
    A number is waited for until no transaction is left that ran when it was first missed, and ``late_seconds`` have
    passed.

    :param table: ``table`` or ``schema.table``.
    :param conn_id: a connection of type ``postgres``: host, port, database (``schema``), login, password.
    :param column: whole numbers, unique, from a sequence; an index must begin with it.
    :param first: the first number; what is below is not read.
    :param late_seconds: so long a number that was missed is waited for at least. It covers who takes a number before
        their transaction writes anything.
    :param max_rows: so many new rows are in a batch at most; None for no limit.
    :param partitions: so many queries read a batch beside each other.
    :param on_missing: a planned row that is gone when it is read, or read again: ``fail``, or ``skip`` it, which the
        batch then says.
    :param texts: columns that are read as texts, as PostgreSQL writes them: ``numeric`` without a precision, which is
        refused else, or timestamps that may be ``infinity``.
    :param driver: Maven coordinates of the JDBC driver; None if Spark has one.
    :raises DefinitionError: for a wrong type or value, naming the field.
    """

    table: str
    conn_id: str
    _: KW_ONLY
    column: str = "id"
    first: int = 1
    late_seconds: float = 3600
    max_rows: int | None = None
    partitions: int = 1
    on_missing: str = FAIL
    texts: Sequence[str] = ()
    driver: str | None = DRIVER

    def __post_init__(self) -> None:
        where = f"JdbcSource({self.table!r:.200})"
        for name in ("table", "conn_id", "column"):
            value = getattr(self, name)
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
        """The source in the surroundings of one checkpoint."""
        from airflow_provider_microbatch.sources.jdbc.open import OpenJdbcSource

        return OpenJdbcSource(self, context)

    def reads_as(self) -> Mapping[str, str | None]:
        texts = ", ".join(self.texts) or None
        return {"table": self.table, "column": self.column, "texts": texts}

    def location(self) -> str:
        """The table, and the connection."""
        return f"{self.conn_id}:{self.table}"
