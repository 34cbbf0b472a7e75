"""What reads half of a file's lines in Spark, for :mod:`tests.support.halves`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow_provider_microbatch.runtime import files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def read(spark: SparkSession, arguments: Mapping[str, Any]) -> files.ReadResult:
    """The rows of every second line of one file, which is small enough for one partition.

    :param arguments: those of :func:`~airflow_provider_microbatch.runtime.files.read`, and ``half``: 0 or 1.
    """
    from pyspark.sql import functions as F

    found = files.read(spark, arguments)
    return replace(found, frame=found.frame.where(F.monotonically_increasing_id() % 2 == arguments["half"]))
