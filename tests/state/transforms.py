"""What the stateful pipelines of these tests do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow_provider_microbatch.runtime.batch import Batch

if TYPE_CHECKING:
    import pandas
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming import StatefulProcessor

VISITS = "id long, rows long, minutes long, since timestamp"


def counts(batch: Batch) -> DataFrame:
    """Rows by id, so far."""
    return batch.sources["orders"].groupBy("id").count()


def counts_twice(batch: Batch) -> DataFrame:
    """The same of rows that are all there twice."""
    orders = batch.sources["orders"]
    return orders.unionAll(orders).groupBy("id").count()


def counts_by_text(batch: Batch) -> DataFrame:
    """The same by the id as text."""
    return batch.sources["orders"].selectExpr("cast(id as string) as id").groupBy("id").count()


def sums(batch: Batch) -> DataFrame:
    """Another aggregate by the same key."""
    return batch.sources["orders"].groupBy("id").sum("id").withColumnRenamed("sum(id)", "count")


def as_they_are(batch: Batch) -> DataFrame:
    """What keeps no state."""
    return batch.sources["orders"]


def beside_a_table(batch: Batch) -> DataFrame:
    """Rows with what a frame that is no stream has of them: no state, though it joins and aggregates."""
    return batch.sources["orders"].join(batch.spark.range(5).groupBy("id").count(), "id")


def once(batch: Batch) -> DataFrame:
    """Each row once."""
    return batch.sources["orders"].dropDuplicates(["id"])


def once_a_moment(batch: Batch) -> DataFrame:
    """Each row of a time once."""
    return batch.sources["orders"].withWatermark("at", "30 seconds").dropDuplicates(["id", "at"])


def once_by_five(batch: Batch) -> DataFrame:
    """Each row once, by five columns of one type."""
    return (
        batch.sources["orders"]
        .selectExpr("id", *(f"id * {times} as times{times}" for times in range(2, 6)))
        .dropDuplicates()
    )


def halves(batch: Batch) -> DataFrame:
    """Rows of odd and of even ids, so far."""
    return batch.sources["orders"].selectExpr("id % 2 as half").groupBy("half").count()


def halves_of_data(batch: Batch) -> DataFrame:
    """Records by the number that is their data, so far."""
    numbers = batch.sources["orders"].selectExpr("cast(cast(data as string) as bigint) as half")
    return numbers.groupBy("half").count()


def halves_twice(batch: Batch) -> DataFrame:
    """The same of rows that are all there twice."""
    orders = batch.sources["orders"]
    return orders.unionAll(orders).selectExpr("id % 2 as half").groupBy("half").count()


def counts_of_records(batch: Batch) -> DataFrame:
    """Records of a topic by their value, so far."""
    return batch.sources["orders"].selectExpr("cast(value as string) as id").groupBy("id").count()


def counts_of_records_twice(batch: Batch) -> DataFrame:
    """The same of records that are all there twice."""
    orders = batch.sources["orders"]
    return orders.unionAll(orders).selectExpr("cast(value as string) as id").groupBy("id").count()


def by_minute(batch: Batch) -> DataFrame:
    """Different rows by minute, once the watermark has passed it."""
    from pyspark.sql import functions as F

    rows = batch.sources["orders"].withWatermark("at", "30 seconds").dropDuplicates(["id", "at"])
    by = rows.groupBy(F.window("at", "1 minute")).count()
    return by.select(F.col("window.start").alias("minute"), F.col("count").alias("rows"))


def by_minute_of_now(batch: Batch) -> DataFrame:
    """The same without rows of before Spark's first watermark."""
    orders = batch.sources["orders"].where("at > '1970-01-02'")
    return by_minute(replace(batch, sources={"orders": orders}))


def by_moment(batch: Batch) -> DataFrame:
    """Rows by their time, once the watermark has passed it."""
    rows = batch.sources["orders"].withWatermark("at", "30 seconds")
    return rows.groupBy("at").count().selectExpr("at AS minute", "count AS rows")


def unpaid_by_minute(batch: Batch) -> DataFrame:
    """Orders without a payment in their next minute, counted by minute: two operators, one behind the other."""
    from pyspark.sql import functions as F

    orders = batch.sources["orders"].withWatermark("at", "30 seconds").alias("o")
    payments = batch.sources["payments"].withWatermark("at", "30 seconds").alias("p")
    within = F.expr("o.id = p.id AND p.at BETWEEN o.at AND o.at + INTERVAL 1 MINUTE")
    unpaid = orders.join(payments, within, "leftOuter").where("p.id IS NULL").select("o.at")
    by = unpaid.groupBy(F.window("at", "1 minute")).count()
    return by.select(F.col("window.start").alias("minute"), F.col("count").alias("rows"))


