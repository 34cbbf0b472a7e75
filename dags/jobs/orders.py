"""The transform of each batch of orders. It runs in Spark's driver, so it imports PySpark and nothing else."""

from __future__ import annotations

from typing import Any

from pyspark.sql import functions as F


def transform(batch: Any) -> Any:
    """Add to each order a whole number of cents and the day on which it was placed; leave the other columns as is."""
    return (
        batch.sources["orders"]
        .withColumn("cents", F.round(F.col("amount") * 100).cast("long"))
        .withColumn("day", F.to_date("ts"))
    )
