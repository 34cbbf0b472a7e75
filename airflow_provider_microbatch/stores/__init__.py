"""Where the bytes of a checkpoint lie. Storage knows nothing of what the bytes mean; the codec does."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, Self

from airflow_provider_microbatch.exceptions import CheckpointError


def check_path(path: str) -> str:
    """Return ``path`` if it is relative and stays below its store.

    :raises CheckpointError: for an empty path, a component that is empty or begins with a dot (stores hide those), a
        NUL byte, or a leading slash.
    """
    if "\0" in path or any(not part or part.startswith(".") for part in path.split("/")):
        raise CheckpointError(
            f"{path!r} is no path of a checkpoint: use names between slashes, none of them empty or with a leading dot."
        )
    return path


@dataclass(frozen=True, kw_only=True)
class Litter:
    """Something in a store that is no entry and no use, such as a write that was cut off.

    :param path: relative to the store.
    :param why: the reason, for people.
    """

    path: str
    why: str


class Store(Protocol):
    """A small key-value store with put-if-absent, the one operation every guarantee of this package stands on.

    Paths are relative, ``/``-separated, without empty, ``.`` or ``..`` components. All methods raise
    :class:`~airflow_provider_microbatch.exceptions.CheckpointError` when the storage cannot be reached or read.

    A class is found by the scheme of an address (``registry.STORES``) and made by :meth:`at`.
    """

    @classmethod
    def at(cls, location: str) -> Self:
        """The store at an address, as a user writes it into a pipeline. Touches nothing: DAG files are parsed often.

        :raises CheckpointError: if it is no address of such a store.
        """
        raise CheckpointError(f"{location!r}: a {cls.__name__} is made of no address.")

    @property
    def location(self) -> str:
        """The address a person would recognise, for messages."""

    def put_if_absent(self, path: str, data: bytes) -> bool:
        """Write ``data`` at ``path`` unless something is there.

        When this returns True the whole of ``data`` is durable; a crash leaves all of it or nothing.

        :return: False if something was there already (it is left as it is).
        """

    def get(self, path: str) -> bytes | None:
        """The bytes at ``path``, or None if nothing is there."""

    def get_range(self, path: str, start: int, size: int) -> bytes | None:
        """``size`` bytes at ``path`` from ``start`` on, fewer where it ends; None if nothing is there.

        A store that cannot read a part of an entry reads all of it.
        """
        data = self.get(path)
        return None if data is None else data[start : start + size]

    def list(self, folder: str) -> list[str]:
        """Names of the entries directly in ``folder`` (files and folders, unsorted); empty if there is no folder.

        Names that a writer has not finished are never among them.
        """

    def folders(self, folder: str) -> Sequence[str]:
        """Names as :meth:`list` has them, but for those that are certainly no folders: what is listed next.

        A store that cannot tell at no cost names them all.
        """
        return self.list(folder)

    def delete(self, path: str) -> bool:
        """Remove the entry at ``path``; False if nothing was there. Used by retention and repair only."""

    def delete_if(self, path: str, data: bytes) -> bool:
        """Remove the entry at ``path`` if it is ``data``, and nothing else: what has come in its place since somebody
        looked, or comes at this moment, stays.

        A store that can compare and remove at once does so; this looks just before.

        :return: False if nothing, or something else, was there.
        """
        return self.get(path) == data and self.delete(path)

    def delete_many(self, paths: Iterable[str]) -> None:
        """Remove entries of one folder, in this order. A crash in between leaves the later ones."""
        for path in paths:
            self.delete(path)

    def now_ms(self) -> int:
        """The store's own clock, milliseconds since the epoch: the one that :meth:`modified_ms` tells. The clocks of
        the machines that use the store may differ. Leaves nothing behind; needs the right to write."""

    def modified_ms(self, path: str) -> int | None:
        """When the entry at ``path`` was written, by the store's clock; None if nothing is there."""

    def unfit(self) -> str | None:
        """Why no checkpoint should be begun here, in words; None if nothing is known against it."""
        return None

    def check_own(self, path: str) -> None:
        """See that what a stored text names is the store's own, and nothing on the way to it leads elsewhere.

        :raises CheckpointError: if something does.
        """
        return None

    def cut_off(self, path: str) -> Sequence[bytes]:
        """What lies beside the entry at ``path`` of writes and removals of it that were cut off: it may be another one,
        which had come in its place. A store that compares and removes at once has none."""
        return []

    def litter(self) -> Sequence[Litter]:
        """What is no use, in order. A store whose writes leave nothing has none."""
        return []

    def is_litter(self, name: str) -> bool:
        """Whether something of this name, which no entry has, can be litter."""
        return False

    def move_litter(self, path: str, target: str) -> None:
        """Move litter to where it is in nobody's way; done already if it is not there.

        :raises CheckpointError: if it is none.
        """
        raise CheckpointError(f"{path!r:.200} is no litter of {self.location}: nothing was moved.")

    def scoped(self, folder: str) -> Store:
        """The same store seen from ``folder``."""
