"""Computes a table's partition values from a column in Spark: integers counted from 1970 on in UTC, whatever the
session's time zone (https://iceberg.apache.org/spec/#partition-transforms)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_microbatch.runtime.failure import BatchFailure

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_DAY, _HOUR = 86_400_000_000, 3_600_000_000


def column(frame: DataFrame, transform: str, name: str) -> Column:
    """A column whose values are equal exactly where rows belong to the same partition.

    :param transform: ``identity``, ``year``, ``month``, ``day`` or ``hour``.
    :raises BatchFailure: if the frame has no such column, or the column has another type.
    """
    from pyspark.sql import functions as F

    kinds = {field.name: field.dataType.simpleString() for field in frame.schema.fields}
    kind = kinds.get(name)
    if kind is None:
        raise BatchFailure(
            "result",
            f"the table is partitioned by {name}, which the transform's result does not have; its columns are: "
            f"{', '.join(kinds)}",
        )
    quoted = "`" + name.replace("`", "``") + "`"
    if transform == "identity":
        # Spark takes an empty text, and the name of its folder of rows without a value, for no value: such rows would
        # lie in the file of those without one, of which the table knows one value alone, and readers would miss rows.
        return F.expr(f"concat('_', {quoted})" if kind == "string" else quoted)
    if kind not in ("date", "timestamp", "timestamp_ntz") or (transform, kind) == ("hour", "date"):
        raise BatchFailure("result", f"the table is partitioned by {transform}({name}), and {name} is a {kind}")
    days = {
        "date": quoted,
        # By integers: Spark's division rounds, and a cast to a date uses the session's time zone.
        "timestamp": f"date_from_unix_date(int({_floored(f'unix_micros({quoted})', _DAY)}))",
        "timestamp_ntz": f"cast({quoted} AS date)",
    }[kind]
    if transform == "hour" and kind == "timestamp":
        return F.expr(_floored(f"unix_micros({quoted})", _HOUR))
    return F.expr(
        {
            "year": f"year({days})",
            "month": f"year({days}) * 12 + month({days})",
            "day": f"unix_date({days})",
            "hour": f"unix_date({days}) * 24 + hour({quoted})",
        }[transform]
    )


def _floored(number: str, unit: int) -> str:
    return f"(({number} - pmod({number}, {unit})) div {unit})"
