"""A source of a user's own that was made anew: it is behind what was read of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from airflow_provider_microbatch.sources.polling import PollingSource


@dataclass(frozen=True)
class Behind(PollingSource):
    """:param newest: its newest offset."""

    newest: int

    schema = "id long"

    def initial_offset(self) -> Any:
        return 0

    def latest_offset(self, start: Any, limit: Any) -> Any:
        return self.newest

    def count(self, start: Any, end: Any) -> Any:
        return end - start

    def read(self, start: Any, end: Any) -> Iterator[Any]:
        return iter(())
