"""Transforms for tests of tables; imported by name, as a user's module is."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from airflow_provider_microbatch.runtime.batch import Batch


def doubled(batch: Batch) -> DataFrame:
    return batch.sources["orders"].select((F.col("id") * 2).alias("id"))


def with_everything(batch: Batch) -> DataFrame:
    frame = batch.sources["orders"]
    return frame.withColumns(
        {
            "a note": F.lit("it's"),
            "tags": F.array(F.lit("x")),
            "at": F.lit(batch.timestamp),
            "price": F.lit("1.5").cast("decimal(10,2)"),
            "inner": F.struct(F.col("id").alias("number")),
        }
    )


LANDS = ("a=b/c %", "ü 'q' \\", None, "a", "A", " ${env:HOME} $")


def in_lands(batch: Batch) -> DataFrame:
    """Each id in a land, a day and a number of its own."""
    land = F.element_at(F.array(*map(F.lit, LANDS)), (1 + (F.col("id") - 1) % len(LANDS)).cast("int"))
    number = F.when(F.col("id") == 6, -1).otherwise(1)
    return by_day(batch).withColumns({"Land": land, "n": number})


def none_of_them(batch: Batch) -> DataFrame:
    return in_lands(batch).where("false")


def by_day(batch: Batch) -> DataFrame:
    """Each id on the day of January that it names."""
    return batch.sources["orders"].withColumn("day", F.make_date(F.lit(2026), F.lit(1), F.col("id").cast("int")))


def by_day_one(batch: Batch) -> DataFrame:
    """Each id on its day, with the number 1."""
    return by_day(batch).withColumn("n", F.lit(1))
