"""Copies the files of a checkpoint from one store to another, and the step that does it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.handover import hand_over
from airflow_provider_microbatch.exceptions import CheckpointError, MaintenanceError
from airflow_provider_microbatch.runtime.operator_schemas import is_addresses
from airflow_provider_microbatch.stores import Store
from airflow_provider_microbatch.stores.location import open_store

_METADATA = "metadata"
_OF_THE_PLACE = frozenset({"leases", "maintenance", "repaired", "streaming", _METADATA})
"""Files of the place itself: leases, folders that attempts show to Spark, and commands that ran there; and
``metadata``, which is copied last. Addresses that Spark keeps with state are the place's too."""

_GOING = "microbatch/retained/"
"""Entries that a process at the old place was about to remove."""


@dataclass(frozen=True, kw_only=True)
class Copy:
    """Copy a checkpoint, except files that only concern the place it lies at.

    :param source: location of the checkpoint.
    :param target: location of the copy.
    :param sources: names in the order of the pipeline, for a v1 log.
    :param hand_over: complete the copy for a streaming query.
    :param why: the reason, for people.
    :param changed: files that have another content in the copy, or are only there, by path.
    :param again: files of the source that the copy has under another path too, by this path.
    """

    kind: ClassVar[str] = "copy"

    source: str
    target: str
    sources: tuple[str, ...]
    hand_over: bool
    why: str
    changed: Mapping[str, str] = field(default_factory=dict)
    again: Mapping[str, str] = field(default_factory=dict)

    @property
    def what(self) -> str:
        """The object of the step, for people."""
        return f"{self.source} to {self.target}"

    def apply(self, store: Store, *, is_over: Callable[[], bool]) -> None:
        """Copy the files that are missing. :raises MaintenanceError: if the target has another file at a path."""
        source, target = open_store(self.source), open_store(self.target)
        is_whole = copy_checkpoint(source, target, is_over=is_over, changed=self.changed, again=self.again)
        if self.hand_over and is_whole and not is_over():
            hand_over(Checkpoint(open_store(self.target), sources=tuple(self.sources)))


def copy_checkpoint(
    source: Store,
    target: Store,
    *,
    is_over: Callable[[], bool],
    changed: Mapping[str, str] | None = None,
    again: Mapping[str, str] | None = None,
) -> bool:
    """Copy the files that are missing in the target, ``metadata`` last: every reader refuses half a copy, Spark too.

    :param is_over: whether the copy is no longer wanted; asked before each file, so that the caller can give a sign of
        life.
    :param changed: files that have another content in the copy, or are only there, by path.
    :param again: files of the source that the copy has under another path too, by this path.
    :return: whether the copy is complete.
    :raises MaintenanceError: if the target has another file at a path.
    """
    names = [name for name in source.list("") if name not in _OF_THE_PLACE]
    # One by one, not all names first: where a store cannot tell files from folders, they are read for that.
    for path in (path for name in sorted(names) for path in files_below(source, name)):
        if is_over():
            return False
        if not path.startswith(_GOING) and not is_addresses(path):
            _copy(source, target, path, (changed or {}).get(path))
    if is_over():
        return False
    for path in filter(is_addresses, changed or {}):
        _copy(source, target, path, (changed or {})[path])
    for path, origin in (again or {}).items():
        _copy(source, target, path, origin=origin)
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


def _copy(source: Store, target: Store, path: str, changed: str | None = None, *, origin: str | None = None) -> None:
    data = source.get(origin or path) if changed is None else changed.encode()
    if data is None:
        raise MaintenanceError(
            f"{source.location}/{origin or path} vanished while it was copied: somebody is at it. Stop that."
        )
    if not target.put_if_absent(path, data) and target.get(path) != data:
        raise MaintenanceError(f"{target.location}/{path} is there and is another one.")
