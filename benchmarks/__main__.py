"""``python -m benchmarks [ROW …]``: measure, print the table, say what became slower, store the figures."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from benchmarks.harness import Row
from benchmarks.results import last_ratios, regressions, store


def _number(path: Path) -> int:
    return int(path.stem.partition("_")[0].removeprefix("p"))


# One file a row of the table: p4_warm.py is P4.
ROWS = {f"P{_number(path)}": path.stem for path in sorted(Path(__file__).parent.glob("p[0-9]*_*.py"), key=_number)}


def main(chosen: list[str]) -> int:
    """:param chosen: names of rows; all if empty.
    :return: the exit status: 2 for an unknown row. A missed reach is no failure, since machines differ.
    """
    unknown = [name for name in chosen if name not in ROWS]
    if unknown:
        print(f"unknown rows {', '.join(unknown)}; there are {', '.join(ROWS)}", file=sys.stderr)
        return 2
    before = last_ratios()
    rows: list[Row] = []
    print(f"{'row':4} {'what':74} {'ours':>12} {'peer':>12}  ratio")
    for name in chosen or ROWS:
        measured = importlib.import_module(f"benchmarks.{ROWS[name]}").measure()
        for row in measured if isinstance(measured, list) else [measured]:
            rows.append(row)
            was = before.get((row.name, row.what))
            print(row.line() + ("" if was is None else f", was {was:.4g}"), flush=True)
    worse = regressions(rows, before)
    compared = sum((row.name, row.what) in before for row in rows)
    print(f"\n{compared} of {len(rows)} rows compared with their last stored ratio; {len(worse)} worse")
    for line in worse:
        print(f"  {line}")
    path = store(rows)
    print(f"stored in {path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
