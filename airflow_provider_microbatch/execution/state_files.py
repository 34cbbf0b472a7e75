"""Which files of a checkpoint's state an attempt may still go on from; losers' and old files are removed.

Spark's names, of checkpoint format 2: ``state/<operator>/<partition>/[<store>/]<version>_<id>.changelog`` or ``….zip``,
where batch N writes version N+1 from version N, and ``SSTs/`` with the parts that snapshots (``.zip``) name.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from airflow_provider_microbatch.execution.state_folders import (
    entries_of,
    opened_below,
    parts_of,
    size_told,
    state_folders,
)
from airflow_provider_microbatch.runtime.streaming import SNAPSHOT_EVERY

log = logging.getLogger(__name__)

MARGIN_MS = 3_600_000
"""Milliseconds that a part of a snapshot is left alone although no snapshot names it: its attempt may run."""

_VERSIONED = re.compile(r"\.?(?P<version>[0-9]+)_(?P<id>[0-9a-f-]{36})\.(?P<kind>changelog|zip)(?P<sum>\.crc)*")
_SNAPSHOT = re.compile(r"[0-9]+_[0-9a-f-]{36}\.zip")
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
    """Remove the files that are not needed. Others may write there: nothing behind a link is looked at or removed.

    :return: how many files were removed.
    :raises NotADirectoryError: if the folder itself is a link.
    """
    removed = 0
    for folder, where, names in state_folders(state):
        if any(name.endswith((".changelog", ".zip")) for name in names):
            removed += _remove_versions(folder, names, needed)
            removed += _remove_parts(folder, where, names, needed)
    return removed


def versions_in(state: Path) -> Iterator[tuple[int, str, str]]:
    """Version, id and kind (``zip`` of a snapshot, or ``changelog``) of the files of versions that are there."""
    for _, _, names in state_folders(state):
        for found in filter(None, map(_VERSIONED.fullmatch, names)):
            if not found["sum"] and not found.string.startswith("."):
                yield int(found["version"]), found["id"], found["kind"]


def cut_off(state: Path, versions: Collection[tuple[int, str]]) -> str | None:
    """A file of one of these versions that has not the size with which Spark wrote it, as a path below the folder; None
    if each has, as far as the files of Spark's checksums tell, which 4.1 and later versions write beside them.

    :param versions: with the ids.
    :raises OSError: if one cannot be looked at.
    """
    for folder, where, names in state_folders(state):
        there = set(names)
        for found in filter(None, map(_VERSIONED.fullmatch, names)):
            name, version = found.string, (int(found["version"]), found["id"])
            if found["sum"] or name.startswith(".") or version not in versions or f"{name}.crc" not in there:
                continue
            with suppress(FileNotFoundError):  # it is gone by now, which others tell
                told, size = (
                    size_told(folder, f"{name}.crc"),
                    os.stat(name, dir_fd=folder, follow_symlinks=False).st_size,
                )
                if size == 0 or told not in (None, size):  # what was lost with a machine's power has neither
                    return str((where / name).relative_to(state))
    return None


def unreadable_snapshot(state: Path, version: int, ids: Collection[str]) -> str | None:
    """What is missing of one of these snapshots, as a path below the folder: a part that is not there, or all of it
    where it is none of Spark's, as an empty file. None if they are whole, as far as names tell.

    :raises OSError: if one cannot be read.
    """
    for folder, where, names in state_folders(state):
        for name in filter(_SNAPSHOT.fullmatch, names):
            number, _, id = name.removesuffix(".zip").partition("_")
            if int(number) != version or id not in ids:
                continue
            try:
                parts = parts_of(folder, name)
            except OSError:
                raise  # whether it is one of Spark's, nobody can tell
            except Exception:  # any, as the archive's reader does
                return str((where / name).relative_to(state))
            for kind in {"SSTs", "logs"}.intersection(names):
                with opened_below(folder, where / kind) as inner:
                    if inner is None:
                        raise OSError(f"{where / kind} cannot be opened")
                    parts -= {part.name for part in entries_of(inner)}
            if parts:
                return f"{where.relative_to(state)}/…/{min(parts)}"
    return None


def _remove_versions(folder: int, names: Sequence[str], needed: Needed) -> int:
    doomed = [
        name
        for name in names
        if (found := _VERSIONED.fullmatch(name)) and not needed.keeps(int(found["version"]) - 1, found["id"])
    ]
    return sum(_remove(folder, name) for name in doomed)


def _remove_parts(folder: int, where: Path, names: Sequence[str], needed: Needed) -> int:
    named: set[str] = set()
    for name in filter(_SNAPSHOT.fullmatch, names):
        try:
            named.update(parts_of(folder, name))
        except FileNotFoundError:
            continue  # removed just now, as no longer needed
        except OSError as error:
            log.warning("%s cannot be read: the parts beside it are kept (%s)", where / name, error)
            return 0
        except Exception as error:
            log.warning(
                "%s is no snapshot of Spark's (%s): the parts beside it are kept, as long as it is there. Look who put "
                "it there, and remove it if nobody needs it",
                where / name,
                error or type(error).__name__,
            )
            return 0
    removed = 0
    for kind in {"SSTs", "logs"}.intersection(names):
        with opened_below(folder, where / kind) as parts:
            if parts is None:
                continue
            for part in entries_of(parts):
                found = _PART.fullmatch(part.name)
                if found is None or found["name"] in named:
                    continue
                if part.stat(follow_symlinks=False).st_mtime * 1000 < needed.parts_before_ms:
                    removed += _remove(parts, part.name)
    return removed


def _remove(folder: int, name: str) -> bool:
    try:
        os.unlink(name, dir_fd=folder)
    except (FileNotFoundError, IsADirectoryError):  # a folder of this name is none of Spark's
        return False
    return True


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
