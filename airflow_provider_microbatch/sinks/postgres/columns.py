"""The columns of a table, and the check that a stage's columns fit them: column by column, before any row is loaded."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.runtime.changes import DELETED
from airflow_provider_microbatch.runtime.intake import narrows
from airflow_provider_microbatch.sinks.merge import Merge
from airflow_provider_microbatch.sinks.postgres.database import Row, execute
from airflow_provider_microbatch.sinks.postgres.known_merge import check_merge
from airflow_provider_microbatch.sinks.postgres.names import BATCH, LANE, TableName, listed, quoted
from airflow_provider_microbatch.sinks.postgres.records import Records
from airflow_provider_microbatch.sinks.postgres.types import StagedColumn

if TYPE_CHECKING:
    import psycopg

_COLUMNS = """
SELECT a.attname, format_type(a.atttypid, a.atttypmod),
       CASE WHEN t.typtype = 'd' THEN format_type(t.typbasetype, t.typtypmod)
            ELSE format_type(a.atttypid, a.atttypmod) END,
       a.attnotnull OR t.typnotnull, a.atthasdef OR a.attidentity <> '', a.attgenerated <> '' OR a.attidentity = 'a',
       COALESCE((SELECT quote_ident(n.nspname) || '.' || quote_ident(c.collname)
           FROM pg_collation c JOIN pg_namespace n ON n.oid = c.collnamespace
           WHERE c.oid = a.attcollation AND a.attcollation <> t.typcollation), '')
FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
WHERE a.attrelid = to_regclass(%s) AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""
# Collations that are deterministic call the same texts equal, whatever their order.
_UNIQUE = """
SELECT array_agg(a.attname::text), i.indexrelid::regclass::text, EXISTS (
        SELECT FROM unnest(i.indkey::int2[], i.indcollation::oid[]) AS k (number, ordered_by)
        JOIN pg_attribute c ON c.attrelid = i.indrelid AND c.attnum = k.number
        JOIN pg_collation o ON o.oid IN (k.ordered_by, c.attcollation)
        WHERE k.ordered_by <> c.attcollation AND NOT o.collisdeterministic)
FROM pg_index i JOIN pg_attribute a
    ON a.attrelid = i.indrelid AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1])
WHERE i.indrelid = to_regclass(%s) AND i.indisunique AND i.indisvalid AND i.indimmediate
    AND i.indpred IS NULL AND i.indexprs IS NULL GROUP BY i.indexrelid
"""
# Of each row, before it is written: 1 and 2 are these bits of their type.
_TRIGGERS = """
SELECT tgname::text FROM pg_trigger
WHERE tgrelid = to_regclass(%s) AND NOT tgisinternal AND tgenabled <> 'D' AND tgtype & 3 = 3 ORDER BY 1
"""
FLOATS = ("real", "double precision")
"""Types that have the value NaN, of those that Spark's numbers with NaN go into."""
OWN = {LANE: "text", BATCH: "bigint"}
"""The columns that say which batch brought each row."""


@dataclass(frozen=True, kw_only=True)
class Column:
    """:param name: name of the column.
    :param type: the type, as PostgreSQL writes it.
    :param base: the same type, or the base type of a domain.
    :param is_needed: whether the column takes no null.
    :param has_default: whether a row that does not name the column gets a value.
    :param is_made: whether the table makes the column's value, which no row may give.
    :param collation: by which its texts are compared, as a statement names it; empty: by that of its type.
    """

    name: str
    type: str
    base: str = ""
    is_needed: bool = False
    has_default: bool = False
    is_made: bool = False
    collation: str = ""

    @property
    def kind(self) -> str:
        """The type and the collation, as a statement names them."""
        return f"{self.type} COLLATE {self.collation}" if self.collation else self.type

    @property
    def sql(self) -> str:
        """The column's definition in a statement that makes a table."""
        return f"{quoted(self.name)} {self.kind}{' NOT NULL' if self.is_needed else ''}"


