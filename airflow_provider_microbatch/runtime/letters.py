"""Dead letters: the rows of a batch that its tables do not get, as rows of a table of their own."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from airflow_provider_microbatch.runtime.access import options_of
from airflow_provider_microbatch.runtime.files import ReadResult
from airflow_provider_microbatch.runtime.job import Job
from airflow_provider_microbatch.runtime.quoting import quoted
from airflow_provider_microbatch.runtime.write import times_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

UNPARSED, REFUSED, UNFIT = "unparsed", "refused", "unfit"
"""Values of the column ``kind``: a record of a source that is no row of its schema; a row of the result that an
expectation refuses; one that the table cannot take."""

COLUMNS = ("batch", "kind", "source", "sink", "place", "reason", "raw", "columns", "read_at")
"""Columns of the table: ``batch`` is lane and id, as in ``live/7``; ``source`` is the name of the row's source (if the
pipeline has several, the names of all); ``sink`` is the name of the sink that the row was meant for; ``place`` is the
row's file, or another description of its place; ``raw`` is the record as it was read, or the row of the result as JSON
with ``columns`` as its schema; ``read_at`` is the batch's timestamp."""

_WHOLE = {"ignoreNullFields": "false", "timeZone": "UTC"}
"""``from_json`` of ``raw`` by ``columns`` is the row, and its times are: else a replay puts another into the table.
By UTC, since offsets are written without seconds, which those of before standard time have."""
_LONGEST = 300
"""Length of an example, in characters, at most."""
_WORD, _DIGIT = re.compile(r"[^\W\d_]"), re.compile(r"\d")


def unparsed(frame: DataFrame, job: Job, *, source: str, column: str, place: str) -> DataFrame:
    """The dead letters of a source.

    :param frame: all rows of the source, before the transform.
    :param column: the column that has the text of rows that do not parse.
    :param place: a SQL expression for the place of a row; may be empty.
    """
    from pyspark.sql import functions as F

    return frame.where(_named(column).isNotNull()).select(
        *_letter(
            job,
            kind=F.lit(UNPARSED),
            source=source,
            sink=None,
            place=place,
            reason=F.lit(f"source {source!r}: it does not parse by the source's schema"),
            raw=_named(column),
            columns=None,
        )
    )


def refused(
    frame: DataFrame, job: Job, *, stage: str, columns: list[str], kind: Column, reason: Column, place: str
) -> DataFrame:
    """The dead letters of a table.

    :param frame: the rows that the table does not get.
    :param columns: the columns that the transform returned.
    :param kind: which kind of letter each is.
    :param place: a SQL expression for the place of a row, if the frame knows it; may be empty.
    """
    from pyspark.sql import functions as F

    schema = frame.select(*map(_named, columns)).schema
    written = ", ".join(f"{quoted(field.name)} {field.dataType.simpleString()}" for field in schema.fields)
    return frame.select(
        *_letter(
            job,
            kind=kind,
            source=", ".join(job.sources),
            sink=stage or None,
            place=place,
            reason=reason,
            raw=F.to_json(F.struct(*map(_named, columns)), {**_WHOLE, **times_of(frame.sparkSession)}),
            columns=written,
        )
    )


def _letter(
    job: Job,
    *,
    kind: Column,
    source: str,
    sink: str | None,
    place: str,
    reason: Column,
    raw: Column,
    columns: str | None,
) -> Iterable[Column]:
    from pyspark.sql import functions as F

    text = {
        "batch": F.lit(f"{job.lane}/{job.batch_id}"),
        "kind": kind,
        "source": F.lit(source),
        "sink": F.lit(sink),
        "place": F.expr(place) if place else F.lit(None),
        "reason": reason,
        "raw": raw,
        "columns": F.lit(columns),
    }
    return (
        *(column.cast("string").alias(name) for name, column in text.items()),
        F.expr(f"timestamp_millis({job.batch_timestamp_ms})").alias("read_at"),
    )


def shape(raw: str) -> str:
    """The form of a record without its content: letters become ``x`` and digits ``9``, and a JSON object keeps its
    names. Errors are stored and logged, and must not quote personal data."""
    try:
        value = json.loads(raw)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        return _veiled(raw)[:_LONGEST]
    return ", ".join(f"{name}={_veiled(json.dumps(one, ensure_ascii=False))}" for name, one in value.items())[:_LONGEST]


def _veiled(text: str) -> str:
    if text in ("null", "true", "false"):
        return text
    return _DIGIT.sub("9", _WORD.sub("x", text))


def _named(column: str) -> Column:
    from pyspark.sql import functions as F

    return F.col(quoted(column))


def read(spark: SparkSession, arguments: Mapping[str, Any]) -> ReadResult:
    """Read the dead letters of batches.

    :param arguments: ``parts``: for each batch ``lane`` and ``batch_id``, and where its rows are: ``format``, ``base``,
        ``paths`` and ``options``, and the arguments of :func:`~airflow_provider_microbatch.runtime.access.options_of`;
        and ``epoch``, the attempt that they are of.
    """
    from pyspark.sql import functions as F

    kinds = ", ".join(f"{name} {'timestamp' if name == 'read_at' else 'string'}" for name in COLUMNS)
    frame: DataFrame = spark.createDataFrame([], kinds)
    for part in arguments["parts"]:
        if not part["paths"]:
            continue
        reader = spark.read.format(part["format"]).options(**part["options"], **options_of(part))
        reader = reader.option("basePath", part["base"])
        # A letter that cannot be read must fail the read, not count as an empty row.
        reader = reader.option("mode", "FAILFAST").option("ignoreCorruptFiles", "false")
        rows = reader.option("ignoreMissingFiles", "false").schema(f"{kinds}, lane string, batch_id bigint")
        own = (F.col("lane") == part["lane"]) & (F.col("batch_id") == part["batch_id"])
        frame = frame.unionByName(rows.load(list(part["paths"])).where(own).select(*COLUMNS))
    epochs = {f"{part['lane']}/{part['batch_id']}": part.get("epoch") for part in arguments["parts"]}
    return ReadResult(frame=frame, told={"epochs": epochs}, place="place")
