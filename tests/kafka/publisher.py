"""A process that publishes, and gets a signal at a named point: ``python -m tests.kafka.publisher JSON``. It prints
which attempt is in, or the error."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from airflow_provider_microbatch.exceptions import MicroBatchError
from airflow_provider_microbatch.sinks.kafka.opened import OpenKafka
from airflow_provider_microbatch.sinks.kafka.transaction import Transaction
from tests.kafka.topic import World
from tests.sinks.stages import BATCH, EXPECTED

POINTS: dict[str, tuple[Any, str, bool]] = {
    "about to fence": (Transaction, "fencing", True),
    "others are fenced": (OpenKafka, "_publish_fencing", True),
    "records sent": (Transaction, "send", False),
    "mark sent": (Transaction, "mark", False),
    "committed": (Transaction, "commit", False),
}
"""Owner and name of what is called there, and whether the signal comes before the call."""


def signal_at(point: str, number: int) -> None:
    """Where this process first reaches the point."""
    owner, name, before = POINTS[point]
    real = getattr(owner, name)

    def wrapped(*given: Any, **more: Any) -> Any:
        setattr(owner, name, real)
        if before:
            os.kill(os.getpid(), number)
        result = real(*given, **more)
        if not before:
            os.kill(os.getpid(), number)
        return result

    setattr(owner, name, wrapped)


def main() -> None:
    asked = json.loads(sys.argv[1])
    signal_at(asked["point"], asked["number"])
    sink = World(Path(asked["folder"]), asked["topic"]).sink(**asked["given"])
    try:
        if asked["doing"] == "drop_stage":
            print(sink.drop_stage(BATCH, asked["epoch"]))
        else:
            print(getattr(sink, asked["doing"])(EXPECTED, asked["epoch"]).epoch)
    except MicroBatchError as error:
        print(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
