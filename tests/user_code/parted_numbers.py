"""A polled source of a user's whose partitions executors read beside each other."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_provider_microbatch import PollingSource


@dataclass(frozen=True)
class PartedNumbers(PollingSource):
    """Numbers up to the one that a file holds, by tens."""

    path: str

    schema = "id long, half double, process long"

    def initial_offset(self) -> int:
        return 0

    def latest_offset(self, start: int, limit: Any) -> int:
        return int(Path(self.path).read_text())

    def partitions(self, start: int, end: int) -> list[tuple[int, int]]:
        return [(first, min(first + 10, end)) for first in range(start, end, 10)]

    def read(self, start: int, end: int) -> Iterator[tuple[Any, ...]]:
        for number in range(start, end):
            yield (number, number / 2 if number % 2 else number // 2, os.getpid())
