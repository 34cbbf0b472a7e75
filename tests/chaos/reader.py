"""A reader that lists a table again and again, as a process of its own: ``python -S -m tests.chaos.reader <lake>
[seconds between two reads]``.

At every read each batch must be there once and whole: what was seen before is seen again with the same rows, all of one
version, which never goes back. Prints ``reading`` when it begins, and how often it read when ``<lake>/_stop`` appears.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

Seen = dict[str, tuple[list[int], int]]


def read_batch(folder: Path) -> tuple[list[int], int] | None:
    """Ids and version of a batch; None if it was replaced while it was read: the reader is told so, and lists again."""
    try:
        rows = [json.loads(line) for path in folder.glob("part-*") for line in path.read_text().splitlines()]
        if not (folder / "_manifest").is_dir():
            return None
    except FileNotFoundError:
        return None
    versions = {row["version"] for row in rows}
    if len(versions) != 1:
        raise AssertionError(f"{folder} has rows of versions {versions}")
    return sorted(row["id"] for row in rows), versions.pop()


def read(lake: Path, before: Seen) -> Seen:
    """One look at the whole table."""
    seen: Seen = {}
    for folder in lake.glob("lane=*/batch_id=*"):
        found = read_batch(folder)
        while found is None:
            found = read_batch(folder)
        seen[folder.name] = found
    every = [row for rows, _ in seen.values() for row in rows]
    if len(every) != len(set(every)):
        raise AssertionError(f"rows are there twice: {seen}")
    for batch, (rows, version) in before.items():
        if batch not in seen:
            raise AssertionError(f"{batch} is gone")
        if seen[batch][0] != rows:
            raise AssertionError(f"{batch} had rows {rows} and has {seen[batch][0]}")
        if seen[batch][1] < version:
            raise AssertionError(f"{batch} went back from version {version} to {seen[batch][1]}")
    return seen


def main(lake: Path, pause: float) -> None:
    print("reading", flush=True)
    looks, seen = 0, Seen()
    while not (lake / "_stop").exists():
        seen = read(lake, seen)
        looks += 1
        time.sleep(pause)
    read(lake, seen)
    print(looks, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 0.0)
