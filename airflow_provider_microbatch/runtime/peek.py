"""The first rows of a range, read by a Spark of this process as a batch would read them."""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from airflow_provider_microbatch.runtime import secrets
from airflow_provider_microbatch.runtime.session import pin

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from airflow_provider_microbatch.runtime.job import Read


@contextmanager
def first_rows(read: Read, *, rows: int, conf: Mapping[str, str], given: Mapping[str, str]) -> Iterator[DataFrame]:
    """A frame of at most so many rows of a range, until the ``with`` block ends, and its Spark with it.

    :param read: what is read; what it requires is fetched when Spark starts.
    :param rows: so many.
    :param conf: SQL settings that the batch pins.
    :param given: secrets of the reader.
    """
    from pyspark.sql import SparkSession

    # Functions that Spark calls in workers of Python come from where this process finds them.
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    builder = SparkSession.builder.master("local[*]").appName("microbatch peek")
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.showConsoleProgress": "false",
        "spark.jars.packages": ",".join(read.requires.packages),
        "spark.jars": ",".join(read.requires.jars),
    }
    for key, value in settings.items():
        if value:
            builder = builder.config(key, value)
    spark = builder.getOrCreate()
    try:
        spark.sparkContext.setLogLevel("ERROR")
        pin(spark, conf)
        secrets.give(given)
        module, _, function = read.reader.partition(":")
        # As it would arrive: by the job file.
        arguments = json.loads(json.dumps(read.arguments))
        yield getattr(importlib.import_module(module), function)(spark, arguments).frame.limit(rows)
    finally:
        secrets.give({})
        spark.stop()


def as_json(frame: DataFrame) -> list[Any]:
    """The rows as JSON values, as Spark writes them."""
    return [json.loads(line) for line in frame.toJSON().collect()]
