"""Small files of a table become few, and nothing else about the table changes: neither its rows, nor which of them
belong to which batch, nor what says that a batch is in.

A compaction is no attempt. It takes no epoch and writes no entry of a checkpoint. A replay may undo what it has done;
what it has prepared it gives up if the batch has changed meanwhile.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.checkpoint.known_tables import KnownTables
from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.sinks.manifest import Manifest

TARGET_BYTES = 128 * 1024 * 1024
"""The size in bytes that joined files have at most."""

OF_OTHERS = "of another checkpoint, or from before batches had identities"
CHANGED = "replaced, withdrawn or changed meanwhile: the next compaction looks again"

_SMALL = 0.75
"""A file of this share of the target is large enough: without a margin, each run would join the last one's output."""

_OF_THE_TABLE = (errno.ENOTSUP, errno.ENOSPC, errno.EDQUOT, errno.EROFS)
"""Errors that are no batch's own."""

File = TypeVar("File")
Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class Compaction:
    """What is asked of a table.

    :param checkpoint: id of the checkpoint whose batches are compacted; batches of other checkpoints stay as they are.
    :param tables: the checkpoint's knowledge of its tables.
    :param left_alone: why a batch must not be written anew, in words; None if it may be. Asked before a batch is read,
        and once more before its files take the place of the old ones.
    :param target_bytes: the size that a joined file has at most, in bytes.
    :param dry_run: only count.
    """

    checkpoint: str
    tables: KnownTables
    left_alone: Callable[[Manifest], str | None]
    target_bytes: int = TARGET_BYTES
    dry_run: bool = False

    def refusal(self, found: Manifest) -> str | None:
        """Why the output stays as it is, in words; None if it may be compacted."""
        if found.identity is None or found.identity.checkpoint != self.checkpoint:
            return OF_OTHERS
        return self.left_alone(found)


@dataclass(kw_only=True)
class Compacted:
    """What was done to a table, or would be.

    :param batches: batches with rows in files that were joined.
    :param files_before: files that were joined.
    :param files_after: files that they became.
    :param bytes_before: bytes of the joined files.
    :param bytes_after: bytes of the files that they became; in a dry run unknown, and as many as before.
    :param left: batches that stayed as they were, by the reason in words.
    """

    batches: set[BatchKey] = field(default_factory=set)
    files_before: int = 0
    files_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    left: dict[str, set[BatchKey]] = field(default_factory=dict)

    def leave(self, key: BatchKey, why: str) -> None:
        """Record that a batch stays as it is."""
        self.left.setdefault(why, set()).add(key)

    def join(self, batches: Iterable[BatchKey], before: Sequence[int], after: Sequence[int]) -> None:
        """Record that files were joined.

        :param before: the size of each of them, in bytes.
        :param after: the size of each file that they became.
        """
        self.batches.update(batches)
        self.files_before += len(before)
        self.files_after += len(after)
        self.bytes_before += sum(before)
        self.bytes_after += sum(after)


class Joining(Protocol):
    """How files of a format become one file."""

    def kind(self, file: Path) -> Hashable:
        """What two files must have in common to be joined.

        :raises SinkError: if the file cannot be joined with any.
        """
        ...

    def join(self, files: Sequence[Path], target: Path) -> None:
        """Write a file with the rows of the given files, which are of one kind, in their order.

        :raises SinkError: if the file would not hold just these rows.
        """
        ...


def tried(key: BatchKey, done: Compacted, what: Callable[[], Result]) -> Result | None:
    """What ``what`` returns; None where the batch is left for an error of its own: one batch, such as one whose lock is
    held, or in whose folder somebody has put what cannot be copied, keeps no other batch small.

    :raises OSError: for an error of the file system that each further batch would meet too.
    """
    try:
        return what()
    except SinkError as error:
        done.leave(key, str(error))
    except FileNotFoundError:
        done.leave(key, CHANGED)  # a replay puts other files in their place while they are read
    except OSError as error:
        if error.errno in _OF_THE_TABLE:
            raise
        done.leave(key, str(error))
    return None


def is_small(size: int, target_bytes: int) -> bool:
    """Whether a file of that size, in bytes, is to be joined with others."""
    return size < target_bytes * _SMALL


def pack(files: Iterable[tuple[File, int]], target_bytes: int) -> list[list[File]]:
    """Small neighbours that fit into one file together; each group has at least two.

    :param files: files in their order, each with its size in bytes.
    """
    groups, room = [list[File]()], target_bytes
    for file, size in files:
        if not is_small(size, target_bytes):
            continue
        if size > room:
            groups.append([])
            room = target_bytes
        groups[-1].append(file)
        room -= size
    return [group for group in groups if len(group) > 1]
