"""Stores for the bytes of a checkpoint. A store knows nothing of what the bytes mean; the codec does."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Protocol, Self

from airflow_provider_microbatch.exceptions import CheckpointError

PAGE = 1_000
"""The number of names that a listing returns at once, unless the caller asks for another number."""

_PAGES = 3
"""The number of pages that are listed in search of a few names, before the names are looked up one by one."""


@lru_cache(maxsize=4096)  # each look at an entry asks, and the same entries are looked at
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
    """A file in a store that is neither an entry nor of use, such as a write that was cut off.

    :param path: relative to the store.
    :param why: the reason, for people.
    """

    path: str
    why: str


@dataclass(frozen=True, kw_only=True)
class Versioned:
    """An entry with the version that distinguishes it from later entries at the same path.

    :param data: the bytes.
    :param version: version of these bytes, in the store's own form, such as an ETag. A reader that reads the same bytes
        again later may get the same version: an equal version does not prove that the entry was never replaced in
        between.
    """

    data: bytes
    version: str

    @classmethod
    def of(cls, data: bytes) -> Self:
        """Use a digest as the version, for a store that keeps no versions of its own."""
        return cls(data=data, version=blake2b(data, digest_size=16).hexdigest())


class Store(Protocol):
    """A small key-value store with put-if-absent, the one operation every guarantee of this package stands on.

    Paths are relative, ``/``-separated, without empty, ``.`` or ``..`` components. All methods raise
    :class:`~airflow_provider_microbatch.exceptions.CheckpointError` when the storage cannot be reached or read.

    A class is found by the scheme of an address (``registry.STORES``) and made by :meth:`at`.
    """

    @classmethod
    def at(cls, location: str) -> Self:
        """Return the store at an address, as a user writes it into a pipeline. Touches nothing: DAG files are parsed
        often.

        :raises CheckpointError: if the text is not an address of such a store.
        """
        raise CheckpointError(f"{location!r}: a {cls.__name__} is made of no address.")

    @property
    def location(self) -> str:
        """The address in a form that a user recognises, for messages."""

    @property
    def place(self) -> str:
        """:attr:`location` without the connection: of two connections both may lead to the same database or bucket."""
        return self.location

    @property
    def is_draft(self) -> bool:
        """Whether nobody keeps what is put, since a command only looks what would become of it. Nothing outside of the
        store may be changed then, either."""
        return False

    @property
    def for_spark(self) -> str | None:
        """The address by which Spark finds the same entries as files of a folder, such as a query's
        ``checkpointLocation``; None if Spark cannot read them, so that no streaming query can use this store."""
        return None

    def put_if_absent(self, path: str, data: bytes) -> bool:
        """Write ``data`` at ``path`` unless something is there.

        When this returns True, all of ``data`` is durable; a crash leaves all of it or nothing.

        :return: False if an entry was there already (it is left unchanged).
        """

    def get(self, path: str) -> bytes | None:
        """The bytes at ``path``, or None if nothing is there."""

    def get_range(self, path: str, start: int, size: int) -> bytes | None:
        """``size`` bytes at ``path`` from ``start`` on, fewer where the entry ends; None if nothing is there.

        A store that cannot read a part of an entry reads all of it.
        """
        data = self.get(path)
        return None if data is None else data[start : start + size]

    def get_versioned(self, path: str) -> Versioned | None:
        """The entry at ``path`` with its version, which :meth:`compare_and_put` asks for; None if nothing is there."""

    def compare_and_put(self, path: str, data: bytes, *, version: str) -> str | None:
        """Write ``data`` at ``path`` in place of the entry of that version, and of no other. Of several writers that
        have read the same entry and put at once, exactly one succeeds; a reader sees the old entry or the new one,
        never none. :meth:`modified_ms` tells the time of the last put. When this returns a version, all of ``data`` is
        durable.

        :param version: the version that :meth:`get_versioned`, or the last put, returned.
        :return: the version of the new entry; None if no entry, or another one, was there: it is left unchanged.
        """

    def list(self, folder: str) -> list[str]:
        """Names of the entries directly in ``folder`` (files and folders, unsorted); empty if there is no folder.

        Names of unfinished writes are never among them.
        """

    def list_after(self, folder: str, after: str = "", *, limit: int = PAGE) -> Sequence[str]:
        """Names as :meth:`list` returns them, sorted as texts by code points (``10`` comes before ``9``): at most
        ``limit`` of those that come after ``after``.

        A store that lists by name in pages needs one request, however many names there are.
        """
        return sorted(name for name in self.list(folder) if name > after)[:limit]

    def present(self, folder: str, names: Collection[str]) -> set[str]:
        """Those of ``names`` that are entries directly in ``folder``; callers never ask for a name that is a folder.
        The result may lack an entry that was put just now, as :meth:`list` may; :meth:`get` and :meth:`modified_ms`
        never miss one.

        A store implements the cheapest way; the default is :func:`look_by_listing`.
        """
        return look_by_listing(self, folder, names)

    def folders(self, folder: str) -> Sequence[str]:
        """Names as :meth:`list` returns them, without those that are certainly not folders: the candidates for the next
        listing.

        A store that cannot tell at no cost returns all names.
        """
        return self.list(folder)

    def delete(self, path: str) -> bool:
        """Remove the entry at ``path``; False if nothing was there. Used only by retention and repair."""

    def delete_if(self, path: str, data: bytes) -> bool:
        """Remove the entry at ``path`` if it is ``data``, and nothing else: an entry that has replaced it since the
        caller looked, or that replaces it at this moment, stays.

        A store that can compare and remove in one step does so; this default compares just before it removes.

        :return: False if no entry, or another one, was there.
        """
        return self.get(path) == data and self.delete(path)

    def delete_many(self, paths: Iterable[str]) -> None:
        """Remove entries of one folder that also lie elsewhere, or are of no use. A crash in between leaves some of
        them, and a store that removes many by one request does not say which."""
        for path in paths:
            self.delete(path)

    def now_ms(self) -> int:
        """The store's own clock, milliseconds since the epoch: the same clock as that of :meth:`modified_ms`. The
        clocks of the machines that use the store may differ. Leaves nothing behind; needs the right to write."""

    def modified_ms(self, path: str) -> int | None:
        """When the entry at ``path`` was written, by the store's clock; None if nothing is there."""

    def unfit(self) -> str | None:
        """The reason, in words, why no checkpoint should be created here; None if none is known."""
        return None

    def check_own(self, path: str) -> None:
        """Check that a path from a stored text belongs to the store, and that nothing on the way to it leads elsewhere.

        :raises CheckpointError: if something does.
        """
        return None

    def cut_off(self, path: str) -> Sequence[bytes]:
        """Return the bytes that lie beside the entry at ``path`` because a write or removal of it was cut off: they may
        be those of another entry, which had replaced it. Empty for a store that compares and removes in one step."""
        return []

    def litter(self) -> Sequence[Litter]:
        """Return all litter, in order. Empty for a store whose writes leave nothing behind."""
        return []

    def is_litter(self, name: str) -> bool:
        """Whether a file of this name, which no entry has, can be litter."""
        return False

    def move_litter(self, path: str, target: str) -> None:
        """Move litter to a place where it disturbs no reader; does nothing if the litter is gone already.

        :raises CheckpointError: if ``path`` is not litter.
        """
        raise CheckpointError(f"{path!r:.200} is no litter of {self.location}: nothing was moved.")

    def scoped(self, folder: str) -> Store:
        """The same store seen from ``folder``."""


def look_by_listing(store: Store, folder: str, names: Collection[str], *, page: int = PAGE) -> set[str]:
    """Implement :meth:`Store.present` for a store whose listings are paged by name. Consecutive numbers, such as those
    of a log, are on one page, or on two where they gain a digit. Whatever names lie between them, at most three pages
    are listed; names that are on none of the pages are looked up one by one.

    :param page: number of names in a page.
    """
    found: set[str] = set()
    left = sorted(names)
    for _ in range(_PAGES):
        if not left:
            break
        # List after a text that sorts just before the first name, so that the first name itself is on the page.
        before = f"{left[0][:-1]}{chr(ord(left[0][-1]) - 1)}~"
        listed = store.list_after(folder, before, limit=page)
        found.update(listed)
        left = [] if len(listed) < page else [name for name in left if name > listed[-1]]
    found.update(name for name in left if store.modified_ms(f"{folder}/{name}" if folder else name) is not None)
    return found.intersection(names)
