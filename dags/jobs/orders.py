"""What is done to each batch of orders. Runs in Spark's driver, so it imports PySpark and nothing else."""

from __future__ import annotations

from typing import Any

from pyspark.sql import functions as F


def transform(batch: Any) -> Any:
    """Orders with a whole number of cents and the day they were placed; the order itself is left as it was."""
    return (
        batch.sources["orders"]
        .withColumn("cents", F.round(F.col("amount") * 100).cast("long"))
        .withColumn("day", F.to_date("ts"))
    )
