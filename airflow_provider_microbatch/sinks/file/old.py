"""Removes old leftovers beside a table's batches: fence marks of attempts, and output that was replaced."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from airflow_provider_microbatch.exceptions import PartlyRemovedError, SinkError
from airflow_provider_microbatch.sinks.file.removal import folder_of, remove_in
from airflow_provider_microbatch.stores.posix import PosixStore


def drop_old(root: Path, places: Iterable[Path], pattern: str, older_seconds: float, *, dry_run: bool) -> list[str]:
    """Remove files and folders that are older than ``older_seconds``, by the file system's clock.

    :param root: the table's folder.
    :param places: folders below it to search.
    :param pattern: glob pattern of the paths to remove.
    :param older_seconds: the minimum age.
    :param dry_run: only return what would be removed.
    :return: paths of what was removed.
    :raises PartlyRemovedError: if a path could not be removed; the error lists the paths that were.
    """
    all_kept = [kept for place in places for kept in sorted(place.glob(pattern))]
    if not all_kept:
        return []
    now_ms = PosixStore(root).now_ms()  # a file server's own clock, as for the change times below
    found, failed = [], list[OSError | SinkError]()
    for kept in all_kept:
        try:
            with folder_of(root, kept) as held:
                # A rename sets the change time of what it moves: since then no reader can open it under its old name.
                changed_ns = os.stat(kept.name, dir_fd=held, follow_symlinks=False).st_ctime_ns
                if now_ms - changed_ns // 1_000_000 >= older_seconds * 1000:
                    if not dry_run:
                        remove_in(held, kept)
                    found.append(str(kept))
        except (OSError, SinkError) as error:
            failed.append(error)  # a path that cannot be removed does not stop the others
    if failed:
        partly = PartlyRemovedError(f"cannot remove {len(failed)} of {root}: {failed[0]}")
        partly.removed = tuple(found)  # the caller has to report these as removed too
        raise partly from failed[0]
    return found
