"""Writes a stage as text that PostgreSQL's ``COPY … FROM STDIN`` takes unchanged: one line per row, columns separated
by tabs, ``\\N`` for null (https://www.postgresql.org/docs/current/sql-copy.html#SQL-COPY-TEXT-FORMAT).

Spark makes the text of each value, on all its cores, so that the loader of the stage only passes bytes on: the loader
needs neither Spark nor a decoder, and the database's credentials stay off the cluster.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_microbatch.runtime import report
from airflow_provider_microbatch.runtime.changes import DELETED
from airflow_provider_microbatch.runtime.failure import BatchFailure
from airflow_provider_microbatch.runtime.write import TIMES
from airflow_provider_microbatch.runtime.write import write as write_files

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructField

_AS_THEY_ARE = ("boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "decimal")
_LONGEST_NAME = 63
_JSON_NUL = r"(?<!\\)((?:\\\\)*)\\u0000"
WHOLE_JSON = {"ignoreNullFields": "false", **TIMES}
"""Spark's options for JSON that has every field, null or not, and times to the microsecond."""
_ZONED = "yyyy-MM-dd HH:mm:ss.SSSSSSxxxxx"


def write(frame: DataFrame, arguments: Mapping[str, Any]) -> DataFrame | list[str]:
    """Write the rows of a batch as lines for ``COPY``, and the columns beside them.

    :param frame: the frame that the transform returned; changes with the column
        :data:`~airflow_provider_microbatch.runtime.changes.DELETED`.
    :param arguments: ``path`` (must not exist), ``remove_nul`` (whether to leave out the character NUL, which
        PostgreSQL's text cannot have), ``columns`` (the names that the frame must have; empty: any), ``needed`` (names
        that the frame must have among others).
    :return: JSON lines, as :func:`airflow_provider_microbatch.runtime.write.write` returns them.
    :raises BatchFailure: if a column is missing, is one too many, or has a name or type that cannot be written.
    """
    from pyspark.sql import functions as F

    _check_names([name for name in frame.columns if name != DELETED], arguments)
    cells = [_cell(field, remove_nul=arguments["remove_nul"]) for field in frame.schema.fields]
    line = F.concat_ws("\t", *(F.coalesce(cell, F.lit("\\N")) for cell in cells))
    listing = write_files(frame.select(line.alias("value")), {"path": arguments["path"], "format": "text"})
    report.write_schema(frame.sparkSession, arguments["path"], frame.schema)
    return listing


def _check_names(names: Sequence[str], arguments: Mapping[str, Any]) -> None:
    wanted, needed = list(arguments["columns"]), list(arguments["needed"])
    problems = [f"it lacks {', '.join(gone)}" for gone in [[name for name in needed if name not in names]] if gone]
    if wanted and sorted(names) != sorted(wanted):
        lacks, more = [one for one in wanted if one not in names], [one for one in names if one not in wanted]
        problems += [f"it lacks {', '.join(lacks)}"] * bool(lacks) + [f"it has {', '.join(more)} too"] * bool(more)
    problems += [
        f"the column {name!r} is there twice" for name in sorted({one for one in names if names.count(one) > 1})
    ]
    long = [name for name in names if len(name.encode()) > _LONGEST_NAME]
    problems += [f"PostgreSQL would cut the name {name!r} to {_LONGEST_NAME} bytes" for name in long]
    problems += [f"PostgreSQL has no name {name!r}" for name in names if not name or "\0" in name]
    if not names:
        problems.append("it has no column")
    if problems:
        raise BatchFailure("result", f"the result cannot be written to the table: {'; '.join(dict.fromkeys(problems))}")


def _cell(field: StructField, *, remove_nul: bool) -> Column:
    """The text of a column's values; null for null."""
    from pyspark.sql import functions as F

    column, kind = F.col("`" + field.name.replace("`", "``") + "`"), _kind(field.dataType)
    if kind in _AS_THEY_ARE:
        return column.cast("string")
    if kind in ("string", "char", "varchar"):
        text = F.replace(column, F.lit("\0"), F.lit("")) if remove_nul else column
        return _escaped(text)
    if kind == "binary":
        return F.concat(F.lit("\\\\x"), F.lower(F.hex(column)))
    if kind in ("date", "timestamp_ntz"):
        return _years(column.cast("string"), F.year(column))
    if kind == "timestamp":
        # Write the offset from UTC: without the offset, the hour that occurs twice in the session's zone would be
        # ambiguous.
        return _years(F.date_format(column, _ZONED), F.year(column))
    if kind in ("array", "struct", "map", "variant"):
        text = F.to_json(column, WHOLE_JSON)
        return _escaped(F.regexp_replace(text, _JSON_NUL, "$1") if remove_nul else text)
    raise BatchFailure(
        "result", f"column {field.name!r} is of type {kind}, which has no counterpart here; cast it in the transform"
    )


def _kind(type: DataType) -> str:
    return type.simpleString().partition("<")[0].partition("(")[0].partition(" ")[0]


def _escaped(text: Column) -> Column:
    """The text with COPY's escapes. The backslash is escaped first, since the other escapes begin with a backslash."""
    from pyspark.sql import functions as F

    for plain, written in (("\\", "\\\\"), ("\t", "\\t"), ("\n", "\\n"), ("\r", "\\r")):
        text = F.replace(text, F.lit(plain), F.lit(written))
    return text


def _years(text: Column, year: Column) -> Column:
    """The text with the year as PostgreSQL takes it: without Spark's sign before a year of five digits, and without a
    year 0, since the year before 1 is 1 BC."""
    from pyspark.sql import functions as F

    before_christ = F.concat(
        F.lpad((1 - year).cast("string"), 4, "0"), F.regexp_extract(text, r"^-?\d+(-.*)$", 1), F.lit(" BC")
    )
    return F.when(year >= 1, F.regexp_replace(text, r"^\+", "")).otherwise(before_christ)
