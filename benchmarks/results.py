"""Stored figures, and what became slower since."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.harness import Row

FOLDER = Path(__file__).parent / "results"
PACKAGES = ("apache-airflow", "apache-airflow-providers-apache-spark", "pyspark")

REGRESSION = 1.15
"""A ratio so many times the last one is reported. Ratios of one machine differ by some percent from run to run."""


def store(rows: Sequence[Row], folder: Path = FOLDER) -> Path:
    """Write the rows beside machine and versions; returns the file."""
    folder.mkdir(exist_ok=True)
    now = datetime.now(UTC)
    document = {
        "at": now.isoformat(timespec="seconds"),
        "machine": {"cpus": os.cpu_count(), "machine": platform.machine(), "python": platform.python_version()},
        "versions": {name: version(name) for name in PACKAGES},
        "rows": [row.to_dict() for row in rows],
    }
    path = folder / f"{now:%Y%m%dT%H%M%S}.json"
    path.write_text(json.dumps(document, indent=1) + "\n")
    return path


def last_ratios(folder: Path = FOLDER) -> dict[tuple[str, str], float]:
    """By name and description (which holds the scale) of a row: its ratio when it was measured last. A run of one row
    hides nothing of the others."""
    ratios: dict[tuple[str, str], float] = {}
    for path in sorted(folder.glob("*.json")):
        rows: list[dict[str, Any]] = json.loads(path.read_text())["rows"]
        ratios |= {(row["name"], row["what"]): row["ratio"] for row in rows}
    return ratios


def regressions(rows: Sequence[Row], before: dict[tuple[str, str], float]) -> list[str]:
    """A line for each row that is clearly worse than when it was stored last."""
    found = []
    for row in rows:
        was = before.get((row.name, row.what))
        if was is not None and row.ratio > was * REGRESSION:
            found.append(f"{row.name}: {row.ratio:.4g}, was {was:.4g} ({row.ratio / was - 1:+.0%})")
    return found
