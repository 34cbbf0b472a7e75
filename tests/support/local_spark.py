"""A Spark in the test's own process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.environments import jars as jars_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.snapshotPartitions": "1",
}
"""Settings of a session that writes Delta tables."""

OF_LAKES = {
    "delta": ("delta-", "RoaringBitmap", "shims", "unitycatalog"),
    "iceberg": ("iceberg-", "sqlite-jdbc"),
    "postgres-driver": ("postgresql",),
    "s3a-connector": ("",),
}
"""How the names of those jars begin that Spark needs beside its own to read tables and buckets."""


def jars_of_lakes() -> list[Path]:
    """For a JVM that tests of several systems share, see ``JARS_SCOPES`` in ``tests/conftest.py``."""
    return [jar for name, beginnings in OF_LAKES.items() for jar in jars_of(name) if jar.name.startswith(beginnings)]


_jars = set[Path]()
"""What the JVM of this process has beside Spark's own."""
_aside = list[tuple[Any, Any]]()
"""That without any, while there is one with jars."""


@contextmanager
def local_spark(
    *, cores: int = 1, jars: Sequence[Path] = (), conf: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """A session, stopped at the end; one at a time.

    The JVM stays for the next session of the process, for it takes seconds to start. It is started without settings,
    its jars excepted: what it starts with, a time zone say, every later session of the process would have too.

    :param jars: what it has beside Spark's own. A JVM takes jars when it starts, and passes over those of a session
        that begins in it later: another one is started unless the last one has them.
    """
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(f"local[{cores}]").config("spark.ui.enabled", "false")
    for key, value in (conf or {}).items():
        builder = builder.config(key, value)
    _change_jvm(jars)
    alone = SparkConf(loadDefaults=False)
    if jars:
        named = ",".join(map(str, jars))
        alone, builder = alone.set("spark.jars", named), builder.config("spark.jars", named)
    SparkContext._ensure_initialized(conf=alone)
    _jars.update(jars)
    session = builder.getOrCreate()
    try:
        yield session
    finally:
        session.stop()
        if jars:
            # Clients of a bucket are kept by its name, with the settings of the session that has made them.
            jvm: Any = SparkContext._jvm
            jvm.org.apache.hadoop.fs.FileSystem.closeAll()


@contextmanager
def another_jvm() -> Iterator[None]:
    """The JVMs of this process wait until another has ended: their code is warm."""
    from pyspark import SparkContext

    kept, jars, aside = (SparkContext._gateway, SparkContext._jvm), {*_jars}, [*_aside]
    SparkContext._gateway = SparkContext._jvm = None
    _jars.clear()
    _aside.clear()
    try:
        yield
    finally:
        try:
            end_jvm()
        finally:
            SparkContext._gateway, SparkContext._jvm = kept
            _jars.update(jars)
            _aside.extend(aside)


def end_jvm() -> None:
    """End the JVM of this process, if there is one: the next session starts another, whose Python workers have imported
    nothing yet."""
    _end()
    if _aside:
        _take_back()
        _end()


def _change_jvm(jars: Sequence[Path]) -> None:
    """End a JVM that has other jars. That without any, with Spark's classes and warm code, is put aside meanwhile."""
    from pyspark import SparkContext

    if _jars and not (jars and _jars.issuperset(jars)):
        _end()
        if _aside:
            _take_back()
    if jars and not _jars and SparkContext._gateway is not None:
        _aside.append((SparkContext._gateway, SparkContext._jvm))
        SparkContext._gateway = SparkContext._jvm = None


def _take_back() -> None:
    from pyspark import SparkContext

    SparkContext._gateway, SparkContext._jvm = _aside.pop()


def _end() -> None:
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    _jars.clear()
    if gateway is None:
        return
    gateway.shutdown()
    # It lives as long as its standard input is open.
    gateway.proc.stdin.close()
    gateway.proc.wait(60)
    SparkContext._gateway = SparkContext._jvm = None
