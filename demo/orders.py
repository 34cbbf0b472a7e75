"""Order files, as a shop's till would land them: JSON lines, made complete elsewhere and moved in by one rename."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

_OPENED = datetime(2026, 1, 1, 8, 0, tzinfo=UTC)
_CUSTOMERS = ("Ada", "Grace", "Jürgen", "Zoë", "李雷")


def order(number: int) -> dict[str, Any]:
    """Order ``number``: the same values at every call."""
    placed = _OPENED + timedelta(seconds=37 * number)
    return {
        "id": number,
        "customer": _CUSTOMERS[number % len(_CUSTOMERS)],
        "amount": round(5 + (number * 7919 % 20000) / 100, 2),
        "ts": placed.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
    }


class Till:
    """Lands order files; ids count on over all files.

    :param landing: folder that the pipeline reads; None if :meth:`put` lands elsewhere.
    :param rows: orders in a file.
    """

    def __init__(self, landing: Path | None, *, rows: int = 40) -> None:
        self._rows = rows
        self._files = 0
        if landing is not None:
            self._landing = landing
            self._unfinished = landing.parent / f".{landing.name}-unfinished"
            landing.mkdir(parents=True, exist_ok=True)
            self._unfinished.mkdir(exist_ok=True)

    def land(self, files: int) -> int:
        """Land so many files; returns how many orders they hold."""
        for _ in range(files):
            first = self._files * self._rows
            lines = (json.dumps(order(first + row), ensure_ascii=False) for row in range(self._rows))
            name = f"orders-{self._files:04d}.json"
            self.put(name, "\n".join(lines) + "\n")
            self._files += 1
        return files * self._rows

    def put(self, name: str, text: str) -> None:
        """One file, whole at once."""
        unfinished = self._unfinished / name
        unfinished.write_text(text, encoding="utf-8")
        # A reader that lists the landing folder sees whole files only: rename is atomic within a file system.
        unfinished.rename(self._landing / name)
