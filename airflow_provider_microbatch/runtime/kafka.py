"""Reads exactly the planned offsets of a Kafka source. Runs where Spark runs: Spark Connect's API only."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import reduce
from typing import TYPE_CHECKING, Any

from airflow_provider_microbatch.runtime.files import ReadResult
from airflow_provider_microbatch.runtime.secrets import secret

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_COLUMNS = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int"
)
_HEADERS = ", headers array<struct<key: string, value: binary>>"


def read(spark: SparkSession, arguments: Mapping[str, Any]) -> ReadResult:
    """Read the pieces of one range of a Kafka source, by Spark's own connector.

    :param spark: the session.
    :param arguments: ``name``, ``layers`` (each with at most one piece of a partition: first offset and end, by topic
        and partition), ``left_out`` (pieces of the range that are gone), ``headers``, ``options``, and ``secrets``
        (names of options that are secrets).
    :return: the records, with the columns of Spark's connector.
    :raises ValueError: if Spark lacks the connector, or was not handed a secret.
    """
    told = {"layers": arguments["layers"], "left_out": arguments["left_out"]}
    frames = [_layer(spark, arguments, layer) for layer in arguments["layers"]]
    if not frames:
        schema = _COLUMNS + (_HEADERS if arguments["headers"] else "")
        return ReadResult(frame=spark.createDataFrame([], schema), told=told)
    # For dead letters, as long as the transform keeps these columns.
    place = "concat(topic, '/', partition, ' at ', `offset`)"
    return ReadResult(frame=reduce(lambda one, other: one.unionByName(other), frames), told=told, place=place)


def _layer(
    spark: SparkSession, arguments: Mapping[str, Any], layer: Mapping[str, Mapping[str, list[int]]]
) -> DataFrame:
    starts, ends = (
        {topic: {number: piece[at] for number, piece in pieces.items()} for topic, pieces in layer.items()}
        for at in (0, 1)
    )
    options = {
        **_options(arguments, layer),
        "startingOffsets": json.dumps(starts),
        "endingOffsets": json.dumps(ends),
    }
    with _naming_the_connector(spark, arguments):
        return spark.read.format("kafka").options(**options).load()


def stream(spark: SparkSession, arguments: Mapping[str, Any]) -> DataFrame:
    """The records of a Kafka source as a stream. The query's checkpoint holds between which offsets a batch reads.

    :param arguments: those of :func:`read`, with ``partitions`` (pieces of the range, by topic and partition) in place
        of ``layers`` and ``left_out``, and ``tag`` (options that name the source).
    """
    # A batch whose checkpoint lacks its first position would begin at the end of the topic, and lose rows silently.
    options = {**_options(arguments, arguments["partitions"]), **arguments["tag"], "startingOffsets": "earliest"}
    with _naming_the_connector(spark, arguments):
        return spark.readStream.format("kafka").options(**options).load()


def _options(arguments: Mapping[str, Any], partitions: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """The options of a read and of a stream alike.

    :param partitions: what is read of each partition, by topic and partition.
    """
    name = arguments["name"]
    return {
        **arguments["options"],
        **{option: secret(f"{name}/{option}") for option in arguments["secrets"]},
        # These partitions alone: a topic may have more by now.
        "assign": json.dumps({topic: [int(number) for number in pieces] for topic, pieces in partitions.items()}),
        "includeHeaders": str(arguments["headers"]).lower(),
        # Records that are gone since the plan fail the attempt; the next attempt names them, and fails or goes on
        # without them.
        "failOnDataLoss": "true",
    }


@contextmanager
def _naming_the_connector(spark: SparkSession, arguments: Mapping[str, Any]) -> Iterator[None]:
    """Say how Spark gets its connector, where Spark only says that there is none."""
    try:
        yield
    except Exception as error:
        if "kafka" in str(error).lower() and "find" in str(error).lower():
            raise ValueError(
                f"source {arguments['name']!r}: Spark lacks its Kafka connector, "
                f"org.apache.spark:spark-sql-kafka-0-10 of Spark {spark.version}. A spark-submit is given it by the "
                "source; a Spark Connect server has to be started with it."
            ) from error
        raise
