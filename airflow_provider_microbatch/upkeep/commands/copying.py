"""Copies the files of a checkpoint from one store to another."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from airflow_provider_microbatch.exceptions import CheckpointError, MaintenanceError
from airflow_provider_microbatch.stores import Store

_METADATA = "metadata"
_OF_THE_PLACE = frozenset({"leases", "maintenance", "repaired", "streaming", _METADATA})
"""Files of the place itself: leases, folders that attempts show to Spark, and commands that ran there; and
``metadata``, which is copied last."""

_GOING = "microbatch/retained/"
"""Entries that a process at the old place was about to remove."""


def copy_checkpoint(
    source: Store, target: Store, *, is_over: Callable[[], bool], changed: Mapping[str, str] | None = None
) -> bool:
    """Copy the files that are missing in the target, ``metadata`` last: every reader refuses half a copy, Spark too.

    :param is_over: whether the copy is no longer wanted; asked before each file, so that the caller can give a sign of
        life.
    :param changed: files that have another content in the copy, by path.
    :return: whether the copy is complete.
    :raises MaintenanceError: if the target has another file at a path.
    """
    names = [name for name in source.list("") if name not in _OF_THE_PLACE]
    # One by one, not all names first: where a store cannot tell files from folders, they are read for that.
    for path in (path for name in sorted(names) for path in files_below(source, name)):
        if is_over():
            return False
        if not path.startswith(_GOING):
            _copy(source, target, path, (changed or {}).get(path))
    if is_over():
        return False
    _copy(source, target, _METADATA)
    return True


def files_below(store: Store, path: str) -> Iterator[str]:
    """``path`` if it is a file, else all files below it."""
    if is_file(store, path):
        yield path
        return
    names = sorted(store.list(path))
    # What is certainly no folder need not be read to know that: a file of state may be large.
    folders = set(store.folders(path)) if names else set()
    for name in names:
        below = f"{path}/{name}"
        yield from files_below(store, below) if name in folders else (below,)


def is_file(store: Store, path: str) -> bool:
    """Whether the path has bytes; a folder has none, and a store may refuse to read a folder."""
    try:
        return store.get(path) is not None
    except CheckpointError:
        return False


def _copy(source: Store, target: Store, path: str, changed: str | None = None) -> None:
    data = source.get(path) if changed is None else changed.encode()
    if data is None:
        raise MaintenanceError(f"{source.location}/{path} vanished while it was copied: somebody is at it. Stop that.")
    if not target.put_if_absent(path, data) and target.get(path) != data:
        raise MaintenanceError(f"{target.location}/{path} is there and is another one.")
