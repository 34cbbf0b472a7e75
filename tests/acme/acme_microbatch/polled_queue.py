"""A polled source: lines that others append to a file, each of which is a JSON list of rows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_provider_microbatch import PollingSource


@dataclass(frozen=True)
class PolledQueue(PollingSource):
    """The lines of a file. Offsets count lines.

    :param path: the file.
    :param max_lines: most lines in a batch; None for no limit.
    """

    path: str
    max_lines: int | None = None

    schema = "id long"

    def initial_offset(self) -> dict[str, int]:
        return {"n": 0}

    def latest_offset(self, start: dict[str, int], limit: Any) -> dict[str, int]:
        most = [one for one in (self.max_lines, limit.splits) if one is not None]
        return {"n": max(start["n"], min([self._head(), *(start["n"] + one for one in most)]))}

    def read(self, start: dict[str, int], end: dict[str, int]) -> Iterator[dict[str, Any]]:
        for line in Path(self.path).read_text().splitlines()[start["n"] : end["n"]]:
            yield from json.loads(line)

    def is_after(self, offset: dict[str, int], other: dict[str, int]) -> bool:
        return offset["n"] > other["n"]

    def _head(self) -> int:
        return Path(self.path).read_bytes().count(b"\n")
