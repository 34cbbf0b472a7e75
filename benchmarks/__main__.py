"""``python -m benchmarks [ROW …]``: measure, print the table, store the figures beside versions and machine."""

from __future__ import annotations

import importlib
import json
import os
import platform
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path


def _number(path: Path) -> int:
    return int(path.stem.partition("_")[0].removeprefix("p"))


# One file a row of the table: p4_warm.py is P4.
ROWS = {f"P{_number(path)}": path.stem for path in sorted(Path(__file__).parent.glob("p[0-9]*_*.py"), key=_number)}
RESULTS = Path(__file__).parent / "results"
PACKAGES = ("apache-airflow", "apache-airflow-providers-apache-spark", "pyspark")


def main(chosen: list[str]) -> int:
    """:param chosen: names of rows; all if empty.
    :return: the exit status: 2 for an unknown row. A missed reach is no failure, since machines differ.
    """
    unknown = [name for name in chosen if name not in ROWS]
    if unknown:
        print(f"unknown rows {', '.join(unknown)}; there are {', '.join(ROWS)}", file=sys.stderr)
        return 2
    before = {row["name"]: row["ratio"] for row in _latest().get("rows", [])}
    rows = []
    print(f"{'row':4} {'what':74} {'ours':>12} {'peer':>12}  ratio")
    for name in chosen or ROWS:
        measured = importlib.import_module(f"benchmarks.{ROWS[name]}").measure()
        for row in measured if isinstance(measured, list) else [measured]:
            rows.append(row)
            change = f", was {before[row.name]:.2f}" if row.name in before else ""
            print(row.line() + change, flush=True)
    _store({"rows": [row.to_dict() for row in rows]})
    return 0


def _latest() -> dict[str, list[dict[str, float]]]:
    stored = sorted(RESULTS.glob("*.json"))
    return json.loads(stored[-1].read_text()) if stored else {}


def _store(results: dict[str, object]) -> None:
    RESULTS.mkdir(exist_ok=True)
    now = datetime.now(UTC)
    machine = {"cpus": os.cpu_count(), "machine": platform.machine(), "python": platform.python_version()}
    versions = {name: version(name) for name in PACKAGES}
    document = {"at": now.isoformat(timespec="seconds"), "machine": machine, "versions": versions, **results}
    path = RESULTS / f"{now:%Y%m%dT%H%M%S}.json"
    path.write_text(json.dumps(document, indent=1) + "\n")
    print(f"\nstored in {path.relative_to(Path.cwd())}" if path.is_relative_to(Path.cwd()) else f"\nstored in {path}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