def columns_of(connection: psycopg.Connection[Row], table: TableName) -> list[Column]:
    """The table's columns in their order; none if there is no such table."""
    return [
        Column(
            name=name, type=type, base=base, is_needed=needed, has_default=default, is_made=made, collation=collation
        )
        for name, type, base, needed, default, made, collation in execute(connection, _COLUMNS, table.text)
    ]


def triggers_of(connection: psycopg.Connection[Row], table: TableName) -> list[str]:
    """Names of the triggers that may make another row of one that is written to the table, or none."""
    return [str(name) for (name,) in execute(connection, _TRIGGERS, table.text)]


def check_table(
    connection: psycopg.Connection[Row],
    table: TableName,
    found: Sequence[Column],
    *,
    merge: Merge | None,
    declared: Mapping[str, str],
) -> None:
    """Check that a table can be published to.

    :param declared: name → type of the columns that the table is to have.
    :raises SinkError: naming every column that is wrong, and what to do.
    """
    has = {column.name: column for column in found}
    for scd_type in {1, 2} - {0 if merge is None else merge.scd_type}:
        # Rows that were appended to merged ones would be overwritten or removed by the next change of their keys; and
        # of the changes that one type of merge keeps, the other needs more.
        if columns_of(connection, table.changes(scd_type)):
            raise SinkError(
                f"changes are merged into the table {table} by scd_type={scd_type}: {table.changes(scd_type)} keeps "
                "them. Give the sink its merge=… again, or write to another table."
            )
    # A row of changes is of no batch: without a word about these each INSERT would fail, after Spark's job.
    of_batches = [one for one in found if one.name in OWN and _wants_value(one)]
    if merge is not None and of_batches:
        _check_no_batches_of_rows(connection, table, table.changes(merge.scd_type))
    if merge is not None:
        check_merge(connection, table, merge)
    if merge is not None and merge.bounds:
        _check_made_by_changes(connection, table, table.changes(merge.scd_type))
    problems = [
        f"it has no column {name!r}; ALTER TABLE {table.text} ADD COLUMN {quoted(name)} {type}"
        for name, type in (OWN if merge is None else {}).items()
        if name not in has
    ]
    kind = execute(connection, "SELECT relkind::text FROM pg_class WHERE oid = to_regclass(%s)", table.text).fetchone()
    if kind not in (("r",), ("p",)):
        problems.append("it is a view, or another thing that is no table")
    if merge is not None:
        problems += _wrong_bounds(has, merge)
        problems += [
            f"its column {column.name!r} takes no null, has no default, and gets no value where changes are merged; "
            f"ALTER TABLE {table.text} DROP COLUMN {quoted(column.name)}"
            for column in of_batches
        ]
        problems += [
            f"its column {column.name!r} takes no null, has no default, and gets no value, since leave_out names it; "
            f"ALTER TABLE {table.text} ALTER COLUMN {quoted(column.name)} DROP NOT NULL"
            for column in found
            if column.name in merge.leave_out and _wants_value(column)
        ]
        over_keys = [
            (index, is_other)
            for names, index, is_other in execute(connection, _UNIQUE, table.text)
            if set(names) == set(_primary(merge))
        ]
        # The database would take rows for one that are of two keys by the order of changes, or for two those of one.
        problems += [
            f"its unique index {index} takes other texts for equal than the collations of its columns do: give it "
            "theirs, or drop it"
            for index, is_other in over_keys
            if is_other
        ]
        if not over_keys:
            of_what = "its keys" if not merge.bounds else f"its keys and {merge.valid_from!r}"
            problems.append(
                f"it has no unique constraint over {of_what}; ALTER TABLE {table.text} ADD PRIMARY KEY "
                f"({listed(_primary(merge))})"
            )
    for name, type in declared.items():
        if merge is not None and name in merge.leave_out:
            continue
        wanted = as_written(connection, type)
        if name not in has:
            problems.append(_absent(name, has))
        elif wanted not in (has[name].type, has[name].base):
            problems.append(f"column {name!r} is {has[name].type} there, and {wanted} in columns=…")
    problems += _left_alone(found, declared, merge=merge) if declared else []
    if problems:
        raise SinkError(f"the table {table} cannot be written: {'; '.join(problems)}.")


