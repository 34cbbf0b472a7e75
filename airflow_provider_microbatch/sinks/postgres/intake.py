"""What a table of PostgreSQL takes of a row, as far as Spark can tell: types, lengths, NOT NULL, and values that no
table of PostgreSQL has. Unique constraints, CHECK constraints and triggers are the server's alone, and fail the batch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from decimal import Decimal

from airflow_provider_microbatch.runtime.changes import DELETED
from airflow_provider_microbatch.runtime.intake import VALUE, Intake, Limit, TableColumn
from airflow_provider_microbatch.sinks.merge import Merge
from airflow_provider_microbatch.sinks.postgres.columns import OWN, Column, bound_as_sequence

_SPARK = {
    "smallint": "smallint",
    "integer": "int",
    "bigint": "bigint",
    "real": "float",
    "double precision": "double",
    "date": "date",
    "timestamp without time zone": "timestamp_ntz",
}
_NUMERIC = re.compile(r"numeric\((\d+),(\d+)\)")
_MOST_DIGITS = 38
"""Spark's decimals have no more."""
_LENGTH = re.compile(r"character(?: varying)?\((\d+)\)")
_SECONDS = re.compile(r"timestamp\(([0-5])\) (with(?:out)? time zone)")
_TEXTS = ("string", "char", "varchar")
_NUL = "the character NUL, which PostgreSQL's text cannot have"
_LIMITS = {
    "uuid": Limit(
        condition=rf"{VALUE} RLIKE r'\A(\{{(\p{{XDigit}}{{4}}-?){{7}}\p{{XDigit}}{{4}}\}}|(\p{{XDigit}}{{4}}-?){{7}}"
        rf"\p{{XDigit}}{{4}})\z'",
        problem="no uuid",
        kinds=_TEXTS,
    ),
    # PostgreSQL's calendar begins on this day, and has fewer years than Spark's.
    "date": Limit(
        condition=f"unix_date({VALUE}) BETWEEN -2440588 AND 2145042905",
        problem="a day that PostgreSQL's date does not have",
        kinds=("date",),
    ),
    "timestamp with time zone": Limit(
        condition=f"unix_micros({VALUE}) >= -210866803200000000",
        problem="earlier than PostgreSQL's timestamps begin",
        kinds=("timestamp",),
    ),
    "timestamp without time zone": Limit(
        condition=f"{VALUE} >= TIMESTAMP_NTZ'-4713-11-24 00:00:00'",
        problem="earlier than PostgreSQL's timestamps begin",
        kinds=("timestamp_ntz",),
    ),
}
_ORDERS = "it orders changes"
_NUMBER = Limit(condition=f"NOT isnan({VALUE})", problem=f"NaN, and {_ORDERS}", kinds=("float", "double"))
_JSON_NUL = Limit(
    condition=rf"NOT to_json({VALUE}) RLIKE r'(?<!\\)(?:\\\\)*\\u0000'",
    problem=_NUL,
    kinds=("array", "struct", "map", "variant"),
)


def intake_of(columns: Sequence[Column], *, merge: Merge | None, removes_nul: bool) -> Intake:
    """What the table takes.

    :param columns: the table's.
    :param merge: how changes are merged into it, if they are.
    :param removes_nul: whether the character NUL is taken out of texts before they are loaded.
    """
    own = OWN if merge is None else (*merge.leave_out, *merge.bounds)
    taken = [column for column in columns if column.name not in own and not column.is_made]
    taken += bound_as_sequence(columns, merge).values()
    found = [_column(column, merge=merge, removes_nul=removes_nul) for column in taken]
    # Changes are ordered by these, whether or not the table shows them.
    order = () if merge is None else dict.fromkeys((*merge.keys, *merge.sequence_by))
    hidden = [name for name in order if name not in {column.name for column in found}]
    found += [TableColumn(name=name, told=_ORDERS, is_needed=True, limits=(_NUMBER,)) for name in hidden]
    return Intake(columns=tuple(found), is_exact=False)


def _column(column: Column, *, merge: Merge | None, removes_nul: bool) -> TableColumn:
    is_sequence = merge is not None and column.name in merge.sequence_by
    orders = is_sequence or (merge is not None and column.name in merge.keys)
    return TableColumn(
        name=column.name,
        told=column.type,
        type=_spark_type(column.base),
        is_needed=column.is_needed or orders,
        # A change that deletes may have nothing but its keys.
        needed_unless=None if merge is None or orders else DELETED,
        limits=(*_limits(column, removes_nul=removes_nul), *([_NUMBER] if is_sequence else [])),
        is_narrow=_SECONDS.fullmatch(column.base) is not None,
    )


def _spark_type(base: str) -> str | None:
    numeric = _NUMERIC.fullmatch(base)
    if numeric is None:
        return _SPARK.get(base)
    digits, scale = int(numeric[1]), int(numeric[2])
    return f"decimal({digits},{scale})" if scale <= digits <= _MOST_DIGITS else None


def _limits(column: Column, *, removes_nul: bool) -> Iterator[Limit]:
    text = f"replace({VALUE}, char(0), '')" if removes_nul else VALUE
    if not removes_nul:
        yield Limit(condition=f"instr({VALUE}, char(0)) = 0", problem=_NUL, kinds=_TEXTS)
    length = _LENGTH.fullmatch(column.base)
    if length is not None:
        # PostgreSQL would cut off what is too long by blanks alone.
        yield Limit(condition=f"char_length({text}) <= {length[1]}", problem=f"longer than {column.type}", kinds=_TEXTS)
    narrow = _SECONDS.fullmatch(column.base)
    general = column.base if narrow is None else f"timestamp {narrow[2]}"
    if general in _LIMITS:
        yield _LIMITS[general]
    if narrow is not None:
        yield Limit(
            condition=f"extract(SECOND FROM {VALUE}) % {Decimal(1).scaleb(-int(narrow[1]))} = 0",
            problem=f"more digits of a second than {column.type} keeps",
            kinds=_LIMITS[general].kinds,
        )
    if column.base == "jsonb" and not removes_nul:
        yield _JSON_NUL
