"""Operators that keep state, and the columns by which they keep it, looked at in Spark's plan alone: whose order has
changed, and who is only said anew.

That Spark mixes the rows of those that change places, ``test_two_streams.py`` holds on batches.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_microbatch.runtime.failure import BatchFailure
from airflow_provider_microbatch.runtime.kept_columns import kept_columns
from airflow_provider_microbatch.runtime.other_state import (
    columns_told,
    refuse_moved_columns,
    refuse_moved_state,
    refuse_passed_over,
)
from airflow_provider_microbatch.runtime.query_plan import SOURCE, Query
from tests.state import exchanged, transforms
from tests.state.exchanged import FILES
from tests.support.local_spark import local_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SCHEMA = "id long, other long, at timestamp, some array<long>, more array<long>"


@dataclass(frozen=True)
class Looked:
    """A batch that is looked at, as far as these transforms ask for it."""

    sources: Mapping[str, DataFrame]
    id: int
    spark: SparkSession


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    with local_spark() as session:
        yield session


def batch_of(spark: SparkSession, folder: Path, *names: str, id: int = 7) -> Looked:
    """A batch of empty sources."""
    for name in names:
        (folder / name).mkdir(exist_ok=True)
    read = {name: spark.readStream.schema(SCHEMA).option(SOURCE, name).json(str(folder / name)) for name in names}
    return Looked(read, id, spark)


def placed(frame: DataFrame) -> list[Any]:
    """The places of a query's operators, as its batch tells them to the next one."""
    query = Query(frame)
    with query.told_in_full():
        told: list[Any] = json.loads(json.dumps(query.places()))
    return told


def look(frame: DataFrame, **called: str) -> list[list[list[str]]]:
    """The columns of a query, as its batch finds them."""
    with Query(frame).told_in_full():
        found = kept_columns(frame, called=called)
    assert found is not None
    assert any(names for place in found for names in place)
    return found


def of_lambdas(batch: Looked, *, turned: bool = False) -> DataFrame:
    """Two sums of what a lambda function makes of an array; PySpark numbers its variables as they come."""
    from pyspark.sql import functions as F

    columns = ["more", "some"] if turned else ["some", "more"]
    sums = [F.sum(F.aggregate(name, F.lit(0).cast("long"), lambda a, x: a + x)).alias(name) for name in columns]
    return batch.sources["orders"].groupBy("id").agg(*sums)


def of_the_batch(batch: Looked, *, turned: bool = False) -> DataFrame:
    """Two sums by what each batch writes into them."""
    from pyspark.sql import functions as F

    columns = ["other", "id"] if turned else ["id", "other"]
    return batch.sources["orders"].groupBy("at").agg(*(F.sum(F.col(name) + batch.id).alias(name) for name in columns))


def of_the_clock(batch: Looked, *, turned: bool = False) -> DataFrame:
    """Two sums by the time of day, which Spark's optimizer writes into them."""
    from pyspark.sql import functions as F

    columns = ["other", "id"] if turned else ["id", "other"]
    return (
        batch.sources["orders"].groupBy("at").agg(*(F.sum(F.expr(f"unix_micros(now()) - {name}")) for name in columns))
    )


def of_the_batch_at_length(batch: Looked, *, turned: bool = False) -> DataFrame:
    """The same, of texts that are too long to be told as they are."""
    from pyspark.sql import functions as F

    columns = ["other", "id"] if turned else ["id", "other"]
    steps = " + ".join(f"abs({{0}} * {number})" for number in range(100))
    made = [F.expr(steps.format(f"({name} + {batch.id})")).alias(f"{name}s") for name in columns]
    return (
        batch.sources["orders"]
        .select("at", *made)
        .groupBy("at")
        .agg(*(F.sum(f"{name}s").alias(name) for name in columns))
    )


def by_exploded(batch: Looked, *, turned: bool = False) -> DataFrame:
    """Rows by elements of two arrays, under names that stay where they are."""
    from pyspark.sql import functions as F

    first, second = ("more", "some") if turned else ("some", "more")
    one = batch.sources["orders"].select(F.explode(first).alias("x"), second)
    return one.select("x", F.explode(second).alias("y")).groupBy("x", "y").count()


