"""Checks that the changes of a table can be read as a definition says, before anything is planned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_microbatch.exceptions import SourceError
from airflow_provider_microbatch.runtime.pg_texts import takes
from airflow_provider_microbatch.runtime.slot_rows import FAIL
from airflow_provider_microbatch.sources.jdbc.session import quoted, quoted_column

if TYPE_CHECKING:
    from airflow_provider_microbatch.sources.slot import SlotSource

_KEPT_APART = ("x", "e")
"""Storages of large values: extended, and external."""


@dataclass(frozen=True, kw_only=True)
class _Column:
    type: int
    written: str
    storage: str


def check_table(session: Any, source: SlotSource, *, oid: int) -> None:
    """:param session: of psycopg.
    :param oid: of the table.
    :raises SourceError: if its changes cannot be read so; it says what to change.
    """
    published = _published(session, source, oid=oid)
    columns = {
        name: _Column(type=type, written=written, storage=storage)
        for name, type, written, storage in session.execute(
            "SELECT attname::text, atttypid::bigint, format_type(atttypid, atttypmod), attstorage::text FROM "
            "pg_catalog.pg_attribute WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped AND attgenerated = ''",
            [oid],
        )
    }
    _check_columns(source, columns, published=published)
    key, identity = session.execute(
        "SELECT coalesce((SELECT array_agg(a.attname::text) FROM pg_catalog.pg_index AS i JOIN "
        "pg_catalog.pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = ANY(i.indkey) "
        "WHERE i.indrelid = c.oid AND i.indisprimary), '{}'), c.relreplident::text "
        "FROM pg_catalog.pg_class AS c WHERE c.oid = %s",
        [oid],
    ).fetchone()
    if set(key) != set(source.key):
        raise SourceError(
            f"the primary key of {source.table} is ({', '.join(key)}), and key has {', '.join(source.key)}"
        )
    read = {name: columns[name] for name, _ in source.columns() if name in columns and name not in key}
    large = [name for name, column in read.items() if column.storage in _KEPT_APART]
    if large and identity != "f":
        raise SourceError(
            f"{source.table} may have large values in {', '.join(large)}, and an update that leaves one as it was does "
            f"not tell it. Run: ALTER TABLE {quoted(source.table)} REPLICA IDENTITY FULL"
        )


def _check_columns(source: SlotSource, columns: dict[str, _Column], *, published: list[str] | None) -> None:
    """:param columns: of the table.
    :param published: names of those that the publication has; None: all.
    """
    wanted = dict(source.columns())
    other = sorted(columns.keys() ^ wanted.keys()) if source.on_schema_change == FAIL else []
    if other:
        raise SourceError(
            f"{', '.join(other)}: such columns are not in both {source.table} and the schema (a generated one is not "
            "published). Let the schema name what the table has; on_schema_change='ignore' leaves columns out, and has "
            "null for what is not there"
        )
    there = {name: columns[name] for name in wanted if name in columns}
    left_out = [name for name in there if published is not None and name not in published]
    if left_out:
        raise SourceError(f"publication {source.publication} leaves out {', '.join(left_out)} of the schema")
    for name, column in there.items():
        if not takes(wanted[name], column.type):
            raise SourceError(
                f"column {name} of {source.table} is of {column.written}, which is not read as {wanted[name]}; string "
                "takes every type"
            )


def _published(session: Any, source: SlotSource, *, oid: int) -> list[str] | None:
    """The columns of the table that the publication has; None where PostgreSQL does not tell.

    :raises SourceError: if the publication does not have the table.
    """
    is_there, table = session.execute(
        "SELECT EXISTS (SELECT FROM pg_catalog.pg_publication WHERE pubname = %s), "
        "(SELECT to_jsonb(t) FROM pg_catalog.pg_publication_tables AS t JOIN pg_catalog.pg_class AS c ON "
        "c.oid = %s AND c.relname = t.tablename JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace AND "
        "n.nspname = t.schemaname WHERE t.pubname = %s)",
        [source.publication, oid, source.publication],
    ).fetchone()
    if not is_there:
        raise SourceError(
            f"there is no publication {source.publication}. Run, before the slot is made: CREATE PUBLICATION "
            f"{quoted_column(source.publication)} FOR TABLE {quoted(source.table)}"
        )
    if table is None:
        raise SourceError(
            f"publication {source.publication} does not have {source.table} (ALTER PUBLICATION … ADD TABLE; of a "
            "partitioned table also SET (publish_via_partition_root))"
        )
    names: list[str] | None = table.get("attnames")  # since PostgreSQL 15
    return names
