"""Which files of a checkpoint's state an attempt may still go on from; losers' and old files are removed.

Spark's names, of checkpoint format 2: ``state/<operator>/<partition>/[<store>/]<version>_<id>.changelog`` or ``….zip``,
where batch N writes version N+1 from version N, and ``SSTs/`` with the parts that snapshots (``.zip``) name.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from airflow_provider_microbatch.runtime.streaming import SNAPSHOT_EVERY

MARGIN_MS = 3_600_000
"""Milliseconds that a part of a snapshot is left alone although no snapshot names it: its attempt may run."""

_VERSIONED = re.compile(r"\.?(?P<version>[0-9]+)_(?P<id>[0-9a-f-]{36})\.(changelog|zip)(\.crc)*")
_PART = re.compile(r"\.?(?P<name>[^/]+\.(sst|log))(\.crc)*")


@dataclass(frozen=True, kw_only=True)
class Needed:
    """The files that are kept.

    :param newest: the newest committed batch: attempts that go on from it, and replays of it, may be alive.
    :param oldest: the oldest batch that may be gone back to.
    :param ids: by batch before the newest, as far as it is on record, the ids of the files that the next batch went on
        from.
    :param parts_before_ms: older parts of snapshots that no snapshot names belong to no attempt; by the clock of the
        file system, milliseconds since the epoch.
    :param since: the first batch of the pipeline, where a streaming query kept the state before it.
    """

    newest: int
    oldest: int
    ids: Mapping[int, frozenset[str]]
    parts_before_ms: int
    since: int = 0

    @property
    def base(self) -> int:
        """The batch whose snapshot the oldest one is read from; batches between add their changes."""
        return (self.oldest + 1) // SNAPSHOT_EVERY * SNAPSHOT_EVERY - 1

    def keeps(self, batch_id: int, id: str) -> bool:
        """Whether an attempt may go on from the files with this id that an attempt of the batch wrote."""
        if batch_id >= self.newest:
            return True
        if self.base < self.since and batch_id < self.since:
            # A streaming query takes its snapshots at batches of its own choice.
            return True
        return batch_id >= self.base and (batch_id not in self.ids or id in self.ids[batch_id])


def remove_unneeded(state: Path, needed: Needed) -> int:
    """Remove the files that are not needed. :return: how many files were removed."""
    removed = 0
    for partition in {path.parent for kind in ("*.changelog", "*.zip") for path in state.rglob(kind)}:
        removed += _remove_versions(partition, needed)
        removed += _remove_parts(partition, needed)
    return removed


def _remove_versions(partition: Path, needed: Needed) -> int:
    doomed = [
        path
        for path in partition.iterdir()
        if (found := _VERSIONED.fullmatch(path.name)) and not needed.keeps(int(found["version"]) - 1, found["id"])
    ]
    for path in doomed:
        path.unlink(missing_ok=True)
    return len(doomed)


def _remove_parts(partition: Path, needed: Needed) -> int:
    named = {name for snapshot in partition.glob("*.zip") for name in _parts_of(snapshot)}
    removed = 0
    for folder in ("SSTs", "logs"):
        for path in (partition / folder).glob("*") if (partition / folder).is_dir() else ():
            found = _PART.fullmatch(path.name)
            if found and found["name"] not in named and path.stat().st_mtime * 1000 < needed.parts_before_ms:
                path.unlink(missing_ok=True)
                removed += 1
    return removed


def _parts_of(snapshot: Path) -> Iterator[str]:
    """Names of the files that a snapshot is made of: RocksDB's metadata, which Spark puts into the archive."""
    with zipfile.ZipFile(snapshot) as archive:
        for line in archive.read("metadata").decode().splitlines()[1:]:
            values = json.loads(line)
            for kind in ("sstFiles", "logFiles"):
                for one in values.get(kind, ()):
                    yield one.get("dfsSstFileName") or one.get("dfsFileName") or ""


def flat(ids: object) -> Iterator[str]:
    """The ids of an operator, of its partitions and stores, or of all operators."""
    if isinstance(ids, Mapping):
        for one in ids.values():
            yield from flat(one)
    elif isinstance(ids, list):
        for one in ids:
            yield from flat(one)
    elif ids is not None:
        yield str(ids)
