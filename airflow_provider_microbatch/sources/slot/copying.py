"""Copies the rows that a table had at a moment, which PostgreSQL has exported, to files of a folder."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_microbatch.connections import Connection
from airflow_provider_microbatch.exceptions import SourceError
from airflow_provider_microbatch.runtime.slot import connect
from airflow_provider_microbatch.settings import make_private_folder, open_private_file
from airflow_provider_microbatch.sources.jdbc.session import quoted, quoted_column
from airflow_provider_microbatch.sources.slot.server import Server, libpq
from airflow_provider_microbatch.sources.slot.table import check_table

if TYPE_CHECKING:
    from airflow_provider_microbatch.sources.slot import SlotSource

ROWS_OF_A_FILE = 250_000
LOCK_SECONDS = 60.0
"""How long whoever alters the table is waited for."""

_AS_IT_WAS = """
WITH RECURSIVE part AS (
    SELECT %s::oid AS id
    UNION ALL SELECT i.inhrelid FROM pg_catalog.pg_inherits AS i JOIN part ON i.inhparent = part.id
)
SELECT bool_and(c.relfilenode IS NOT DISTINCT FROM coalesce(pg_relation_filenode(id), 0))
    AND count(*) = greatest(1, (SELECT count(*) FROM pg_partition_tree(%s::oid)))
FROM part LEFT JOIN pg_catalog.pg_class AS c ON c.oid = part.id
"""
"""Tables are as the moment has them, functions as they are now."""

_COLUMNS = """
SELECT attname::text, (
    WITH RECURSIVE base AS (
        SELECT atttypid AS id
        UNION ALL SELECT t.typbasetype FROM base JOIN pg_catalog.pg_type AS t ON t.oid = id AND t.typtype = 'd'
    )
    SELECT id::bigint FROM base JOIN pg_catalog.pg_type AS t ON t.oid = id AND t.typtype <> 'd'
), attgenerated <> '' FROM pg_catalog.pg_attribute
WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""
"""Types are as a query's result has them: of a domain, the type that it is over in the end."""


@dataclass(frozen=True, kw_only=True)
class Copied:
    """:param files: the name of each, and its number of rows.
    :param columns: what is in a row, in this order.
    :param left_out: columns that the table had, and the schema lacks.
    """

    files: Sequence[tuple[str, int]]
    columns: Sequence[str]
    left_out: Sequence[str]


def copied(source: SlotSource, connection: Connection, *, moment: str, folder: Path) -> Copied:
    """Copy the rows of a moment. The folder is there as a whole, or not at all.

    :raises SourceError: if the role may not see all rows, or the table was altered since the moment.
    """
    import psycopg

    table = quoted(source.table)
    with connect(libpq(connection), connection.password or "") as session:
        session.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        session.execute(f"SET TRANSACTION SNAPSHOT '{moment}'")
        # Rows that a policy hides would be in neither copy nor slot: PostgreSQL refuses to hide any.
        session.execute("SET LOCAL row_security = off")
        # This session alone locks the table. It waits for nobody else here, so whoever alters the table can never wait
        # for it, and it for them, through this process, where PostgreSQL sees no deadlock.
        session.execute(f"SET LOCAL lock_timeout = {round(1000 * LOCK_SECONDS)}")
        try:
            session.execute(f"LOCK TABLE {table} IN ACCESS SHARE MODE")
            names, left_out = _columns(session, source)
            files = _files(session, f"SELECT {', '.join(map(quoted_column, names))} FROM {table}", folder)
        except psycopg.errors.LockNotAvailable as error:
            raise SourceError(
                f"{source.table} is locked by somebody who alters it, for more than {LOCK_SECONDS:g} s: look again "
                "later"
            ) from error
        except psycopg.errors.InsufficientPrivilege as error:
            raise SourceError(
                f"PostgreSQL says: {' '.join(str(error).split())}. The copy takes all rows: GRANT SELECT ON {table}, "
                f'and, if the table has policies, ALTER ROLE "{connection.login}" BYPASSRLS'
            ) from error
    return Copied(files=files, columns=names, left_out=left_out)


def _columns(session: Any, source: SlotSource) -> tuple[list[str], list[str]]:
    """The columns that are copied, and those that the schema lacks.

    :raises SourceError: if the table is not what it was at the moment: its rows of then cannot be told.
    """
    oid = Server(session, source).table()
    (is_as_it_was,) = session.execute(_AS_IT_WAS, [oid, oid]).fetchone()
    columns = session.execute(_COLUMNS, [oid]).fetchall()
    now = session.execute(f"SELECT * FROM {quoted(source.table)} LIMIT 0").description
    if not is_as_it_was or [(name, type) for name, type, _ in columns] != [(one.name, one.type_code) for one in now]:
        raise SourceError(f"{source.table} was altered while slot {source.slot} was being made: look again")
    check_table(session, source, oid=oid)
    wanted = {name for name, _ in source.columns()}
    there = [name for name, _, is_generated in columns if not is_generated]  # a slot has no generated ones
    return [name for name in there if name in wanted], [name for name in there if name not in wanted]


def _files(session: Any, query: str, folder: Path) -> list[tuple[str, int]]:
    part, files = part_of(folder), list[tuple[str, int]]()
    folder.parent.mkdir(parents=True, exist_ok=True)
    make_private_folder(part)
    with session.cursor() as cursor, cursor.copy(f"COPY ({query}) TO STDOUT") as copy:
        rows = copy.rows()
        while written := _written(part / f"rows-{len(files):05}.json", islice(rows, ROWS_OF_A_FILE)):
            files.append((f"rows-{len(files):05}.json", written))
    part.rename(folder)
    _sync(folder.parent)
    return files


def part_of(folder: Path) -> Path:
    """Where the files of a folder are while they are written."""
    return folder.with_name(f"{folder.name}.part")


def _written(path: Path, rows: Iterator[Sequence[str | None]]) -> int:
    """Write rows to a file, and have it on disk; return how many. No file if there are none."""
    count = 0
    with os.fdopen(open_private_file(path), "w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(row) + "\n")
            count += 1
        file.flush()
        os.fsync(file.fileno())
    if not count:
        path.unlink()
    return count


def _sync(folder: Path) -> None:
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
