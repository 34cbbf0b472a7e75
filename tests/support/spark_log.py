"""Spark's rule for the log of a file source (``CompactibleFileStreamLog``), as a function of the folder's names."""

from __future__ import annotations

from pathlib import Path

DEFAULT_INTERVAL = 10


def compact_interval(compacted: list[int], configured: int = DEFAULT_INTERVAL) -> int:
    """How far apart Spark takes the ``.compact`` files to be."""
    if len(compacted) >= 2:
        return compacted[-1] - compacted[-2]
    if not compacted:
        return configured
    count = compacted[0] + 1
    if count <= configured:
        return count
    if configured < count // 2:
        return next((number for number in range(configured, count // 2 + 1) if count % number == 0), count)
    return count


def files_spark_reads(folder: Path, configured: int = DEFAULT_INTERVAL) -> list[str]:
    """Names that Spark opens when a query starts: the newest ``.compact`` by its reckoning, and all after it."""
    names = [path.name for path in folder.iterdir() if not path.name.startswith(".")]
    compacted = sorted(int(name.removesuffix(".compact")) for name in names if name.endswith(".compact"))
    interval = compact_interval(compacted, configured)
    newest = max(int(name.removesuffix(".compact")) for name in names)
    first = max(0, (newest + 1) // interval * interval - 1)
    return [f"{number}.compact" if (number + 1) % interval == 0 else str(number) for number in range(first, newest + 1)]
