"""What the commits of a Delta table tell of its batches: when each was published, and what has put it back since."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import Any

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.sinks.delta.log import Snapshot
from airflow_provider_microbatch.sinks.delta.put_back import PutBack, is_restore, put_back, target_of

_NUMBER = re.compile(r"[0-9a-f]{16}")


class History:
    """:param infos: of the commits up to a version, newest first, as far back as they are read, or the log has them.
    :param now: the table at that version.
    """

    def __init__(self, infos: Sequence[Mapping[str, Any]], *, now: Snapshot) -> None:
        self._infos = infos
        self._now = now
        self._files = dict[int, int | None]()
        self._last = dict[str, str]()
        self._next: int | None = now.version

    def since(self, key: BatchKey, number: str) -> tuple[Sequence[Mapping[str, Any]], int | None]:
        """The commits since the batch was published, newest first, and the version of that; all, and None, if it is not
        among them.

        :param number: number of the batch's manifest, as the commit info has it.
        """
        at = self._published.get((str(key), number))
        return (self._infos, None) if at is None else (self._infos[:at], self._infos[at]["version"])

    def put_back(self, since: int) -> PutBack | None:
        """What has put the table back to before a version that the history has; None if nothing has."""
        # What others write anew by an overwrite may be the batch's rows.
        restored = [info for info in self._infos if info["version"] > since and is_restore(info)]
        return put_back(restored, at=self._now.version, since=since, led_to=partial(self._led_to, since))

    def put_back_to_before(self) -> PutBack | None:
        """What has put the table back to before the oldest commit of the history; None if nothing has, or if there was
        nothing before."""
        oldest = self._infos[-1]["version"] if self._infos else 0
        restored = [info for info in self._infos if oldest > 0 and is_restore(info)]
        return put_back(restored, at=self._now.version, since=oldest, led_to=partial(self._led_to, oldest))

    def last_of(self, key: BatchKey) -> int | None:
        """Number of the manifest that the table's rows of the batch were published by, through each RESTORE to what was
        there at its version; None if the history does not tell."""
        batch = str(key)
        # For all batches it is gone through once, and no further than asked: a RESTORE to a moment takes an opening of
        # each version that it may have led to.
        while batch not in self._last and self._next is not None:
            self._next = self._read(self._next)
        told = self._last.get(batch, "")
        return int(told, 16) if _NUMBER.fullmatch(told) else None

    def _read(self, at: int) -> int | None:
        """Note of which batch the commit is, and return the version that it came upon; None if nobody can tell."""
        info = self._by_version.get(at)
        if info is None:
            return None
        if is_ours(info):
            self._last.setdefault(str(info["microbatch"].get("batch")), str(info["microbatch"].get("manifest")))
        back = self._led_to(min(self._by_version), info) if is_restore(info) else at - 1
        return None if back is None or back >= at else back  # anybody may write an info

    @cached_property
    def _by_version(self) -> Mapping[int, Mapping[str, Any]]:
        return {info["version"]: info for info in self._infos}

    def _led_to(self, since: int, info: Mapping[str, Any]) -> int | None:
        """The version that a RESTORE has gone back to. For one to a moment, the newest version with the files that it
        left, from ``since`` on: Spark records the moment as text in a time zone that nobody knows later, and the times
        of a log's files change when it is copied."""
        target, version = target_of(info), info["version"]
        left = None if target is not None else self._files_of(version)
        if left is None:
            return target
        return next((one for one in range(version - 1, since - 1, -1) if self._files_of(one) == left), None)

    def _files_of(self, version: int) -> int | None:
        """What tells the files of a version from those of another; None if the log does not have it any more."""
        if version not in self._files:
            snapshot = self._now.log.at(version)
            paths = None if snapshot is None else frozenset(one["path"] for one in snapshot.files("path"))
            self._files[version] = None if paths is None else hash(paths)
        return self._files[version]

    @cached_property
    def _published(self) -> dict[tuple[str, str], int]:
        """Where the commits of batches are in the history, by batch and number of the manifest."""
        # The newest counts, whatever anybody has written into an older one.
        ours = [(at, info["microbatch"]) for at, info in enumerate(self._infos) if is_ours(info)][::-1]
        return {(str(one.get("batch")), str(one.get("manifest"))): at for at, one in ours}


def is_ours(info: Mapping[str, Any]) -> bool:
    """Whether this package has made the commit."""
    return isinstance(info.get("microbatch"), Mapping)


def is_of_batch(info: Mapping[str, Any]) -> bool:
    """Whether the commit has brought a batch into a table that was there, or taken one out. Others of this package make
    a table without a row, drop a stage or join files."""
    return is_ours(info) and "manifest" in info["microbatch"]
