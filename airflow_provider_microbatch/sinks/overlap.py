"""Finds two sinks that write to one table, or of which one writes within the other's table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from airflow_provider_microbatch.sinks import Sink


def first_overlap(sinks: Mapping[str, Sink]) -> tuple[str, str] | None:
    """Names of the first two sinks whose output readers of one table would see together, in the order of ``sinks``;
    None if each sink has a table of its own."""
    names, definitions = list(sinks), list(sinks.values())
    locations = [sink.location() for sink in definitions]
    for first, second in sorted(set(_candidates(definitions))):
        one, other = definitions[first], definitions[second]
        if one.is_same_place(other) or other.is_same_place(one):
            return names[first], names[second]
        if one.would_show(locations[second]) or other.would_show(locations[first]):
            return names[first], names[second]
    return None


def _candidates(sinks: Sequence[Sink]) -> Iterator[tuple[int, int]]:
    """Pairs of sinks that may overlap, by their positions. Two tables that are folders overlap only if one folder is
    the other, by its path or by a link, or lies below it: for a job of many tables hardly any pair is left to check."""
    folders = {at: folder for at, sink in enumerate(sinks) if (folder := sink.only_folder) is not None}
    for at in set(range(len(sinks))).difference(folders):
        yield from ((min(at, other), max(at, other)) for other in range(len(sinks)) if other != at)
    by_path: dict[Path, list[int]] = defaultdict(list)
    by_inode: dict[tuple[int, int], list[int]] = defaultdict(list)
    for at, folder in folders.items():
        by_path[folder].append(at)
        try:
            found = folder.stat()
        except OSError:
            continue
        by_inode[found.st_dev, found.st_ino].append(at)
    for at, folder in folders.items():
        near = [other for path in (folder, *folder.parents) for other in by_path.get(path, ())]
        yield from ((min(at, other), max(at, other)) for other in near if other != at)
    for same in by_inode.values():
        yield from ((first, second) for first in same for second in same if first < second)
