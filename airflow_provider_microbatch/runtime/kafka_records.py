"""Writes a stage of records for a topic: Parquet files with the columns ``value`` and, where the frame has them,
``key``, ``headers`` and ``partition``, as Spark's own writer of topics takes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_provider_microbatch.runtime.copy_lines import WHOLE_JSON
from airflow_provider_microbatch.runtime.failure import BatchFailure
from airflow_provider_microbatch.runtime.quoting import quoted
from airflow_provider_microbatch.runtime.write import write as write_files

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

_BESIDE = ("key", "headers", "partition")
_TEXTS = ("string", "binary")
_HEADERS = "array<struct<key:string,value:binary>>"


def write(frame: DataFrame, arguments: Mapping[str, Any]) -> DataFrame | list[str]:
    """Write the records of a batch.

    :param frame: the frame that the transform returned.
    :param arguments: ``path`` (must not exist), ``format`` of the files, ``json`` (whether the value is a JSON object
        of all columns but those that a record has beside its value).
    :return: JSON lines, as :func:`airflow_provider_microbatch.runtime.write.write` returns them.
    :raises BatchFailure: if a column is missing, is one too many, or has a type that a record cannot have.
    """
    chosen = [column.alias(name) for name, column in _columns(frame, as_json=arguments["json"]).items()]
    return write_files(frame.select(*chosen), {name: arguments[name] for name in ("path", "format")})


def _columns(frame: DataFrame, *, as_json: bool) -> dict[str, Column]:
    from pyspark.sql import functions as F

    fields = {field.name: field.dataType for field in frame.schema.fields}
    problems = [f"the column {name!r} is there twice" for name in fields if frame.columns.count(name) > 1]
    rest = [name for name in fields if name not in _BESIDE]
    if as_json:
        problems += [] if rest else ["it has no column for the value"]
    else:
        problems += [] if "value" in fields else ["it lacks the column 'value'"]
        more = [name for name in rest if name != "value"]
        problems += [f"a record has no {', '.join(map(repr, more))}"] * bool(more)
    taken = {name: kind for name, kind in fields.items() if name in _BESIDE or (name == "value" and not as_json)}
    problems += [told for name, kind in taken.items() if (told := _misfit(name, kind)) is not None]
    if problems:
        raise BatchFailure(
            "result",
            f"the result is no records of a topic: {'; '.join(problems)}. A record has value (string or binary) and, "
            f"if wanted, key (string or binary), headers ({_HEADERS}) and partition (int); KafkaSink(…, value='json') "
            "makes the value of all other columns",
        )
    found = {name: _column(name, kind) for name, kind in taken.items()}
    if as_json:
        found["value"] = F.to_json(F.struct(*(F.col(quoted(name)) for name in rest)), WHOLE_JSON).cast("binary")
    return found


def _misfit(name: str, kind: DataType) -> str | None:
    text = kind.simpleString()
    if name == "headers":
        fits = text == _HEADERS
    elif name == "partition":
        fits = text in ("tinyint", "smallint", "int")
    else:
        fits = text in _TEXTS or text.startswith(("char(", "varchar("))
    return None if fits else f"the column {name!r} is of type {text}"


def _column(name: str, kind: DataType) -> Column:
    from pyspark.sql import functions as F

    column = F.col(quoted(name))
    return column if name == "headers" else column.cast("int" if name == "partition" else "binary")
