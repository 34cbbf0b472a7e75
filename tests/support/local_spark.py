"""A Spark in the test's own process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.snapshotPartitions": "1",
}
"""Settings of a session that writes Delta tables."""


@contextmanager
def local_spark(
    *, cores: int = 1, jars: Sequence[Path] = (), conf: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """A session, stopped at the end; one at a time.

    The JVM stays for the next session of the process, for it takes seconds to start. It is started without settings:
    what it starts with, a time zone say, every later session of the process would have too.

    :param jars: what it has beside Spark's own. A JVM takes jars when it starts, and passes over those of a session
        that begins in it later: with jars there is one more, which ends with the session.
    """
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(f"local[{cores}]").config("spark.ui.enabled", "false")
    for key, value in (conf or {}).items():
        builder = builder.config(key, value)
    with another_jvm() if jars else nullcontext():
        if jars:
            builder = builder.config("spark.jars", ",".join(map(str, jars)))
        else:
            SparkContext._ensure_initialized()
        session = builder.getOrCreate()
        try:
            yield session
        finally:
            session.stop()


@contextmanager
def another_jvm() -> Iterator[None]:
    """The JVM of this process, if there is one, waits until another has ended: its code is warm."""
    from pyspark import SparkContext

    kept = SparkContext._gateway, SparkContext._jvm
    SparkContext._gateway = SparkContext._jvm = None
    try:
        yield
    finally:
        end_jvm()
        SparkContext._gateway, SparkContext._jvm = kept


def end_jvm() -> None:
    """End the JVM of this process, if there is one: the next session starts another, whose Python workers have imported
    nothing yet."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    if gateway is None:
        return
    gateway.shutdown()
    # It lives as long as its standard input is open.
    gateway.proc.stdin.close()
    gateway.proc.wait(60)
    SparkContext._gateway = SparkContext._jvm = None