def paid(batch: Batch, of: str = "orders") -> DataFrame:
    """Orders, and whether each was paid in its next minute."""
    from pyspark.sql import functions as F

    orders = batch.sources[of].withWatermark("at", "30 seconds").alias("o")
    payments = batch.sources["payments"].withWatermark("at", "30 seconds").alias("p")
    within = F.expr("o.id = p.id AND p.at BETWEEN o.at AND o.at + INTERVAL 1 MINUTE")
    return orders.join(payments, within, "leftOuter").select("o.id", F.expr("p.id IS NOT NULL").alias("paid"))


def paid_by_now(batch: Batch) -> DataFrame:
    """The same of orders that have a time, and one that comes."""
    orders = batch.sources["orders"].where("at < '9999-12-31'")
    return paid(replace(batch, sources={**batch.sources, "orders": orders}))


def paid_turned_round(batch: Batch) -> DataFrame:
    """The same orders that were paid, with the sides of the join exchanged."""
    from pyspark.sql import functions as F

    orders = batch.sources["orders"].withWatermark("at", "30 seconds").alias("o")
    payments = batch.sources["payments"].withWatermark("at", "30 seconds").alias("p")
    within = F.expr("o.id = p.id AND p.at BETWEEN o.at AND o.at + INTERVAL 1 MINUTE")
    return payments.join(orders, within).select("o.id", F.lit(True).alias("paid"))


def paid_at_all(batch: Batch) -> DataFrame:
    """Orders that were paid in their next minute."""
    from pyspark.sql import functions as F

    orders = batch.sources["orders"].withWatermark("at", "30 seconds").alias("o")
    payments = batch.sources["payments"].withWatermark("at", "30 seconds").alias("p")
    within = F.expr("o.id = p.id AND p.at BETWEEN o.at AND o.at + INTERVAL 1 MINUTE")
    return orders.join(payments, within).select("o.id", F.lit(True).alias("paid"))


def paid_half_an_hour_late(batch: Batch) -> DataFrame:
    """As :func:`paid`, with a longer delay."""
    from pyspark.sql import functions as F

    orders = batch.sources["orders"].withWatermark("at", "30 minutes").alias("o")
    payments = batch.sources["payments"].withWatermark("at", "30 minutes").alias("p")
    within = F.expr("o.id = p.id AND p.at BETWEEN o.at AND o.at + INTERVAL 1 MINUTE")
    return orders.join(payments, within, "leftOuter").select("o.id", F.expr("p.id IS NOT NULL").alias("paid"))


def paid_in_sql(batch: Batch, order: tuple[str, str] = ("o", "p")) -> DataFrame:
    """As :func:`paid_at_all`, in SQL that names its parts."""
    for name in ("orders", "payments"):
        batch.sources[name].withWatermark("at", "30 seconds").createOrReplaceTempView(name)
    first, second = order
    return batch.spark.sql(
        f"WITH o AS (SELECT * FROM orders), p AS (SELECT * FROM payments) SELECT o.id, true AS paid FROM {first} JOIN "
        f"{second} ON o.id = p.id AND p.at BETWEEN o.at AND o.at + INTERVAL 1 MINUTE"
    )


def paid_in_sql_turned_round(batch: Batch) -> DataFrame:
    """The same, with the sides of the join exchanged."""
    return paid_in_sql(batch, ("p", "o"))


def met(batch: Batch, order: tuple[str, str] = ("small", "large")) -> DataFrame:
    """Small ids whose large one, ten more, came in the next minute: both are in one source."""
    from pyspark.sql import functions as F

    orders = batch.sources["orders"].withWatermark("at", "30 seconds")
    sides = {"small": orders.where("id < 10").alias("small"), "large": orders.where("id >= 10").alias("large")}
    within = F.expr("small.id + 10 = large.id AND large.at BETWEEN small.at AND small.at + INTERVAL 1 MINUTE")
    return sides[order[0]].join(sides[order[1]], within).select("small.id")


def met_turned_round(batch: Batch) -> DataFrame:
    """The same, with the sides of the join exchanged."""
    return met(batch, ("large", "small"))


def met_by_place(batch: Batch, *, turned: bool = False) -> DataFrame:
    """Ids of one last digit in both sides, whose aliases say where they stand, not what they are."""
    from pyspark.sql import functions as F

    orders = batch.sources["orders"]
    sides = [orders.where("id < 10"), orders.where("id >= 10")]
    left, right = reversed(sides) if turned else sides
    same = F.expr("left.id % 10 = right.id % 10")
    return left.alias("left").join(right.alias("right"), same).select(F.expr("left.id % 10").alias("id"))


