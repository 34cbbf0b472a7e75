"""The session a batch runs in, with the settings that its offset log entry pins."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)


def open_session() -> SparkSession:
    """The session that spark-submit has configured."""
    from pyspark.sql import SparkSession

    return SparkSession.builder.getOrCreate()


def pin(spark: SparkSession, conf: Mapping[str, str]) -> None:
    """Set the batch's SQL settings. One that Spark allows at start only is left, with a warning if it differs."""
    from pyspark.errors import PySparkException

    for key, value in conf.items():
        try:
            if spark.conf.get(key, None) == value:
                continue
            spark.conf.set(key, value)
        except PySparkException as error:
            log.warning(
                "the batch pins %s=%s, which this Spark does not let a running session change; give it to spark-submit "
                "instead (%s)",
                key,
                value,
                str(error).partition("\n")[0],
            )
