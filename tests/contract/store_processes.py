"""What processes do that write to one store at once. They import this, and nothing of a test's."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_microbatch import connections
from airflow_provider_microbatch.stores import Store
from airflow_provider_microbatch.stores.location import open_store
from tests.support import sql

WHOLE = 200_000


@dataclass(frozen=True)
class Place:
    """Where a store is, for a process that has begun before: servers and connections stand in the environment."""

    address: str
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))

    def store(self) -> Store:
        os.environ.update(self.environment)
        connections.find_by(sql.connect)
        return open_store(self.address)


def race(place: Place, rounds: int, number: int, barrier: Any, wins: Any) -> None:
    """Put an entry in each round, at the same moment as others, and tell which ones were put."""
    store = place.store()
    for turn in range(rounds):
        barrier.wait()
        if store.put_if_absent(f"offsets/{turn}", f"{number}".encode()):
            wins.put((turn, number))
    wins.put(None)


def count_up(place: Place, rounds: int, barrier: Any) -> None:
    """Add one to an entry so many times."""
    store = place.store()
    barrier.wait()
    for _ in range(rounds):
        while True:
            read = store.get_versioned("count")
            assert read is not None, "there is one at every moment"
            if store.compare_and_put("count", str(int(read.data) + 1).encode(), version=read.version) is not None:
                break


def put_forever(place: Place, lane: int, started: Any) -> None:
    """Put entries of many bytes until somebody kills this process."""
    store = place.store()
    number = 0
    while True:
        store.put_if_absent(f"lane-{lane}/{number}", f"{number:08d}".encode() * (WHOLE // 8))
        number += 1
        if number == 3:
            started.set()
