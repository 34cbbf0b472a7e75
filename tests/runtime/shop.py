"""Transforms for tests of the runtime; imported by name, as a user's module is."""

from __future__ import annotations

import os
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from airflow_provider_microbatch.runtime.batch import Batch


def keep(batch: Batch) -> DataFrame:
    return batch.sources["orders"]


def of_all_kinds(batch: Batch) -> DataFrame:
    return batch.sources["orders"].select(
        "id",
        "note",
        F.lit(True).alias("yes"),
        F.lit(1.5).cast("decimal(10,2)").alias("amount"),
        F.to_date(F.lit("2026-01-02")).alias("day"),
        F.timestamp_seconds(F.lit(1_700_000_000) + F.col("id")).alias("at"),
        F.to_timestamp(F.lit("2999-12-31T10:00:00Z")).alias("far"),
        F.array(F.struct(F.col("id").alias("a"), F.col("note").alias("b"))).alias("inner"),
        F.create_map(F.lit("k"), F.col("note")).alias("by_key"),
        F.encode("note", "utf-8").alias("raw"),
        F.lit(0.5).alias("half"),
    )


WHATEVER_JSON_TAKES = """SELECT 1 AS id, timestamp_micros(1700000000123456) AS at,
    timestamp_micros(-5364662400000001) AS before_standard_time, timestamp_micros(253402300800000001) AS far,
    timestamp_micros(-62200000000000001) AS before_christ, timestamp_micros(null) AS never,
    timestamp_ntz'2023-11-14 22:13:20.123456' AS wall, timestamp_ntz'+10001-01-01 00:00:00.000001' AS far_wall,
    timestamp_ntz'-0044-03-15 00:00:00.000001' AS old_wall, date'+10001-01-01' AS far_day, date'-0044-03-15' AS ides,
    cast('12345678901234567890.123456789012345678' AS decimal(38,18)) AS digits,
    cast('0.00000001' AS decimal(38,18)) AS little, double('NaN') AS no_number, double('Infinity') AS endless,
    float('-Infinity') AS endless_below, double('-0.0') AS below_zero, double(4.9E-324) AS tiny, float(0.1) AS tenth,
    double(0.1) + double(0.2) AS sum, 9223372036854775807 AS most, tinyint(-128) AS least, X'0001c3a9' AS bytes,
    X'' AS no_bytes, '' AS empty, 'a"b\\\\c\\n\\u0000é' AS text, true AS yes, array(timestamp_micros(1), null) AS times,
    array() AS none, map('k', timestamp_micros(1), 'null', null) AS by_key,
    named_struct('at', timestamp_micros(5), 'null', cast(null AS int)) AS inner, cast(null AS struct<a:int>) AS nothing,
    interval '1 02:03:04.000005' day to second AS lasted"""


def of_whatever_json_takes(batch: Batch) -> DataFrame:
    return batch.spark.sql(WHATEVER_JSON_TAKES)


OF_TIMES = """SELECT timestamp_micros(1700000000123456) AS at, timestamp_ntz'2023-11-14 22:13:20.123456' AS wall
    UNION ALL SELECT timestamp_seconds(1), timestamp_ntz'1970-01-01 00:00:00'"""


def of_kinds_of_iceberg(batch: Batch) -> DataFrame:
    """Two days by UTC, one by the clock of Berlin; one row without a time."""
    return of_all_kinds(batch).select(
        "*",
        F.col("id").cast("byte").alias("tiny"),
        F.col("id").cast("short").alias("small"),
        F.to_timestamp_ntz(F.lit("1960-01-02T03:04:05")).alias("wall"),
        F.when(F.col("id") == 2, F.lit(float("nan"))).otherwise(F.col("id")).cast("float").alias("ratio"),
        F.when(F.col("id") < 3, F.expr("timestamp_micros(1767308400000000 - id * 3600000000)")).alias("happened"),
    )


def with_ids_of_another_table(batch: Batch) -> DataFrame:
    """As Spark reads a Parquet file of Iceberg's, where it is told to look for ids: other columns have them here."""
    ids = {"id": 2, "note": 1}
    return batch.sources["orders"].select(
        *(F.col(name).alias(name, metadata={"parquet.field.id": id}) for name, id in ids.items())
    )


def before_the_calendar_was_changed(batch: Batch) -> DataFrame:
    return batch.sources["orders"].select(
        "id", F.expr("DATE '1500-01-01'").alias("day"), F.expr("TIMESTAMP '1500-01-01T00:00:00Z'").alias("at")
    )


def splits(batch: Batch) -> dict[str, DataFrame]:
    orders = batch.sources["orders"]
    return {"notes": orders.where("id = 3").select("note"), "orders": orders.select("id")}


def splits_what_it_keeps(batch: Batch) -> dict[str, DataFrame]:
    return splits(replace(batch, sources={"orders": batch.sources["orders"].persist()}))


def leaves_a_sink_out(batch: Batch) -> dict[str, DataFrame]:
    return {"orders": batch.sources["orders"]}


def names_another_sink(batch: Batch) -> dict[str, DataFrame]:
    return {"orders": batch.sources["orders"], "note": batch.sources["orders"]}


def returns_none_for_a_sink(batch: Batch) -> dict[str, Any]:
    return {"orders": batch.sources["orders"], "notes": None}