def _check_no_batches_of_rows(connection: psycopg.Connection[Row], table: TableName, place: TableName) -> None:
    """Without its columns of the batch nobody would find a batch's rows again: a replay would bring them twice."""
    records = Records(connection, table)
    has_batches = records.are_there() and bool(records.lanes())
    if not columns_of(connection, place) and (has_batches or _has_rows(connection, table)):
        raise SinkError(
            f"the table {table} has batches of rows, and this sink merges changes (merge=…): which row is of which "
            "batch must stay known. Go on as before, or write to another table."
        )


def _has_rows(connection: psycopg.Connection[Row], table: TableName) -> bool:
    return execute(connection, f"SELECT 1 FROM {table.sql} LIMIT 1").fetchone() is not None


def _check_made_by_changes(connection: psycopg.Connection[Row], table: TableName, place: TableName) -> None:
    """A version goes if no change that is kept makes it: the first change of a key would take away what it has."""
    if not columns_of(connection, place) and _has_rows(connection, table):
        raise SinkError(
            f"the table {table} has rows, and no changes that have made them: there is no {place}. The first change of "
            "a key would take away the versions that it has. Write to another table; or, if changes were merged into "
            f"this one, bring {place} back from a backup."
        )


def of_stage(
    table: TableName,
    staged: Sequence[StagedColumn],
    found: Sequence[Column],
    *,
    merge: Merge | None,
    held: Collection[str] = (),
) -> list[Column]:
    """The columns of a stage table. They have the types of the table's columns, so that values that do not fit are
    found during the load, by line and column.

    :param held: the table's rules that the rows of the stage were held against.
    :raises SinkError: naming every column that does not fit the table.
    """
    has, problems, columns = {column.name: column for column in found}, list[str](), list[Column]()
    aside = (DELETED, *merge.leave_out) if merge is not None else ()
    bound = bound_as_sequence(found, merge)
    has |= bound
    for one in staged:
        if one.name in aside and one.name not in bound:
            columns.append(
                Column(name=one.name, type=one.made_as, base=one.made_as, is_needed=_orders(one.name, merge))
            )
            continue
        target = has.get(one.name)
        if target is None:
            problems.append(_absent(one.name, has))
        elif target.is_made:
            problems.append(f"column {one.name!r} gets its values from the table; leave it out of the result")
        elif not one.fits(target.base, is_judged=narrows(one.name, target.type) in held):
            problems.append(
                f"column {one.name!r} is {one.type} in the result, and not every value of it goes into {target.type}"
            )
        else:
            # A change that deletes may have nothing but its keys.
            orders = _orders(one.name, merge)
            needed = target.is_needed if merge is None else orders
            # By another collation than the table's, keys that are one to it would be two, and an older change newer.
            collation = target.collation if orders else ""
            columns.append(
                Column(name=one.name, type=target.type, base=target.base, is_needed=needed, collation=collation)
            )
    problems += _left_alone(found, [one.name for one in staged], merge=merge)
    if problems:
        raise SinkError(
            f"the result does not go into the table {table}: {'; '.join(problems)}. Nothing was loaded; change the "
            "transform, or the table."
        )
    return columns


def make_table(
    connection: psycopg.Connection[Row], table: TableName, columns: Sequence[Column], *, merge: Merge | None
) -> None:
    """Make the table, with the columns and indexes that a publish needs."""
    for column in columns:
        _check_type(connection, column.type)
    parts = [column.sql for column in columns if merge is None or column.name not in (DELETED, *merge.leave_out)]
    if merge is None:
        parts += [f"{quoted(name)} {type} NOT NULL" for name, type in OWN.items()]
    else:
        kinds = {column.name: column.type for column in columns}
        parts += [f"{quoted(name)} {kinds[merge.sequence_by[0]]}" for name in merge.bounds]
        parts.append(f"PRIMARY KEY ({listed(_primary(merge))})")
    execute(connection, f"CREATE TABLE {table.sql} ({', '.join(parts)})")
    if merge is None:
        execute(connection, f"CREATE INDEX ON {table.sql} ({listed((BATCH, LANE))})")  # a replay finds its rows by it