def met_by_place_turned_round(batch: Batch) -> DataFrame:
    """The same, with the sides of the join exchanged."""
    return met_by_place(batch, turned=True)


def met_below_another(batch: Batch) -> DataFrame:
    """As :func:`met`, each once: another operator that keeps state is made of the join."""
    return met(batch).dropDuplicates(["id"])


def met_below_another_turned_round(batch: Batch) -> DataFrame:
    """The same, with the sides of the join exchanged."""
    return met_turned_round(batch).dropDuplicates(["id"])


def each_once(batch: Batch, *, last: bool = False) -> DataFrame:
    """Rows of each source once, the sources in the order of their names."""
    from pyspark.sql import functions as F

    names = sorted(batch.sources, reverse=last)
    first, second = (batch.sources[name].dropDuplicates(["id"]).withColumn("of", F.lit(name)) for name in names)
    return first.union(second)


def each_once_last_first(batch: Batch) -> DataFrame:
    """The same, in the opposite order."""
    return each_once(batch, last=True)


def each_once_in_sql(batch: Batch, order: tuple[str, str] = ("o", "p")) -> DataFrame:
    """As :func:`each_once`, in SQL that names its parts."""
    for name in ("orders", "payments"):
        batch.sources[name].dropDuplicates(["id"]).createOrReplaceTempView(name)
    first, second = order
    return batch.spark.sql(
        "WITH o AS (SELECT id, 'orders' AS of FROM orders), p AS (SELECT id, 'payments' AS of FROM payments) "
        f"SELECT * FROM {first} UNION ALL SELECT * FROM {second}"
    )


def each_once_in_sql_turned_round(batch: Batch) -> DataFrame:
    """The same, with its parts named in the opposite order."""
    return each_once_in_sql(batch, ("p", "o"))


def met_or_not(batch: Batch) -> DataFrame:
    """Small ids, and whether their large one came, both streams of one source, which say with which batch they came."""
    from pyspark.sql import functions as F

    orders = batch.sources["orders"].withColumn("loaded", F.lit(batch.id))
    small = orders.where("id < 10").withWatermark("at", "30 seconds").alias("small")
    large = orders.where("id >= 10").withWatermark("at", "30 seconds").alias("large")
    within = F.expr("small.id + 10 = large.id AND large.at BETWEEN small.at AND small.at + INTERVAL 1 MINUTE")
    return small.join(large, within, "leftOuter").select("small.id", F.expr("large.id IS NOT NULL").alias("met"))


def minutes(batch: Batch, *, large: bool = True) -> DataFrame:
    """Orders by minute; those of small and of large ids are streams of their own."""
    from pyspark.sql import functions as F

    orders = batch.sources["orders"]
    small = orders.where("id < 10").withWatermark("at", "30 seconds")
    both = small.union(orders.where("id >= 10").withWatermark("at", "30 seconds")) if large else small
    by = both.groupBy(F.window("at", "1 minute")).count()
    return by.select(F.date_format("window.start", "HH:mm").alias("minute"), "count")


def minutes_of_small(batch: Batch) -> DataFrame:
    """The same, without the large ids."""
    return minutes(batch, large=False)


def sales_paid(batch: Batch) -> DataFrame:
    """As :func:`paid`, of orders that have another name."""
    return paid(batch, "sales")


def paid_in_sessions(batch: Batch) -> DataFrame:
    """Different orders that were paid once in their next minute, by id and session: four kinds of operators, one behind
    the other."""
    from pyspark.sql import functions as F

    orders = batch.sources["orders"].withWatermark("at", "30 seconds").dropDuplicates(["id", "at"]).alias("o")
    payments = batch.sources["payments"].withWatermark("at", "30 seconds")
    payments = payments.dropDuplicatesWithinWatermark(["id", "at"]).alias("p")
    within = F.expr("o.id = p.id AND p.at BETWEEN o.at AND o.at + INTERVAL 1 MINUTE")
    paid = payments.join(orders, within).select("o.id", "p.at")
    by = paid.groupBy(F.session_window("at", "1 minute"), "id").count()
    return by.select("id", F.col("session_window.start").alias("since"), "count")


def the_first(batch: Batch) -> DataFrame:
    """The first four rows."""
    return batch.sources["orders"].limit(4)


def joined(batch: Batch) -> DataFrame:
    """Payments with their orders, whichever comes first."""
    return batch.sources["payments"].join(batch.sources["orders"], "id")


def joined_with_records(batch: Batch) -> DataFrame:
    """Payments with their records of a topic, whichever comes first."""
    records = batch.sources["orders"].selectExpr("cast(cast(value as string) as bigint) as id")
    return batch.sources["payments"].join(records, "id")


