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
