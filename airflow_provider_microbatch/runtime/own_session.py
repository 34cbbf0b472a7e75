"""A Spark session of this process alone, for commands that look at rows. It opens nothing to the network."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PRIVATE = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.showConsoleProgress": "false",
}


@contextmanager
def own_session(name: str, settings: Mapping[str, str]) -> Iterator[SparkSession]:
    """A session until the ``with`` block ends, which also stops its Spark.

    :param name: name of the application.
    :param settings: further settings of Spark; a setting with an empty value is left out.
    """
    from pyspark.sql import SparkSession

    # Spark's Python workers find functions where this process finds them.
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    builder = SparkSession.builder.master("local[*]").appName(name)
    for key, value in {**_PRIVATE, **settings}.items():
        if value:
            builder = builder.config(key, value)
    spark = builder.getOrCreate()
    try:
        spark.sparkContext.setLogLevel("ERROR")
        yield spark
    finally:
        spark.stop()
