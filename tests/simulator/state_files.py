"""State of one partition in files, as Spark's RocksDB keeps it in checkpoint format 2.

Batch N writes version N+1, under an id that no other attempt has, as a change or as a snapshot. Of a snapshot's parts
some are those of an older one.
"""

from __future__ import annotations

import json
import os
import time
import uuid
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SNAPSHOT_EVERY = 3
"""In place of ten: a world has few batches."""

Change = dict[str, Any]
"""What one batch has added."""


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """State as a batch begins with it.

    :param changes: what each batch has added, the oldest first.
    :param lineage: version and id of the files that it is made of, from the snapshot on.
    :param parts: names of that snapshot's parts, and how many of the changes are in them.
    """

    changes: Sequence[Change] = ()
    lineage: Sequence[tuple[int, str]] = ()
    parts: Sequence[tuple[str, int]] = ()


NOTHING = Loaded()


@dataclass(frozen=True)
class Partition:
    """:param folder: of the partition, below that of the state."""

    folder: Path

    def load(self, version: int, id: str | None) -> Loaded:
        """The state of a version; before the first there is none.

        :raises OSError: if one of its files is not there.
        """
        if id is None:
            return NOTHING
        if self._snapshot(version, id).exists():
            return self._of_snapshot(version, id)
        told = json.loads(self._change(version, id).read_text())
        base, *later = [(int(version), str(id)) for version, id in told["lineage"]]
        loaded = self._of_snapshot(*base)
        changes = [*loaded.changes, *(json.loads(self._change(*one).read_text())["change"] for one in later)]
        return Loaded(changes=[*changes, told["change"]], lineage=[base, *later, (version, id)], parts=loaded.parts)

    def files(self, version: int, id: str) -> set[Path]:
        """All files that the version is read from.

        :raises OSError: if one of them is not there.
        """
        loaded = self.load(version, id)
        (first, *later), parts = loaded.lineage, {self.folder / "SSTs" / name for name, _ in loaded.parts}
        return {self._snapshot(*first), *(self._change(*one) for one in later), *parts}

    def write(self, version: int, before: Loaded, change: Change, *, whole: bool) -> str:
        """The next version, by the running attempt.

        :param whole: as a snapshot.
        :return: its id.
        """
        id = str(uuid.uuid4())
        self.folder.mkdir(parents=True, exist_ok=True)
        if not whole:
            text = json.dumps({"lineage": before.lineage, "change": change})
            _appear(self._change(version, id), text.encode())
            return id
        changes = [*before.changes, change]
        new, held = f"{uuid.uuid4()}.sst", sum(count for _, count in before.parts)
        (self.folder / "SSTs").mkdir(exist_ok=True)
        _appear(self.folder / "SSTs" / new, json.dumps(changes[held:]).encode())
        parts = [*before.parts, (new, len(changes) - held)]
        named = [{"localFileName": f"{count}.sst", "dfsSstFileName": name} for name, count in parts]
        hidden = self.folder / f".{version}_{id}.zip"
        with zipfile.ZipFile(hidden, "w") as archive:
            archive.writestr("metadata", "v1\n" + json.dumps({"sstFiles": named, "numKeys": len(changes)}))
        hidden.rename(self._snapshot(version, id))
        return id

    def _of_snapshot(self, version: int, id: str) -> Loaded:
        parts = _named_by(self._snapshot(version, id))
        changes = [one for name, _ in parts for one in json.loads((self.folder / "SSTs" / name).read_text())]
        return Loaded(changes=changes, lineage=[(version, id)], parts=parts)

    def _snapshot(self, version: int, id: str) -> Path:
        return self.folder / f"{version}_{id}.zip"

    def _change(self, version: int, id: str) -> Path:
        return self.folder / f"{version}_{id}.changelog"


def parts_of(snapshot: Path) -> list[str]:
    """Names of a snapshot's parts."""
    return [name for name, _ in _named_by(snapshot)]


def _named_by(snapshot: Path) -> list[tuple[str, int]]:
    """The same, and how many of the changes each has."""
    with zipfile.ZipFile(snapshot) as archive:
        named = json.loads(archive.read("metadata").decode().partition("\n")[2])["sstFiles"]
    return [(one["dfsSstFileName"], int(one["localFileName"].partition(".")[0])) for one in named]


def is_whole(batch_id: int, *, since: int | None) -> bool:
    """Whether a batch uploads a snapshot, as the runtime tells Spark.

    :param since: the first batch behind those of a query; None without one.
    """
    return batch_id in (0, since) or (batch_id + 1) % SNAPSHOT_EVERY == 0


def _appear(path: Path, data: bytes) -> None:
    """The file is whole when it is there; its time is the world's."""
    hidden = path.with_name(f".{path.name}.tmp")
    hidden.write_bytes(data)
    os.utime(hidden, (time.time(), time.time()))
    hidden.rename(path)
