"""Checks that the changes of a table can be read as a definition says, before anything is planned."""

from __future__ import annotations

from collections.abc import Sequence
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


_TABLE, _PARTITIONED, _FULL = "r", "p", "f"
_ACTIONS = ("insert", "update", "delete", "truncate")

_OF_INDEX = (
    "FROM pg_catalog.pg_index AS i JOIN pg_catalog.pg_attribute AS a ON a.attrelid = i.indrelid AND "
    "a.attnum = ANY((i.indkey::int2[])[0 : i.indnkeyatts - 1]) WHERE i.indrelid = c.oid AND"
)
"""The columns of an index of a relation, without those that it only includes."""

_RELATIONS = (
    "WITH RECURSIVE below AS (SELECT %s::oid AS id, 0 AS depth UNION ALL SELECT i.inhrelid, depth + 1 FROM "
    "pg_catalog.pg_inherits AS i JOIN below ON i.inhparent = below.id) "
    "SELECT c.oid::regclass::text, c.relkind::text, c.relpersistence::text, c.relreplident::text, "
    f"(SELECT coalesce(array_agg(a.attname::text), '{{}}') {_OF_INDEX} i.indisprimary), "
    f"(SELECT coalesce(bool_and(i.indimmediate), true) {_OF_INDEX} i.indisprimary), "
    f"(SELECT coalesce(array_agg(a.attname::text), '{{}}') {_OF_INDEX} "
    "CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident END) "
    "FROM below JOIN pg_catalog.pg_class AS c ON c.oid = below.id ORDER BY depth, c.oid::regclass::text"
)


@dataclass(frozen=True, kw_only=True)
class _Column:
    type: int
    written: str
    storage: str


@dataclass(frozen=True, kw_only=True)
class _Relation:
    """:param name: as SQL has it.
    :param kind: PostgreSQL's letter.
    :param identity: PostgreSQL's letter for what a change tells of the old row.
    :param key: columns of the primary key.
    :param checks_at_once: whether no statement may have two rows of one key in between.
    :param told: columns of the old row that a change tells, unless it tells all.
    """

    name: str
    kind: str
    is_logged: bool
    identity: str
    key: Sequence[str]
    checks_at_once: bool
    told: Sequence[str]


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
    (root, *below) = _relations(session, oid=oid)
    if set(root.key) != set(source.key):
        raise SourceError(
            f"the primary key of {source.table} is ({', '.join(root.key)}), and key has {', '.join(source.key)}"
        )
    if below and root.kind != _PARTITIONED:
        raise SourceError(
            f"{source.table} has children by INHERITS: {', '.join(one.name for one in below)}. Their rows are among "
            "its own, and their changes are those of other tables. Have a source for each child, or let the table be "
            "partitioned (PARTITION BY)"
        )
    read = {name: columns[name] for name, _ in source.columns() if name in columns and name not in root.key}
    large = [name for name, column in read.items() if column.storage in _KEPT_APART]
    for one in [root, *below]:
        if one.kind != _PARTITIONED:
            _check_relation(one, source, large=large)


def _check_relation(one: _Relation, source: SlotSource, *, large: Sequence[str]) -> None:
    """:param one: the table, or a partition that has rows.
    :param large: columns that may have large values.
    """
    if one.kind != _TABLE or not one.is_logged:
        raise SourceError(
            f"{one.name} is foreign or unlogged, and the log has no changes of it: {source.table} cannot be read so"
        )
    if not one.checks_at_once:
        raise SourceError(
            f"the primary key of {one.name} is DEFERRABLE: two rows may swap their keys in a statement, and a row that "
            "is there would be taken for deleted. Make the constraint anew, without DEFERRABLE"
        )
    whole = f"Run: ALTER TABLE {one.name} REPLICA IDENTITY FULL"
    if one.identity != _FULL and not set(source.key) <= set(one.told):
        told = f"({', '.join(one.told)})" if one.told else "nothing"
        raise SourceError(
            f"the replica identity of {one.name} is {told}, without the whole key: nobody could tell which row was "
            f"deleted, or moved to another key. {whole}"
        )
    if large and one.identity != _FULL:
        raise SourceError(
            f"{one.name} may have large values in {', '.join(large)}, and an update that leaves one as it was does "
            f"not tell it. {whole}"
        )


def _relations(session: Any, *, oid: int) -> list[_Relation]:
    """The table, and then what is below it: partitions, or children by INHERITS."""
    return [
        _Relation(
            name=name, kind=kind, is_logged=kept == "p", identity=identity, key=key, checks_at_once=at_once, told=told
        )
        for name, kind, kept, identity, key, at_once, told in session.execute(_RELATIONS, [oid])
    ]


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

    :raises SourceError: if the publication does not have the table, or not each change of it.
    """
    publication, table = session.execute(
        "SELECT (SELECT to_jsonb(p) FROM pg_catalog.pg_publication AS p WHERE p.pubname = %s), "
        "(SELECT to_jsonb(t) FROM pg_catalog.pg_publication_tables AS t JOIN pg_catalog.pg_class AS c ON "
        "c.oid = %s AND c.relname = t.tablename JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace AND "
        "n.nspname = t.schemaname WHERE t.pubname = %s)",
        [source.publication, oid, source.publication],
    ).fetchone()
    if publication is None:
        raise SourceError(
            f"there is no publication {source.publication}. Run, before the slot is made: CREATE PUBLICATION "
            f"{quoted_column(source.publication)} FOR TABLE {quoted(source.table)}"
        )
    if table is None:
        raise SourceError(
            f"publication {source.publication} does not have {source.table} (ALTER PUBLICATION … ADD TABLE; of a "
            "partitioned table also SET (publish_via_partition_root))"
        )
    if lacking := [action for action in _ACTIONS if not publication[f"pub{action}"]]:
        raise SourceError(
            f"publication {source.publication} does not publish {', '.join(lacking)}. Run, before the slot is made: "
            f"ALTER PUBLICATION {quoted_column(source.publication)} SET (publish = '{', '.join(_ACTIONS)}')"
        )
    if rows := table.get("rowfilter"):  # since PostgreSQL 15
        raise SourceError(
            f"publication {source.publication} has only the rows of {source.table} WHERE {rows}, and the table has "
            "all. Name a publication that has it without WHERE"
        )
    names: list[str] | None = table.get("attnames")  # since PostgreSQL 15
    return names
