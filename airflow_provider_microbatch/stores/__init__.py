"""Where the bytes of a checkpoint lie. Storage knows nothing of what the bytes mean; the codec does."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Protocol, Self

from airflow_provider_microbatch.exceptions import CheckpointError

PAGE = 1_000
"""So many names a listing tells at once, if nobody asks for another number."""

_PAGES = 3
"""So many are listed in search of a few names, before these are looked for one by one."""


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


@dataclass(frozen=True, kw_only=True)
class Versioned:
    """An entry with what tells it from others that come in its place.

    :param data: the bytes.
    :param version: of these bytes, in the store's own words, such as an etag. Who reads the same bytes at another time
        may get the same version: it says nothing of what was there in between.
    """

    data: bytes
    version: str

    @classmethod
    def of(cls, data: bytes) -> Self:
        """By a digest, for a store that keeps no version of its own."""
        return cls(data=data, version=blake2b(data, digest_size=16).hexdigest())


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

    @property
    def for_spark(self) -> str | None:
        """The address by which Spark finds the same entries as files of a folder, such as a query's
        ``checkpointLocation``; None if it cannot: what is kept here is no streaming query's."""
        return None

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

    def get_versioned(self, path: str) -> Versioned | None:
        """The entry at ``path`` with its version, which :meth:`compare_and_put` asks for; None if nothing is there."""

    def compare_and_put(self, path: str, data: bytes, *, version: str) -> str | None:
        """Write ``data`` at ``path`` in place of the entry of that version, and of nothing else. Of several who have
        read the same entry and put at once, one puts; a reader sees the old entry or the new one, never none. By
        :meth:`modified_ms` the entry is as old as the last put. When this returns a version, all is durable.

        :param version: as :meth:`get_versioned`, or the last put, told it.
        :return: the version of what is there now; None if nothing, or something else, was there: it is left as it is.
        """

    def list(self, folder: str) -> list[str]:
        """Names of the entries directly in ``folder`` (files and folders, unsorted); empty if there is no folder.

        Names that a writer has not finished are never among them.
        """

    def list_after(self, folder: str, after: str = "", *, limit: int = PAGE) -> Sequence[str]:
        """Names as :meth:`list` has them, sorted as texts by code points (``10`` comes before ``9``): at most ``limit``
        of those that come after ``after``.

        A store that lists by name in pages does it with one request, however many names there are.
        """
        return sorted(name for name in self.list(folder) if name > after)[:limit]

    def present(self, folder: str, names: Collection[str]) -> set[str]:
        """Those of ``names`` that are entries directly in ``folder``; of a folder of such a name nobody asks. May miss
        what was put just now, as :meth:`list` may, where :meth:`get` and :meth:`modified_ms` may not.

        A store asks in the way that costs it least; unless it says so, by :func:`look_by_listing`.
        """
        return look_by_listing(self, folder, names)

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
        """Remove entries of one folder that lie elsewhere too, or are no use: a crash in between leaves some of them,
        and a store that removes many by one request says nothing of which."""
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


def look_by_listing(store: Store, folder: str, names: Collection[str], *, page: int = PAGE) -> set[str]:
    """:meth:`Store.present` of a store whose listings are paged by name. Numbers that follow each other, as a log's do,
    are on one page, or on two where they gain a digit. Whatever lies between them, it asks for three pages at most, and
    for those on none of them one by one.

    :param page: names of a page.
    """
    found: set[str] = set()
    left = sorted(names)
    for _ in range(_PAGES):
        if not left:
            break
        # After a text that sorts just before the first one, since that is to be on the page itself.
        before = f"{left[0][:-1]}{chr(ord(left[0][-1]) - 1)}~"
        listed = store.list_after(folder, before, limit=page)
        found.update(listed)
        left = [] if len(listed) < page else [name for name in left if name > listed[-1]]
    found.update(name for name in left if store.modified_ms(f"{folder}/{name}" if folder else name) is not None)
    return found.intersection(names)
