"""Orders of an HTTP API, polled: the API numbers its orders, and returns the orders between two numbers.

The API answers ``GET /newest`` with ``{"number": 42}``, and ``GET /orders?after=40&to=42`` with a list of two orders.
It must return the same orders between two numbers for ever: a batch that is run again reads them again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

from airflow_provider_microbatch import PollingSource


@dataclass(frozen=True)
class OrdersApi(PollingSource):
    """All orders of the API at ``url``. A request is for at most ``page`` orders, a batch has at most ``max_rows``
    orders."""

    url: str
    page: int = 1000
    max_rows: int | None = None

    schema = "id long, customer string, amount double, ts timestamp"

    def initial_offset(self) -> int:
        return 0

    def latest_offset(self, start: int, limit: Any) -> int:
        limits = [most for most in (self.max_rows, limit.rows) if most is not None]
        return min([self._get("newest")["number"], *(start + most for most in limits)])

    def read(self, start: int, end: int) -> Iterator[dict[str, Any]]:
        for after in range(start, end, self.page):
            for order in self._get("orders", after=after, to=min(after + self.page, end)):
                yield {**order, "ts": datetime.fromisoformat(order["ts"])}

    def count(self, start: int, end: int) -> int:
        return end - start

    def location(self) -> str:
        return self.url

    def _get(self, path: str, **query: int) -> Any:
        with urlopen(f"{self.url}/{path}?{urlencode(query)}", timeout=30) as answer:
            return json.load(answer)