def no_stream(batch: Batch) -> DataFrame:
    """A frame that is none of the streams."""
    return batch.spark.range(1)


def visits(batch: Batch, once: tuple[str, ...] = ()) -> DataFrame:
    """Rows by id, and the minutes and the first time that they are of, told once the watermark is a minute behind the
    first time: a value, a list, a map and a timer.

    :param once: of rows that are alike in these columns only the first.
    """
    rows = batch.sources["orders"].withWatermark("at", "30 seconds")
    by_id = (rows.dropDuplicates([*once]) if once else rows).groupBy("id")
    return by_id.transformWithState(_visits(), VISITS, "Append", "EventTime")


def visits_in_pandas(batch: Batch) -> DataFrame:
    """The same in the form that Spark 4.0 has."""
    import pandas

    base: Any = type(_visits())

    class InPandas(base):  # type: ignore[misc]
        def handleInputRows(self, key: Any, rows: Iterator[pandas.DataFrame], timerValues: Any) -> Any:
            return super().handleInputRows(key, (row for frame in rows for _, row in frame.iterrows()), timerValues)

        def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
            for row in super().handleExpiredTimer(key, timerValues, expiredTimerInfo):
                yield pandas.DataFrame([row.asDict()])

    by_id = batch.sources["orders"].withWatermark("at", "30 seconds").groupBy("id")
    return by_id.transformWithStateInPandas(InPandas(), VISITS, "Append", "EventTime")


def _visits() -> StatefulProcessor:
    from pyspark.sql import Row
    from pyspark.sql.streaming import StatefulProcessor

    class Visits(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.handle = handle
            self.rows = handle.getValueState("rows", "rows long")
            self.times = handle.getListState("times", "at timestamp")
            self.minutes = handle.getMapState("minutes", "minute long", "rows long")

        def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
            (count,) = self.rows.get() or (0,)
            for row in rows:
                if not count:
                    self.handle.registerTimer(int(row["at"].timestamp() * 1000) + 60_000)
                minute = (int(row["at"].timestamp()) // 60,)
                (before,) = self.minutes.getValue(minute) or (0,)
                self.minutes.updateValue(minute, (before + 1,))
                self.times.appendValue((row["at"],))
                count += 1
            self.rows.update((count,))
            yield from ()

        def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
            (count,) = self.rows.get()
            (since,) = min(self.times.get())
            yield Row(id=key[0], rows=count, minutes=len([*self.minutes.keys()]), since=since)
            for state in (self.rows, self.times, self.minutes):
                state.clear()

    return Visits()


def visits_until_now(batch: Batch) -> DataFrame:
    """The same, with the watermark's time for the first time."""
    from pyspark.sql import Row

    base: Any = type(_visits())

    class UntilNow(base):  # type: ignore[misc]
        def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
            now = datetime.fromtimestamp(timerValues.getCurrentWatermarkInMs() / 1000, tz=UTC)
            yield Row(id=key[0], rows=1, minutes=1, since=now)

    rows = batch.sources["orders"].withWatermark("at", "30 seconds")
    return rows.groupBy("id").transformWithState(UntilNow(), VISITS, "Append", "EventTime")


def visits_at_different_times(batch: Batch) -> DataFrame:
    """The same of different rows: two operators, one behind the other."""
    return visits(batch, ("id", "at"))


def first_visits(batch: Batch) -> DataFrame:
    """The same of the first row of each id."""
    return visits(batch, ("id",))


def reminders(batch: Batch, kept: str = "rows long") -> DataFrame:
    """Rows by id so far, forgotten a minute after the last one; and a row of an id that has been there for half a
    minute, by the clock."""
    from pyspark.sql.streaming import StatefulProcessor

    class Reminders(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.handle = handle
            self.rows = handle.getValueState("rows", kept, ttlDurationMs=60_000)

        def handleInputRows(self, key: Any, rows: Iterator[pandas.DataFrame], timerValues: Any) -> Any:
            import pandas

            (count,) = self.rows.get() or (0,)
            if not count:
                self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 30_000)
            count += sum(len(frame) for frame in rows)
            self.rows.update((count,))
            yield pandas.DataFrame({"id": key[0], "rows": [count], "at": [timerValues.getCurrentProcessingTimeInMs()]})

        def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
            import pandas

            yield pandas.DataFrame({"id": key[0], "rows": [0], "at": [expiredTimerInfo.getExpiryTimeInMs()]})

    by_id = batch.sources["orders"].groupBy("id")
    return by_id.transformWithStateInPandas(Reminders(), "id long, rows long, at long", "Update", "ProcessingTime")


def reminders_by_text(batch: Batch) -> DataFrame:
    """The same with the value as text."""
    return reminders(batch, "rows string")