def by_aggregates(batch: Looked, *, turned: bool = False) -> DataFrame:
    """Windows by two sums of theirs, under names that stay where they are."""
    from pyspark.sql import functions as F

    names = ["y", "x"] if turned else ["x", "y"]
    sums = [F.sum(column).alias(name) for column, name in zip(("id", "other"), names, strict=True)]
    by_minute = batch.sources["orders"].withWatermark("at", "1 minute").groupBy(F.window("at", "1 minute")).agg(*sums)
    return by_minute.groupBy("window", "x", "y").count()


def by_cube(batch: Looked, *, turned: bool = False) -> DataFrame:
    """Rows by two columns and by each of them, under names that stay where they are."""
    first, second = ("other", "id") if turned else ("id", "other")
    return batch.sources["orders"].selectExpr(f"{first} AS x", f"{second} AS y").cube("x", "y").count()


def met_crosswise(batch: Looked, *, turned: bool = False) -> DataFrame:
    """Rows of one column's numbers in either column of the others, or crosswise."""
    from pyspark.sql import functions as F

    small, large = (
        batch.sources["orders"].where(where).alias(name) for where, name in (("id < 5", "a"), ("id > 4", "b"))
    )
    same = "a.id = b.other AND a.other = b.id" if turned else "a.id = b.id AND a.other = b.other"
    return small.join(large, F.expr(same)).select("a.id")


@pytest.mark.parametrize(
    "transform",
    [
        exchanged.by_two_columns,
        exchanged.once_by_two_columns,
        exchanged.met_by_two_columns,
        of_lambdas,
        of_the_batch,
        of_the_clock,
        of_the_batch_at_length,
        by_exploded,
        by_aggregates,
        by_cube,
        met_crosswise,
        exchanged.met_with_columns,
        exchanged.sums_of_sides,
        exchanged.by_two_made,
        exchanged.of_two_fields,
        exchanged.of_filled_columns,
    ],
    ids=lambda transform: transform.__name__,
)
def test_an_exchange_is_seen_whatever_the_columns_are_made_by(
    spark: SparkSession, tmp_path: Path, transform: Any
) -> None:
    before = columns_told(look(transform(batch_of(spark, tmp_path, "orders"))))
    next_batch = batch_of(spark, tmp_path, "orders", id=8)
    refuse_moved_columns(before, look(transform(next_batch)))
    with pytest.raises(BatchFailure, match="have changed their order"):
        refuse_moved_columns(before, look(transform(next_batch, turned=True)))


