"""Reads the first rows of a range in this process, by a Spark of its own, as a batch would read them."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from airflow_provider_microbatch.runtime import secrets
from airflow_provider_microbatch.runtime.own_session import own_session
from airflow_provider_microbatch.runtime.session import pin

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from airflow_provider_microbatch.runtime.job import Read


@contextmanager
def first_rows(read: Read, *, rows: int, conf: Mapping[str, str], given: Mapping[str, str]) -> Iterator[DataFrame]:
    """A frame of at most ``rows`` rows of a range until the ``with`` block ends, which also stops its Spark.

    :param read: the range; packages and jars that the read requires are fetched when Spark starts.
    :param rows: the number of rows.
    :param conf: SQL settings that the batch pins.
    :param given: secrets of the reader.
    """
    settings = {"spark.jars.packages": ",".join(read.requires.packages), "spark.jars": ",".join(read.requires.jars)}
    with own_session("microbatch peek", settings) as spark:
        try:
            pin(spark, conf)
            secrets.give(given)
            module, _, function = read.reader.partition(":")
            # Arguments arrive as they would by the job file.
            arguments = json.loads(json.dumps(read.arguments))
            yield getattr(importlib.import_module(module), function)(spark, arguments).frame.limit(rows)
        finally:
            secrets.give({})


def as_json(frame: DataFrame) -> list[Any]:
    """The rows as JSON values, as Spark writes them."""
    return [json.loads(line) for line in frame.toJSON().collect()]
