"""Settings of Spark's by which files of Parquet keep all that a frame has, and tell everybody the same: those of tables
with a log, whose readers know nothing of what is Spark's own, and those that a job reads again itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SETTINGS = {
    # In milliseconds two times would be one. Other programs, which merge files, read 96-bit times as nanoseconds: these
    # end in the year 2262, and wrap around.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # Only Spark knows, by a key of its own in the file, that days of before 1582-10-15 are in the Julian calendar.
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    # A column may bring the id that it had in another table. Where a file has one id, Iceberg knows no column by name.
    "spark.sql.parquet.fieldId.write.enabled": "false",
}


@contextmanager
def kept_whole(spark: SparkSession) -> Iterator[None]:
    """While it is entered, the session writes by these settings, whatever those of the pipeline are."""
    conf = spark.conf
    before = {name: str(conf.get(name)) for name in _SETTINGS}
    try:
        for name, value in _SETTINGS.items():
            conf.set(name, value)
        yield
    finally:
        for name, value in before.items():
            conf.set(name, value)