@pytest.mark.parametrize(
    ("transform", "turned_round"),
    [
        (exchanged.of_wide_rows, exchanged.of_wide_rows_turned_round),
        (exchanged.of_many_values, exchanged.of_many_values_turned_round),
        (exchanged.by_two_processors, exchanged.by_two_processors_turned_round),
        (exchanged.beside_two_files, exchanged.beside_two_files_turned_round),
        (transforms.met, transforms.met_turned_round),
        (transforms.met_by_place, transforms.met_by_place_turned_round),
        (transforms.paid_in_sql, transforms.paid_in_sql_turned_round),
        (transforms.each_once_in_sql, transforms.each_once_in_sql_turned_round),
    ],
    ids=lambda transform: transform.__name__,
)
def test_operators_and_sides_of_a_join_that_change_places_are_seen(
    spark: SparkSession, tmp_path: Path, transform: Any, turned_round: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also by what Spark leaves out of its text: columns and values beyond the first 25, the code of processors, and
    the place of files. Parts of SQL are where they are named, not where they are defined."""
    for name, times in (("rows", 1), ("tens", 10)):
        (tmp_path / f"{name}.json").write_text(f'{{"added": {times}}}')
    monkeypatch.setenv(FILES, str(tmp_path))
    before = placed(transform(batch_of(spark, tmp_path, "orders", "payments")))
    next_batch = batch_of(spark, tmp_path, "orders", "payments", id=8)
    refuse_moved_state(before, placed(transform(next_batch)))
    with pytest.raises(BatchFailure, match="have changed places"):
        refuse_moved_state(before, placed(turned_round(next_batch)))


def once_in_time_by_each(batch: Looked, *, turned: bool = False) -> DataFrame:
    """The same as :func:`.exchanged.once_by_each`, within a watermark."""
    first, second = ("other", "id") if turned else ("id", "other")
    rows = batch.sources["orders"].withWatermark("at", "1 minute")
    return rows.dropDuplicatesWithinWatermark([first]).dropDuplicatesWithinWatermark([second])


def once_as_a_whole(batch: Looked, *, turned: bool = False) -> DataFrame:
    """Rows that are new by all of their columns, and by one of them."""
    rows = batch.sources["orders"]
    return rows.dropDuplicates(["id"]).dropDuplicates() if turned else rows.dropDuplicates().dropDuplicates(["id"])


def counted_once_by_each(batch: Looked, *, turned: bool = False) -> DataFrame:
    """Counts of what is new by each of two columns."""
    return exchanged.once_by_each(batch, turned=turned).groupBy("id").count()  # type: ignore[arg-type]


CHAINS = [exchanged.once_by_each, once_in_time_by_each, once_as_a_whole, counted_once_by_each]


@pytest.mark.parametrize("transform", CHAINS, ids=lambda transform: transform.__name__)
def test_operators_of_a_chain_that_change_places_are_seen(spark: SparkSession, tmp_path: Path, transform: Any) -> None:
    """Each is made of those below it: by what they are made of, both are others."""
    there = transform(batch_of(spark, tmp_path, "orders"))
    back = transform(batch_of(spark, tmp_path, "orders", id=8), turned=True)
    refuse_moved_state(placed(there), placed(back))
    with pytest.raises(BatchFailure, match=r"operators have changed places"):
        refuse_moved_columns(columns_told(look(there)), look(back))


def test_an_older_spark_takes_lists_of_a_newer_ones_processor_for_something_else(
    spark: SparkSession, tmp_path: Path
) -> None:
    laid = {"spark.sql.streaming.stateStore.rocksdb.mergeOperatorVersion": "2"}
    batch = batch_of(spark, tmp_path, "orders")
    lists, others = Query(exchanged.by_each_processor(batch)).nodes, Query(exchanged.once_by_each(batch)).nodes
    refuse_passed_over(laid, (), others, kept_by="4.2.0")
    refuse_passed_over(laid, laid, lists, kept_by="4.2.0")
    refuse_passed_over(dict.fromkeys(laid, "1"), (), lists, kept_by="4.2.0")
    with pytest.raises(BatchFailure, match=r"Spark 4\.2\.0 with \S+mergeOperatorVersion=2, .* take what TransformWith"):
        refuse_passed_over(laid, (), lists, kept_by="4.2.0")


def test_processors_of_a_chain_that_change_places_are_seen_by_their_code(spark: SparkSession, tmp_path: Path) -> None:
    """Only the first of them has columns that come from a stream."""
    there = exchanged.by_each_processor(batch_of(spark, tmp_path, "orders"))
    again = exchanged.by_each_processor(batch_of(spark, tmp_path, "orders", id=8))
    back = exchanged.by_each_processor(batch_of(spark, tmp_path, "orders", id=8), turned=True)
    before = placed(there)
    refuse_moved_state(before, placed(again))
    refuse_moved_columns(columns_told(look(there)), look(back))
    with pytest.raises(BatchFailure, match="have changed places"):
        refuse_moved_state(before, placed(back))
    # What an earlier version has told of them is less.
    refuse_moved_state([[part[:-1] for part in place] for place in before], placed(back))


@pytest.mark.parametrize("transform", CHAINS, ids=lambda transform: transform.__name__)
@pytest.mark.parametrize("beside", ["rows that are left out", "another optimizer"])
def test_a_chain_that_is_edited_otherwise_goes_on(
    spark: SparkSession, tmp_path: Path, transform: Any, beside: str
) -> None:
    before = columns_told(look(transform(batch_of(spark, tmp_path, "orders"))))
    batch = batch_of(spark, tmp_path, "orders", id=8)
    if beside == "another optimizer":
        setting, rules = "spark.sql.optimizer.excludedRules", "org.apache.spark.sql.catalyst.optimizer"
        spark.conf.set(setting, f"{rules}.ColumnPruning,{rules}.CollapseProject,{rules}.PushDownPredicates")
        try:
            now = look(transform(batch))
        finally:
            spark.conf.unset(setting)
    else:
        orders = batch.sources["orders"].where("id > 5")
        now = look(transform(Looked({"orders": orders}, 8, spark)).where("id < 100"))
    refuse_moved_columns(before, now)


def test_the_branches_of_a_union_may_come_in_another_order(spark: SparkSession, tmp_path: Path) -> None:
    """Its columns are in the same places, whatever they are made of in the first one."""
    there, back = (exchanged.both_ways(batch_of(spark, tmp_path, "orders"), turned=turned) for turned in (False, True))
    refuse_moved_state(placed(there), placed(back))
    refuse_moved_columns(columns_told(look(there)), look(back))


@pytest.mark.timeout(60)
def test_a_long_chain_of_columns_is_looked_at_in_passing(spark: SparkSession, tmp_path: Path) -> None:
    assert look(exchanged.of_a_long_chain(batch_of(spark, tmp_path, "orders")))


def test_names_of_exploded_columns_may_be_exchanged_where_the_grouping_follows(
    spark: SparkSession, tmp_path: Path
) -> None:
    from pyspark.sql import functions as F

    def by(x: str, y: str) -> DataFrame:
        one = batch_of(spark, tmp_path, "orders").sources["orders"].select(F.explode("some").alias(x), "more")
        return one.select(x, F.explode("more").alias(y)).groupBy(x, y).count()

    refuse_moved_columns(columns_told(look(by("x", "y"))), look(by("y", "x")))


def test_what_is_equal_in_a_join_and_no_key_may_be_said_in_any_order(spark: SparkSession, tmp_path: Path) -> None:
    from pyspark.sql import functions as F

    def join(*conditions: str) -> DataFrame:
        orders, payments = (batch_of(spark, tmp_path, name).sources[name] for name in ("orders", "payments"))
        return orders.alias("a").join(payments.alias("b"), F.expr(" AND ".join(conditions))).select("a.id")

    said = "a.id = b.id", "b.other = a.other + b.id"
    refuse_moved_columns(columns_told(look(join(*said))), look(join(*reversed(said))))


def test_two_aggregates_that_say_the_same_are_one(spark: SparkSession, tmp_path: Path) -> None:
    """Spark keeps one sum for both."""
    from pyspark.sql import functions as F

    def sums(*made: str) -> DataFrame:
        of = (F.expr(f"sum({one})").alias(f"sum{turn}") for turn, one in enumerate(made))
        return batch_of(spark, tmp_path, "orders").sources["orders"].groupBy("at").agg(*of)

    refuse_moved_columns(columns_told(look(sums("id + other", "other + id"))), look(sums("other + id", "id + other")))


def test_columns_that_change_their_order_with_the_name_of_their_source_are_seen(
    spark: SparkSession, tmp_path: Path
) -> None:
    from pyspark.sql import functions as F

    def sums(*names: str) -> DataFrame:
        """A sum of each, in the order of their names."""
        batch = batch_of(spark, tmp_path, *names)
        first, second = (
            batch.sources[name].withWatermark("at", "1 minute").selectExpr("id", "at", f"other AS {name}")
            for name in names
        )
        both = first.join(second, ["id", "at"])
        return both.groupBy(F.window("at", "1 minute")).agg(*(F.sum(name).alias(name) for name in sorted(names)))

    before = columns_told(look(sums("orders", "payments")))
    refuse_moved_columns(before, look(sums("accounts", "payments"), accounts="orders"))
    with pytest.raises(BatchFailure, match=r"other of payments.* had .*other of orders"):
        refuse_moved_columns(before, look(sums("sales", "payments"), sales="orders"))
