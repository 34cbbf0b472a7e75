"""Reads the pieces of a Kafka source's job as Spark's connector does: for engines of the tests that have no Spark."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

SECONDS = 60.0


def rows(arguments: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row for each id of each record, whose value is a JSON list of ids.

    :param arguments: of the job's read.
    """
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": arguments["options"]["kafka.bootstrap.servers"],
            "isolation.level": "read_committed",
            "group.id": "nobody",
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    found, deadline = [], time.monotonic() + SECONDS
    try:
        for layer in arguments["layers"]:
            for topic, pieces in layer.items():
                for number, (start, end) in pieces.items():
                    consumer.assign([TopicPartition(topic, int(number), start)])
                    at = start
                    while at < end:
                        assert time.monotonic() < deadline, f"{topic}-{number} {at} of {end}"
                        message = consumer.poll(1.0)
                        if message is None or message.error():
                            continue
                        if message.offset() < end:
                            found += [{"id": one} for one in json.loads(message.value())]
                        at = message.offset() + 1
    finally:
        consumer.close()
    return found
