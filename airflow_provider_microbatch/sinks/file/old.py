"""What nobody needs any more beside a table's batches: fences of attempts, and output that was replaced."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from airflow_provider_microbatch.exceptions import PartlyRemovedError, SinkError
from airflow_provider_microbatch.sinks.file.removal import folder_of, remove_in
from airflow_provider_microbatch.stores.posix import PosixStore


def drop_old(root: Path, places: Iterable[Path], pattern: str, older_seconds: float, *, dry_run: bool) -> list[str]:
    """Remove what is older, by the file system's clock.

    :param root: the table.
    :param places: folders below it, in which it is looked for.
    :param pattern: what is looked for there.
    :param older_seconds: than what.
    :param dry_run: only say what would go.
    :return: paths of what went.
    :raises PartlyRemovedError: if something could not be removed; it says what went all the same.
    """
    all_kept = [kept for place in places for kept in sorted(place.glob(pattern))]
    if not all_kept:
        return []
    now_ms = PosixStore(root).now_ms()  # of a file server its own, as the change times below are
    found, failed = [], list[OSError | SinkError]()
    for kept in all_kept:
        try:
            with folder_of(root, kept) as held:
                # A rename sets the change time of what it moves: since then nobody can open it by its old name.
                changed_ns = os.stat(kept.name, dir_fd=held, follow_symlinks=False).st_ctime_ns
                if now_ms - changed_ns // 1_000_000 >= older_seconds * 1000:
                    if not dry_run:
                        remove_in(held, kept)
                    found.append(str(kept))
        except (OSError, SinkError) as error:
            failed.append(error)  # one that cannot go keeps none of the others
    if failed:
        partly = PartlyRemovedError(f"cannot remove {len(failed)} of {root}: {failed[0]}")
        partly.removed = tuple(found)  # who asked has to say of these too that they are gone
        raise partly from failed[0]
    return found