def raises(batch: Batch) -> DataFrame:
    return broken_helper(batch)


def broken_helper(batch: Batch) -> DataFrame:
    return batch.sources["orders"].select("no_such_column")


def exits(batch: Batch) -> DataFrame:
    raise SystemExit(0)


def wrong_source(batch: Batch) -> DataFrame:
    return batch.sources["order"]


def returns_none(batch: Batch) -> None:
    batch.sources["orders"].select("id")


def returns_pandas(batch: Batch) -> Any:
    return batch.sources["orders"].toPandas()


def returns_a_list(batch: Batch) -> list[Any]:
    return batch.sources["orders"].collect()


def takes_our_column(batch: Batch) -> DataFrame:
    return batch.sources["orders"].withColumn("Batch_ID", F.lit(1))


def fails_in_a_udf(batch: Batch) -> DataFrame:
    @F.udf("long")
    def divide(number: int) -> int:
        return number // 0

    return batch.sources["orders"].select(divide("id").alias("id"))


def divides_by_zero(batch: Batch) -> DataFrame:
    return batch.sources["orders"].withColumn("id", F.expr("id / (id - 1)").cast("long"))


def has_a_column_twice(batch: Batch) -> DataFrame:
    return batch.sources["orders"].selectExpr("id", "id AS ID")


def has_an_interval(batch: Batch) -> DataFrame:
    return batch.sources["orders"].selectExpr("id", "make_interval(1) AS note")


def ignores_its_input(batch: Batch) -> DataFrame:
    return batch.spark.range(2).withColumn("note", F.lit("made"))


def uses_it_twice(batch: Batch) -> DataFrame:
    rows = batch.sources["orders"]
    return rows.union(rows).union(rows.join(rows.select("id"), "id"))


def counts_it_first(batch: Batch) -> DataFrame:
    rows = batch.sources["orders"]
    rows.first()
    return rows


def empties_it(batch: Batch) -> DataFrame:
    return batch.sources["orders"].where("id < 0")


def wants_another(batch: Batch) -> DataFrame:
    batch.require_another_batch()
    assert batch.timestamp.tzinfo is not None
    return batch.sources["orders"].withColumn("at", F.lit(batch.timestamp.isoformat()))


def says_the_watermark(batch: Batch) -> DataFrame:
    return batch.sources["orders"].withColumn("note", F.lit(str(batch.watermark)))


def shows_the_files(batch: Batch) -> DataFrame:
    return batch.sources["orders"].select("id", F.col("_metadata.file_name").alias("note"))


def never_ends(batch: Batch) -> DataFrame:
    """Its tasks wait for ever, in short steps, as Spark can interrupt them; the first one leaves a mark."""
    mark = batch.spark.conf.get("spark.microbatch.test.mark")

    @F.udf("long")
    def wait(value: int) -> int:
        Path(mark).touch()
        while True:
            time.sleep(0.05)

    return batch.sources["orders"].withColumn("id", wait("id"))


def keep_orders(batch: Batch) -> DataFrame:
    """Of a flow: its one input, by the name of the node."""
    return batch.sources["orders"]


def pair(batch: Batch) -> DataFrame:
    """Of a flow: people with an order, or all of them if there is none."""
    people = batch.sources["people"]
    return people.join(batch.sources["kept"].select("id"), "id") if "kept" in batch.sources else people


def only_ids(batch: Batch) -> DataFrame:
    return batch.sources["orders"].select("id")


def the_first(batch: Batch) -> DataFrame:
    return batch.sources["orders"].select("id").limit(1)


def with_changing_amounts(batch: Batch) -> DataFrame:
    """The first ten rows that are computed are below zero, and none that is computed later."""
    handle, path = tempfile.mkstemp()
    os.close(handle)

    @F.udf("double")
    def amount() -> float:
        with Path(path).open("ab") as calls:
            calls.write(b".")
            return -1.0 if calls.tell() <= 10 else 1.0

    return batch.sources["orders"].select("id", amount.asNondeterministic()().alias("amount"))


def mends(batch: Batch) -> DataFrame:
    """Of dead letters: numbers in words are read, and a sign is taken for a slip."""
    letters = batch.sources["dead_letters"]
    number = F.get_json_object("raw", "$.id")
    mended = F.when(number == "three", F.lit(3)).when(number == "-2", F.lit(2)).otherwise(number.cast("long"))
    return letters.select(mended.cast("long").alias("id"))


def only_some(batch: Batch) -> DataFrame:
    return batch.sources["orders"].select("id", "amount")


def as_they_are(batch: Batch) -> DataFrame:
    """Of dead letters: the rows that they were."""
    row = F.from_json("raw", "n long, id long, amount double, name string")
    return batch.sources["dead_letters"].select(row.alias("row")).select("row.*")


def trims(batch: Batch) -> DataFrame:
    """Of dead letters: the rows that they were, cut to what a table takes; but for one without a name."""
    rows = as_they_are(batch)
    return rows.withColumns({"id": F.least("id", F.lit(9)), "amount": F.least(F.round("amount", 1), F.lit(9.0))})


def to_each(batch: Batch) -> dict[str, DataFrame]:
    return dict.fromkeys(("delta", "postgres", "all"), batch.sources["orders"])
