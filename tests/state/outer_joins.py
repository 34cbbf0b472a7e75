"""Outer joins of two streams, by watermarks of which Spark takes any."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_provider_microbatch.runtime.batch import Batch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def paid_by(
    batch: Batch, how: str = "leftOuter", until: str = "AND p.at >= o.at", shown: Sequence[str] = (), **watched: str
) -> DataFrame:
    """As :func:`~.transforms.paid`, by another join, or with another watermark.

    :param shown: columns of orders that are shown too.
    :param watched: columns of orders and of payments that have a watermark, by source.
    """
    from pyspark.sql import functions as F

    orders, payments = (
        stream.withWatermark(watched[name], "30 seconds") if name in watched else stream
        for name, stream in ((name, batch.sources[name]) for name in ("orders", "payments"))
    )
    within = F.expr(f"o.id = p.id AND p.at <= o.at + INTERVAL 1 MINUTE {until}")
    joined = orders.alias("o").join(payments.alias("p"), within, how)
    return joined.select("o.id", F.expr("p.id IS NOT NULL").alias("paid"), *(f"o.{name}" for name in shown))


def paid_whatever_comes(batch: Batch) -> DataFrame:
    """As :func:`~.transforms.paid`, with a watermark of payments alone."""
    return paid_by(batch, payments="at")


def paid_by_another_time(batch: Batch) -> DataFrame:
    """The same, with a watermark of orders in a column that the join does not compare."""
    orders = batch.sources["orders"].selectExpr("*", "at AS seen")
    return paid_by(replace(batch, sources={**batch.sources, "orders": orders}), orders="seen", payments="at")


def paid_in_time(batch: Batch) -> DataFrame:
    """The same, which shows that column, so that Spark lets go of orders by it; the first order has no time there."""
    orders = batch.sources["orders"].selectExpr("*", "if(id = 1, null, at) AS matched")
    sources = {**batch.sources, "orders": orders}
    return paid_by(replace(batch, sources=sources), shown=["matched"], orders="matched", payments="at")


def paid_or_paying(batch: Batch) -> DataFrame:
    """Orders and payments, of which a payment may be of any time before its order."""
    return paid_by(batch, "fullOuter", until="", orders="at", payments="at")


def paid_with_no_watermark(batch: Batch) -> DataFrame:
    """As :func:`~.transforms.paid`, without any watermark."""
    return paid_by(batch)


def paid_alone(batch: Batch) -> DataFrame:
    """Those of :func:`paid_whatever_comes` that were paid: of such an outer join Spark makes an inner one."""
    return paid_whatever_comes(batch).where("paid")
