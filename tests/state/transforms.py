"""What the stateful pipelines of these tests do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider_microbatch.runtime.batch import Batch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def counts(batch: Batch) -> DataFrame:
    """Rows by id, so far."""
    return batch.sources["orders"].groupBy("id").count()


def counts_twice(batch: Batch) -> DataFrame:
    """The same of rows that are all there twice."""
    orders = batch.sources["orders"]
    return orders.unionAll(orders).groupBy("id").count()


def by_minute(batch: Batch) -> DataFrame:
    """Different rows by minute, once the watermark has passed it."""
    from pyspark.sql import functions as F

    rows = batch.sources["orders"].withWatermark("at", "30 seconds").dropDuplicates(["id", "at"])
    by = rows.groupBy(F.window("at", "1 minute")).count()
    return by.select(F.col("window.start").alias("minute"), F.col("count").alias("rows"))


def joined(batch: Batch) -> DataFrame:
    """Payments with their orders, whichever comes first."""
    return batch.sources["payments"].join(batch.sources["orders"], "id")


def no_stream(batch: Batch) -> DataFrame:
    """A frame that is none of the streams."""
    return batch.spark.range(1)


def with_processor(batch: Batch) -> DataFrame:
    """State of a processor of the user's own, below another operator."""
    from pyspark.sql.streaming import StatefulProcessor

    class Same(StatefulProcessor):
        def init(self, handle: Any) -> None:
            pass

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
            yield from rows

    by_id = batch.sources["orders"].groupBy("id")
    return by_id.transformWithStateInPandas(Same(), "id long", "Update", "None").where("id > 0")
