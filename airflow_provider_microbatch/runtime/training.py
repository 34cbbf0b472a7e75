"""The transform whose classes a class archive holds: it uses what batches usually need of Spark."""

from __future__ import annotations

import tempfile
from functools import reduce
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from airflow_provider_microbatch.runtime.batch import Batch

FORMATS = ("json", "csv", "parquet", "orc")


def transform(batch: Batch) -> DataFrame:
    """Read and write each format; expressions, a Python function, a window, an aggregate, joins, duplicates.

    :param batch: with one source ``rows``: ``id``, ``customer``, ``amount``, ``ts``.
    """
    from pyspark.sql import DataFrame, Window
    from pyspark.sql import functions as F

    rows = batch.sources["rows"]
    frames = []
    for name in FORMATS:
        path = tempfile.mkdtemp()  # below the folder that the trainer removes
        rows.write.mode("append").format(name).save(path)
        frames.append(batch.spark.read.schema(rows.schema).format(name).load(path))
    shout = F.udf(lambda text: text.upper(), "string")
    united = (
        reduce(DataFrame.unionByName, frames)
        .withColumn("cents", F.round(F.col("amount") * 100).cast("long"))
        .withColumn("day", F.date_trunc("day", "ts"))
        .withColumn("kind", F.when(F.col("customer").like("c1%"), "one").otherwise(F.lower("customer")))
        .withColumn("tags", F.split("customer", ""))
        .withColumn("shouted", shout("customer"))
    )
    totals = united.groupBy("customer").agg(F.sum("amount").alias("total"), F.countDistinct("id").alias("orders"))
    newest = F.row_number().over(Window.partitionBy("id").orderBy(F.col("ts").desc()))
    latest = united.withColumn("place", newest).where("place = 1").drop("place").dropDuplicates(["id"])
    return latest.join(totals, "customer").join(united.select("id").hint("merge"), "id", "left_semi")