def bound_as_sequence(found: Sequence[Column], merge: Merge | None) -> dict[str, Column]:
    """A sequence that the table does not show, as a column of the table: its values become the versions' bounds.

    :param found: columns of the table.
    :return: the column by its name; nothing where no version begins by it.
    """
    if merge is None or not merge.bounds or merge.sequence_by[0] not in merge.leave_out:
        return {}
    renamed = (replace(column, name=merge.sequence_by[0]) for column in found if column.name == merge.valid_from)
    return {column.name: column for column in renamed}


def made_of(staged: Sequence[StagedColumn]) -> list[Column]:
    """The columns of a new table for a stage."""
    return [Column(name=one.name, type=one.made_as, base=one.made_as) for one in staged]


def _orders(name: str, merge: Merge | None) -> bool:
    return merge is not None and name in (*merge.keys, *merge.sequence_by, DELETED)


def _primary(merge: Merge) -> tuple[str, ...]:
    """The columns by which rows of the table are known."""
    return (*merge.keys, *merge.bounds[:1])


def _wrong_bounds(has: Mapping[str, Column], merge: Merge) -> Iterator[str]:
    """A bound is a value of the sequence: a narrower type would round it, and versions would overlap."""
    sequence = has.get(merge.sequence_by[0]) if merge.sequence_by[0] not in merge.leave_out else None
    kinds = {name: has[name].kind for name in merge.bounds if name in has}
    for name in merge.bounds:
        if name not in has:
            yield f"it has no column {name!r}, a bound of versions, of the type of {merge.sequence_by[0]!r}"
        elif has[name].is_made or (name == merge.valid_to and has[name].is_needed):
            yield f"its column {name!r} has to take values, and where versions end null"
    if sequence is not None:
        kinds[sequence.name] = sequence.kind
    if len(set(kinds.values())) > 1:
        yield f"its columns {' and '.join(f'{name!r} ({type})' for name, type in kinds.items())} differ in their types"


def _absent(name: str, has: Mapping[str, Column]) -> str:
    other = next((one for one in has if one.casefold() == name.casefold()), None)
    return f"it has no column {name!r}" + (f", but {other!r}: capitals count" if other is not None else "")


def _left_alone(found: Sequence[Column], named: Mapping[str, str] | Sequence[str], *, merge: Merge | None) -> list[str]:
    ours = OWN if merge is None else (*OWN, *merge.bounds, *merge.leave_out)
    return [
        f"its column {column.name!r} takes no null, has no default, and gets no value"
        for column in found
        if _wants_value(column) and column.name not in named and column.name not in ours
    ]


def _wants_value(column: Column) -> bool:
    """Whether each row has to bring one."""
    return column.is_needed and not column.has_default and not column.is_made


def _check_type(connection: psycopg.Connection[Row], type: str) -> None:
    """Check that the server knows the text as a type, and as nothing more: it becomes part of a statement, and may come
    from a checkpoint that others write."""
    if execute(connection, "SELECT to_regtype(%s) IS NULL", type).fetchone() == (True,):
        raise SinkError(f'type "{type}" does not exist in the database; look at columns=….')


def as_written(connection: psycopg.Connection[Row], type: str) -> str:
    """PostgreSQL's own spelling of a type (int8 → bigint, varchar(4) → character varying(4))."""
    _check_type(connection, type)
    result = execute(connection, f"SELECT NULL::{type}").pgresult
    assert result is not None
    found = execute(connection, "SELECT format_type(%s, %s)", result.ftype(0), result.fmod(0)).fetchone()
    assert found is not None
    return str(found[0])
