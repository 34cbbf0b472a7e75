"""Stateful pipelines, each with one that has the same operators or columns in another order."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from airflow_provider_microbatch.runtime.batch import Batch

if TYPE_CHECKING:
    import pandas
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming import StatefulProcessor

FILES = "FILES_BESIDE_STREAMS"
"""Environment variable with the folder of the files of :func:`beside_two_files`."""


def of_wide_rows(batch: Batch, names: tuple[str, str] = ("rows", "tens")) -> DataFrame:
    """Two sums by id, of columns that come last of many."""
    from pyspark.sql import functions as F

    many = [F.lit(number).alias(f"c{number}") for number in range(30)]
    added = {"rows": F.col("id"), "tens": F.col("id") * 10}
    return _sums(names, lambda name: batch.sources["orders"].select("id", *many, added[name].alias("added")))


def of_wide_rows_turned_round(batch: Batch) -> DataFrame:
    """The same, in the opposite order."""
    return of_wide_rows(batch, ("tens", "rows"))


def of_many_values(batch: Batch, names: tuple[str, str] = ("rows", "tens")) -> DataFrame:
    """Two sums by id, of an expression whose arguments differ in the last of many."""
    from pyspark.sql import functions as F

    none = [F.lit(None).cast("long")] * 30
    added = {"rows": F.col("id"), "tens": F.col("id") * 10}
    orders = batch.sources["orders"]
    return _sums(names, lambda name: orders.select("id", F.coalesce(*none, added[name]).alias("added")))


def of_many_values_turned_round(batch: Batch) -> DataFrame:
    """The same, in the opposite order."""
    return of_many_values(batch, ("tens", "rows"))


def of_functions(batch: Batch, names: tuple[str, str] = ("rows", "tens")) -> DataFrame:
    """Two sums by id, of what functions without a name make of the rows."""
    from pyspark.sql import functions as F

    added = {"rows": F.udf(lambda id: id, "long"), "tens": F.udf(lambda id: id * 10, "long")}
    return _sums(names, lambda name: batch.sources["orders"].select("id", added[name]("id").alias("added")))


def of_functions_turned_round(batch: Batch) -> DataFrame:
    """The same, in the opposite order."""
    return of_functions(batch, ("tens", "rows"))


def by_two_processors(batch: Batch, names: tuple[str, str] = ("rows", "tens")) -> DataFrame:
    """Two sums by id, kept by processors that keep the same types."""
    first, second = (
        batch.sources["orders"]
        .groupBy("id")
        .transformWithStateInPandas(_sum_of(name), "id long, of string, total long", "Update", "None")
        for name in names
    )
    return first.union(second)


def by_two_processors_turned_round(batch: Batch) -> DataFrame:
    """The same, in the opposite order."""
    return by_two_processors(batch, ("tens", "rows"))


def by_each_processor(batch: Batch, *, turned: bool = False) -> DataFrame:
    """A sum by id of what another processor tells of each id: both keep the same types."""
    by = batch.sources["orders"]
    for name in ("tens", "rows") if turned else ("rows", "tens"):
        by = by.groupBy("id").transformWithStateInPandas(
            _sum_of(name), "id long, of string, total long", "Update", "None"
        )
    return by


def _sum_of(name: str) -> StatefulProcessor:
    from pyspark.sql.streaming import StatefulProcessor

    class Sum(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.total = handle.getValueState("total", "total long")

        def handleInputRows(self, key: Any, rows: Iterator[pandas.DataFrame], timerValues: Any) -> Any:
            import pandas

            (total,) = self.total.get() or (0,)
            total += sum(len(frame) for frame in rows) * (10 if name == "tens" else 1)
            self.total.update((total,))
            yield pandas.DataFrame({"id": key[0], "of": [name], "total": [total]})

    return Sum()


def by_two_columns(batch: Batch, *, turned: bool = False) -> DataFrame:
    """Rows by two columns of one type, in one order whichever way they are grouped."""
    by = ["other", "id"] if turned else ["id", "other"]
    return _with_other(batch).groupBy(*by).count().select("id", "other", "count")


def by_two_columns_turned_round(batch: Batch) -> DataFrame:
    """The same, grouped in another order."""
    return by_two_columns(batch, turned=True)


def of_two_sums(batch: Batch, *, turned: bool = False) -> DataFrame:
    """Two sums of one type by id."""
    from pyspark.sql import functions as F

    sums = [F.sum("id").alias("ids"), F.sum("other").alias("others")]
    return _with_other(batch).groupBy("id").agg(*(reversed(sums) if turned else sums))


def of_two_sums_turned_round(batch: Batch) -> DataFrame:
    """The same, made in another order."""
    return of_two_sums(batch, turned=True)


def once_by_two_columns(batch: Batch, *, turned: bool = False) -> DataFrame:
    """Rows that are alike in two columns of one type once."""
    return _with_other(batch).dropDuplicates(["other", "id"] if turned else ["id", "other"]).select("id", "other")


def once_by_two_columns_turned_round(batch: Batch) -> DataFrame:
    """The same, compared in another order."""
    return once_by_two_columns(batch, turned=True)


def once_by_each(batch: Batch, *, turned: bool = False) -> DataFrame:
    """Rows that are new by a column, and of these the ones that are new by another."""
    first, second = ("other", "id") if turned else ("id", "other")
    return _with_other(batch).select("id", "other").dropDuplicates([first]).dropDuplicates([second])


def once_by_each_turned_round(batch: Batch) -> DataFrame:
    """The same, by the other column first."""
    return once_by_each(batch, turned=True)


def met_by_two_columns(batch: Batch, *, turned: bool = False) -> DataFrame:
    """Rows with others that are alike in two columns of one type."""
    from pyspark.sql import functions as F

    both = [F.expr("a.id % 10 = b.id % 10"), F.expr("a.other = b.other")]
    first, second = reversed(both) if turned else both
    orders = _with_other(batch)
    return orders.where("id < 10").alias("a").join(orders.where("id >= 10").alias("b"), first & second).select("a.id")


def met_by_two_columns_turned_round(batch: Batch) -> DataFrame:
    """The same, compared in another order."""
    return met_by_two_columns(batch, turned=True)


def met_with_columns(batch: Batch, *, turned: bool = False) -> DataFrame:
    """Small ids and the large ones, ten more, beside another column of their type."""
    from pyspark.sql import functions as F

    shown = ["other", "id"] if turned else ["id", "other"]
    small, large = (_with_other(batch).where(where).select(*shown) for where in ("id < 10", "id >= 10"))
    same = F.expr("a.id + 10 = b.id")
    return small.alias("a").join(large.alias("b"), same).select("a.id", "a.other")


def met_with_columns_turned_round(batch: Batch) -> DataFrame:
    """The same, with the columns of each side in another order."""
    return met_with_columns(batch, turned=True)


def _with_other(batch: Batch) -> DataFrame:
    return batch.sources["orders"].selectExpr("id", "id * 100 AS other")


def sums_shown(batch: Batch, *, turned: bool = False) -> DataFrame:
    """Sums and a mean by window, and a join's sides with columns that nobody reads, shown in one order or another: what
    is kept is the same."""
    from pyspark.sql import functions as F

    orders = batch.sources["orders"].withWatermark("at", "30 seconds").selectExpr("id", "at", "id * 100 AS other")
    unread = ["id", "other", "at"] if turned else ["id", "at", "other"]
    small, large = (orders.where(where).select(*unread) for where in ("id < 10", "id >= 10"))
    within = F.expr("a.id + 10 = b.id AND b.at BETWEEN a.at AND a.at + INTERVAL 1 MINUTE")
    met = small.alias("a").join(large.alias("b"), within).select("a.id", "a.at")
    shown = [F.col("window.start").alias("start"), F.col("ids"), F.col("rows")]
    sums = F.sum("id").alias("ids"), F.count("*").alias("rows")
    by_minute = met.groupBy(F.window("at", "1 minute"), "id").agg(*sums)
    return by_minute.select(*(shown[1:] + shown[:1] if turned else shown))


def sums_shown_turned_round(batch: Batch) -> DataFrame:
    """The same, shown in another order."""
    return sums_shown(batch, turned=True)


def sums_of_sides(batch: Batch, *, turned: bool = False) -> DataFrame:
    """A sum of each side of a join, whose columns have one name."""
    from pyspark.sql import functions as F

    orders = batch.sources["orders"].withWatermark("at", "30 seconds")
    small, large = orders.where("id < 10").alias("a"), orders.where("id >= 10").alias("b")
    within = F.expr("a.id + 10 = b.id AND b.at BETWEEN a.at AND a.at + INTERVAL 1 MINUTE")
    sums = [F.sum("a.id").alias("small"), F.sum("b.id").alias("large")]
    return small.join(large, within).groupBy(F.window("a.at", "1 minute")).agg(*(reversed(sums) if turned else sums))


def sums_of_sides_turned_round(batch: Batch) -> DataFrame:
    """The same, in another order."""
    return sums_of_sides(batch, turned=True)


def sums_by_name(batch: Batch) -> DataFrame:
    """A sum of each of two streams that are joined, in the order of their names."""
    from pyspark.sql import functions as F

    (other,) = set(batch.sources) - {"payments"}
    first, second = (
        batch.sources[name].withWatermark("at", "30 seconds").selectExpr("at", f"id AS {name}")
        for name in ("payments", other)
    )
    sums = [F.sum(name).alias(f"sum{turn}") for turn, name in enumerate(sorted(batch.sources))]
    return first.join(second, "at").groupBy(F.window("at", "1 minute")).agg(*sums)


def beside_two_files(batch: Batch, names: tuple[str, str] = ("rows", "tens")) -> DataFrame:
    """Two sums by id, of what a file of each says to a row."""
    from pyspark.sql import functions as F

    orders, files = batch.sources["orders"], batch.spark.read.schema("added long")
    return _sums(names, lambda name: orders.crossJoin(F.broadcast(files.json(f"{os.environ[FILES]}/{name}.json"))))


def beside_two_files_turned_round(batch: Batch) -> DataFrame:
    """The same, in the opposite order."""
    return beside_two_files(batch, ("tens", "rows"))


def by_two_made(batch: Batch, *, turned: bool = False) -> DataFrame:
    """Rows by what is made of two columns, under names that stay where they are."""
    from pyspark.sql import functions as F

    by = [F.expr("id % 7"), F.expr("other % 11")]
    first, second = reversed(by) if turned else by
    return _with_other(batch).groupBy(first.alias("one"), second.alias("two")).count()


def by_two_made_turned_round(batch: Batch) -> DataFrame:
    """The same, grouped in another order."""
    return by_two_made(batch, turned=True)


def of_two_fields(batch: Batch, *, turned: bool = False) -> DataFrame:
    """Sums of a field of one name of two structs."""
    from pyspark.sql import functions as F

    orders = _with_other(batch).selectExpr("id", "struct(id AS it) AS a", "struct(other AS it) AS b")
    sums = [F.sum("a.it").alias("ids"), F.sum("b.it").alias("others")]
    return orders.groupBy("id").agg(*(reversed(sums) if turned else sums))


def of_two_fields_turned_round(batch: Batch) -> DataFrame:
    """The same, in another order."""
    return of_two_fields(batch, turned=True)


def beside_growing_tables(batch: Batch) -> DataFrame:
    """A join whose sides are beside tables of which there is one more in each batch."""
    from functools import reduce

    from pyspark.sql import DataFrame
    from pyspark.sql import functions as F

    tables = [batch.spark.range(10).selectExpr("id + 90 AS more") for _ in range(batch.id + 1)]
    orders = batch.sources["orders"].withWatermark("at", "30 seconds")
    one = (
        F.broadcast(reduce(DataFrame.union, tables)).join(orders.where("id < 10"), F.expr("more = id + 90")).alias("a")
    )
    within = F.expr("a.id + 10 = b.id AND b.at BETWEEN a.at AND a.at + INTERVAL 1 MINUTE")
    return one.join(orders.where("id >= 10").alias("b"), within).selectExpr(
        "a.id", "a.at", "b.id AS other", "b.at AS then"
    )


def both_ways(batch: Batch, *, turned: bool = False) -> DataFrame:
    """Edges between two numbers, counted by both ends, whichever branch of the union comes first."""
    rows = _with_other(batch)
    there, back = rows.selectExpr("id AS a", "other AS b"), rows.selectExpr("other AS a", "id AS b")
    first, second = (back, there) if turned else (there, back)
    return first.union(second).groupBy("a", "b").count()


def both_ways_turned_round(batch: Batch) -> DataFrame:
    """The same, with the branches in another order."""
    return both_ways(batch, turned=True)


def of_filled_columns(batch: Batch, *, turned: bool = False) -> DataFrame:
    """Rows by two columns that one branch of a union does not have."""
    rows = _with_other(batch)
    by = ["other", "more"] if turned else ["more", "other"]
    whole = rows.selectExpr("id", "other", "other + 1 AS more")
    return rows.select("id").unionByName(whole, allowMissingColumns=True).groupBy(*by).count()


def of_filled_columns_turned_round(batch: Batch) -> DataFrame:
    """The same, grouped in another order."""
    return of_filled_columns(batch, turned=True)


def of_a_long_chain(batch: Batch) -> DataFrame:
    """A column that is made of itself three times over, many times."""
    from pyspark.sql import functions as F

    rows = batch.sources["orders"]
    for step in range(25):
        again = F.when(F.col("id") > step, F.col("id") * 2).otherwise(F.col("id") + step) % 1000
        rows = rows.withColumn("id", again)
    return rows.groupBy("id").count()


def _sums(names: tuple[str, str], rows: Callable[[str], DataFrame]) -> DataFrame:
    """Two sums by id.

    :param rows: tells what each is of, by its name.
    """
    from pyspark.sql import functions as F

    first, second = (
        rows(name).groupBy("id").agg(F.sum("added").alias("total")).select("id", F.lit(name).alias("of"), "total")
        for name in names
    )
    return first.union(second)
