"""What has to be true of a bounded batch, which begins with empty state and ends with the end of all time: each row
that it was given is told in it, since no batch comes behind it that would."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from airflow_provider_microbatch.runtime.failure import BatchFailure
from airflow_provider_microbatch.runtime.query_plan import below, each, is_processor
from airflow_provider_microbatch.runtime.streaming_folder import END_MS
from airflow_provider_microbatch.runtime.watermarks import latest_events

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_LAST_MS = END_MS - 366 * 86_400_000
"""Event times end a year before the lane does: windows, gaps and what a join waits for come to them."""

_JOIN = "StreamingSymmetricHashJoinExec"
"""The node of a join of two streams."""

_TOLD_AT_LAST: Mapping[str, Sequence[str]] = {
    "LeftOuter": ("left",),
    "RightOuter": ("right",),
    "FullOuter": ("left", "right"),
}
"""Sides of a join, by its type, of which a row without a partner is told when the watermark lets go of it."""

_WATERMARK = "spark.watermarkDelayMs"
"""In the metadata of a column: it has a watermark."""

_WAYS_ON = (
    "In front of withWatermark, leave such rows out, or give them another time; or move all times by as many days "
    "there, and back in the result. Then run the batch again"
)

_NO_DATETIME = (
    "This was at the end of the data interval, at which all timers expire and timerValues.getCurrentWatermarkInMs() is "
    "in the year 293,222. Python's datetime ends with the year 9999: if it was made of that number, take "
    "expiredTimerInfo.getExpiryTimeInMs(), the timer's own time, or cut the number"
)


def check_clock(nodes: Sequence[Any]) -> None:
    """Check that nothing of a bounded batch waits for a time of day, which never comes in it.

    :param nodes: the nodes of Spark's plan, in its JVM.
    :raises BatchFailure: naming the operator.
    """
    for node in nodes:
        if is_processor(node) and node.timeMode().toString() == "ProcessingTime":
            raise BatchFailure(
                "transform",
                "the transform uses transformWithState with timeMode 'ProcessingTime' "
                f"({node.getClass().getSimpleName()} in Spark's plan), and a data interval is made at one moment: its "
                "timers would never expire, and what they were to tell would be in no table. Take 'EventTime' or "
                "'None', and run the batch again",
            )


def check_let_go(executed: Any) -> None:
    """Check that a watermark lets go of all rows that an outer join is to tell without a partner. Spark takes a query
    in which only the other side has one: of this side it lets go of nothing then, and tells no row that found none.

    :param executed: Spark's plan of the batch with the data, as it is executed; none of it need have run.
    :raises BatchFailure: naming the side and the way on.
    """
    for node in below(executed):
        if node.getClass().getSimpleName() != _JOIN:
            continue
        kind, lets_go = node.joinType().toString(), node.stateWatermarkPredicates()
        for side in _TOLD_AT_LAST.get(kind, ()):
            if getattr(lets_go, side)().isDefined():
                continue
            columns = list(each(getattr(node, side)().output()))
            watched = [column.name() for column in columns if column.metadata().contains(_WATERMARK)]
            raise BatchFailure(
                "transform",
                f"no watermark would ever let go of the rows of the {side} side of an outer join ({kind}), which has "
                f"the columns {', '.join(column.name() for column in columns)}, so those that find no partner would be "
                "in no table: "
                + (
                    f"the join's condition does not bound {watched[0]!r} from below by a column of the other side that "
                    "has a watermark"
                    if watched
                    else "none of these has a watermark"
                )
                + ". Put withWatermark on each side in front of the join, on the columns that its condition compares, "
                "and let it bound each by the other in both directions, as BETWEEN does, or be that they are equal. "
                "Then run the batch again",
            )


def check_times(figures: Mapping[str, Any], executed: Any) -> None:
    """Check that the times of a bounded batch lie within its lane: Spark has dropped no row as late, and none is of a
    moment that its end does not pass.

    No entry can have the lane begin earlier, or end later. For Spark's operators each watermark below 0 is 0 (its
    ``PropagateWatermarkSimulator`` sees to that), and what is not behind it is late, from the first batch on; and of a
    watermark behind :data:`.streaming_folder.END_MS` a join makes one that is before everything.

    :param figures: of Spark's batch with the data.
    :param executed: Spark's plan of that batch as it was executed.
    :raises BatchFailure: naming the ways on.
    """
    if late := figures["numRowsDroppedByWatermark"]:
        raise BatchFailure(
            "transform",
            "in the column that has the watermark, rows of the data interval have 1970-01-01T00:00:00Z or a time "
            f"before it. Spark's watermark begins there, so its operators dropped what is made of them ({late:,} "
            f"rows), and it would be in no table. {_WAYS_ON}",
        )
    for node, latest in latest_events(executed):
        if latest >= _LAST_MS:
            raise BatchFailure(
                "transform",
                f"in the column {node.eventTime().name()!r}, which has the watermark, rows of the data interval have a "
                "time in the year 293,220 or behind it, as 'infinity' of a database has. Spark's watermark goes no "
                f"further, so what is made of them would be in no table. {_WAYS_ON}",
            )


@contextmanager
def at_the_end(nodes: Sequence[Any]) -> Iterator[None]:
    """Run the batch of the end inside. A processor whose code fails there is told of the moment, which no data shows.

    :param nodes: the nodes of Spark's plan, in its JVM.
    :raises BatchFailure: the one of inside.
    """
    try:
        yield
    except BatchFailure as failure:
        if failure.origin == "transform" and any(map(is_processor, nodes)):
            failure.explain(_NO_DATETIME)
        raise


def check_all_told(spark: SparkSession, folder: str, batch_id: int, executed: Any, *, output_mode: str) -> None:
    """Check that at the end nothing is kept that was yet to be told: of a null the watermark never lets go, since
    nothing is before it or behind it, and the state ends with the batch.

    :param folder: the attempt's own, in which Spark has committed the batch of the end.
    :param batch_id: number of that batch.
    :param executed: Spark's plan of that batch as it was executed.
    :raises BatchFailure: naming the ways on.
    """
    for node in below(executed):
        kind = node.getClass().getSimpleName()
        if kind == _JOIN and _rows_in(node):
            # The other side may keep any rows: those without a partner are told by none.
            sides = _TOLD_AT_LAST.get(node.joinType().toString(), ())
            joined = f"rows of a join ({node.joinType().toString()})"
            if spark.version.startswith("4.0."):
                # Its reader of state takes the ids in names of files for numbers: of neither side it shows any row.
                kept = _rows_in(node) if sides else 0
                what = f"{joined} that may have found no partner (Spark 4.0 does not show it)"
            else:
                reader = spark.read.format("statestore").option("batchId", batch_id)
                reader = reader.option("operatorId", node.stateInfo().get().operatorId())
                stores = (reader.option("storeName", f"{side}-keyWithIndexToValue") for side in sides)
                says = node.stateFormatVersion() > 1
                kept = sum(_without_partner(store.load(f"file://{folder}"), says=says).count() for store in stores)
                what = f"{joined} that found no partner"
        else:
            kept = _rows_in(node) if output_mode == "append" and kind.endswith("StateStoreSaveExec") else 0
            what = "groups of an aggregation"
        if kept:
            raise BatchFailure(
                "transform",
                f"at the end of the data interval there are {what} which no watermark lets go of ({kept:,}), and they "
                "would be in no table: in a column that has a watermark, or that a join compares with one, they have "
                f"no time (null), or one in the year 293,220 or behind it. {_WAYS_ON}",
            )


def _rows_in(node: Any) -> int:
    """Rows that an operator keeps behind the batch."""
    return int(node.longMetric("numTotalStateRows").value())


def _without_partner(rows: DataFrame, *, says: bool) -> DataFrame:
    """Of a side's rows those that have found none. One that has was told with it, and may be kept for ever.

    :param rows: as Spark keeps them.
    :param says: whether a row says, behind its columns, whatever these are called, if it has. In the first format of
        such state none does.
    """
    values = rows.selectExpr("inline(array(value))")
    last = len(values.columns) - 1
    return values.toDF(*map(str, range(last + 1))).where(f"NOT `{last}`") if says else rows
