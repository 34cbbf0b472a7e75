"""What is asked of a table of MariaDB whatever its rows are planned by, in one snapshot."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_provider_microbatch.exceptions import SourceError
from airflow_provider_microbatch.sources.jdbc.mariadb.session import Session, quoted

WHOLE = ("tinyint", "smallint", "mediumint", "int", "bigint")
_SPARK_DIGITS = 38


class Relation:
    """:param session: in a transaction of one snapshot.
    :param table: as the user wrote it.
    """

    def __init__(self, session: Session, *, table: str) -> None:
        self._session, self._table = session, quoted(table)
        self._database, self._bare_table = ([None, *table.split(".")])[-2:]

    def inexact(self, *, texts: Sequence[str]) -> list[str]:
        """Columns whose values Spark would silently change or turn into null: ``DECIMAL`` with more digits than Spark's
        decimals have, ``TIME``, which is no time of a day, and ``BIT`` of more than one.

        :param texts: columns that are read as texts.
        """
        found = self._session.rows(
            f"SELECT column_name FROM information_schema.columns WHERE {self._of} AND (data_type = 'time' OR "
            "data_type = 'decimal' AND numeric_precision > %s OR data_type = 'bit' AND numeric_precision > 1) "
            "ORDER BY ordinal_position",
            *self._named,
            _SPARK_DIGITS,
        )
        return [name for (name,) in found if name not in texts]

    def count_of(self, condition: str, *, most: int | None = None) -> int:
        """Number of rows for which the condition holds, or ``most`` if there are more."""
        limit = "" if most is None else f" LIMIT {most}"
        (found,) = self._session.row(
            f"SELECT count(*) FROM (SELECT 1 FROM {self._table} WHERE {condition}{limit}) AS found"
        )
        return int(found)

    def any(self, condition: str) -> bool:
        """Whether the condition holds for a row."""
        return bool(self._session.rows(f"SELECT 1 FROM {self._table} WHERE {condition} LIMIT 1"))

    def made(self) -> tuple[str, int]:
        """Name and InnoDB's id of the table, which TRUNCATE, OPTIMIZE and an ALTER TABLE that copies the rows change; 0
        for a table of partitions, each of which has one of its own.

        :raises SourceError: if it is not a table of InnoDB.
        """
        self._session.rows(f"SELECT 1 FROM {self._table} LIMIT 0")  # says what is missing
        database, bare, engine, is_divided = self._session.row(
            "SELECT table_schema, table_name, engine, create_options LIKE '%%partitioned%%' "
            f"FROM information_schema.tables WHERE {self._of}",
            *self._named,
        )
        name = f"{database}.{bare}"
        if str(engine).lower() != "innodb":
            raise SourceError(
                f"{self._table} is no table of InnoDB: only such a table has snapshots, and tells who writes it"
            )
        if is_divided:
            return name, 0
        # Names of InnoDB are those of files, and differ by case where those of SQL may not: it has them in lower case
        # then, whatever the user wrote, or the server shows.
        file = "cast(convert(if(@@lower_case_table_names = 0, %s, lower(%s)) USING filename) AS binary)"
        found = self._session.rows(
            "SELECT table_id FROM information_schema.innodb_sys_tables "
            f"WHERE cast(name AS binary) = concat({file}, '/', {file})",
            *(database, database, bare, bare),
        )
        if not found:
            raise SourceError(f"{self._table} is being made again at this moment: look again")
        return name, int(found[0][0])

    def has_column(self, name: str, _number: int | None) -> bool:
        """Whether the table has a column of this name. InnoDB has no numbers that columns keep."""
        asked = f"SELECT 1 FROM information_schema.columns WHERE {self._of} AND column_name = %s"
        return bool(self._session.rows(asked, *self._named, name))

    def kind(self, column: str) -> tuple[str, int, bool]:
        """A column's type, the number of its digits of a second, and whether it may be null.

        :param column: as the user wrote it.
        """
        kind, digits, nullable = self._session.row(
            "SELECT data_type, coalesce(datetime_precision, 0), is_nullable = 'YES' FROM information_schema.columns "
            f"WHERE {self._of} AND column_name = %s",
            *self._named,
            column,
        )
        return kind, int(digits), bool(nullable)

    _of = "table_schema = coalesce(%s, database()) AND table_name = %s"

    @property
    def _named(self) -> tuple[str | None, str | None]:
        return self._database, self._bare_table
