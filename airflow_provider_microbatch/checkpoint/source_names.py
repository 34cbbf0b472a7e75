"""The user's declarations about source names: a source is another one under a new name, or it is really new.

Log entries are never changed, and a batch in the sink is known by the digest of its entry. So entries from before a
rename keep the old name, and a reader of entries sees the new one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from shlex import quote
from typing import TypeVar

from airflow_provider_microbatch.checkpoint.entries import OffsetEntry
from airflow_provider_microbatch.checkpoint.key import is_name
from airflow_provider_microbatch.checkpoint.log import numbers
from airflow_provider_microbatch.checkpoint.records import corrupt, decode_record, encode_record
from airflow_provider_microbatch.exceptions import CorruptEntryError, UnknownVersionError
from airflow_provider_microbatch.stores import Store

RENAMED = "microbatch/renamed"
"""``<n>``: old and new name, in the order of the renames. ``<n>.begun`` with the same content comes before it: from
then on the source's own files may lie under either name, until ``<n>`` is there."""

BEGUN = ".begun"

NEW = "microbatch/new"
"""``<name>``: the source is really new, and no other source under a new name."""

V = TypeVar("V")


@dataclass(frozen=True, kw_only=True)
class HalfRename:
    """A rename that was begun and never ended: no pipeline goes on under either name before the rename is taken back.

    :param path: path of the entry that says that the rename was begun.
    :param old: the name that the source still has.
    :param new: the name under which some of its files may lie.
    """

    path: str
    old: str
    new: str

    def message(self, location: str) -> str:
        """A message that names the defect of the checkpoint and the way on."""
        return (
            f"renaming source {self.old!r} to {self.new!r} of {location} was begun and given up half way: the source's "
            f"own log and state may lie under either name. `microbatch repair {quote(location)}` gives all of it its "
            "old name back; then it can be renamed again."
        )


class SourceNames:
    """The renames and the new sources of a checkpoint. The renames are read once: no command changes them while a batch
    is planned. A process that plans again after a command calls :meth:`forget`.

    :param store: the checkpoint's.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._listed: list[str] | None = None
        self._renames: list[tuple[str, str]] | None = None

    def renames(self) -> list[tuple[str, str]]:
        """Old and new name of each rename, in order. :raises CorruptEntryError: if a rename cannot be read."""
        if self._renames is None:
            self._renames = [self._rename(str(number)) for number in sorted(numbers(self._names_listed()))]
        return self._renames

    def half(self, *, again: bool = False) -> HalfRename | None:
        """The rename that was begun and not completed, or None. Costs no look beside that of :meth:`renames`.

        :param again: look again, whatever was there before: a command may have begun since, and been given up.
        :raises CorruptEntryError: if the rename cannot be read.
        """
        name = _begun(self._store.list(RENAMED) if again else self._names_listed())
        if name is None:
            return None
        old, new = self._rename(name)
        if not (is_name(old) and is_name(new)):
            # Both names are folders that repair moves: `orders/0` is an entry of another source's log.
            corrupt(f"{self._store.location}/{RENAMED}/{name}", f"no names of sources: {old!r:.60} and {new!r:.60}")
        return HalfRename(path=f"{RENAMED}/{name}", old=old, new=new)

    def torn(self) -> str | None:
        """The path of the entry that says that a rename was begun, if that entry cannot be read; None if it can, if
        there is none, or if the entry is of an unknown version."""
        try:
            self.half()
        except UnknownVersionError:
            return None
        except CorruptEntryError:
            return f"{RENAMED}/{_begun(self._names_listed())}"
        return None

    def forget(self) -> None:
        """Read the renames again at the next call: a command has ended since."""
        self._listed = self._renames = None

    def former(self) -> set[str]:
        """Names in older entries that stand for a source of another name now."""
        return {old for old, _ in self.renames() if self.of(old) != old}

    def of(self, name: str) -> str:
        """The present name of a source of an older entry."""
        for old, new in self.renames():
            name = new if name == old else name
        return name

    def before(self, name: str) -> list[str]:
        """The former names of the source, its first name first."""
        return [old for old in dict.fromkeys(old for old, _ in self.renames()) if self.of(old) == name != old]

    def is_new(self, name: str) -> bool:
        """Whether the user has declared that the source is really new."""
        return self._store.get(f"{NEW}/{name}") is not None

    def add(self, name: str, *, by: str) -> None:
        """Record that the source is really new. Idempotent.

        :param by: the user that says so.
        """
        self._store.put_if_absent(f"{NEW}/{name}", encode_record({"by": by}))

    def with_log(self) -> list[str]:
        """Sources, of v2, that have planned something."""
        return [name for name in self._store.list("sources") if self._store.list(f"sources/{name}")]

    def is_copy(self, name: str, of: str) -> bool:
        """Whether all logs and notes of a source are ``of``'s, byte for byte: the remains of a rename that came late
        and died. Reads all of the first one."""
        folders = ("sources", "microbatch/sources")
        return name != of and all(self._same(f"{folder}/{name}", f"{folder}/{of}") for folder in folders)

    def _same(self, folder: str, of: str) -> bool:
        """Whether each file below ``folder`` is below ``of`` too."""
        folders = {name for name in self._store.folders(folder) if self._store.list(f"{folder}/{name}")}
        return all(
            self._same(f"{folder}/{name}", f"{of}/{name}")
            if name in folders
            else self._store.get(f"{folder}/{name}") == self._store.get(f"{of}/{name}")
            for name in self._store.list(folder)
        )

    def entry(self, entry: OffsetEntry) -> OffsetEntry:
        """The entry with the present source names."""
        if not self.renames():
            return entry
        late = tuple(map(self.of, entry.late))
        read_as = {self.of(name): settings for name, settings in entry.read_as.items()}
        starts = self._named(entry.starts)
        return replace(entry, ends=self._named(entry.ends), starts=starts, late=late, read_as=read_as)

    def _named(self, values: Mapping[str, V]) -> dict[str, V]:
        return {self.of(name): value for name, value in values.items()}

    def _names_listed(self) -> list[str]:
        if self._listed is None:
            self._listed = self._store.list(RENAMED)
        return self._listed

    def _rename(self, name: str) -> tuple[str, str]:
        where = f"{self._store.location}/{RENAMED}/{name}"
        values = decode_record(self._store.get(f"{RENAMED}/{name}") or b"", where=where)
        old, new = values.get("old"), values.get("new")
        if not isinstance(old, str) or not isinstance(new, str):
            corrupt(where, "not what it should be: it lacks old or new")
        return old, new


def _begun(names: Sequence[str]) -> str | None:
    """The name of the entry that says that a rename was begun, if no entry says that it was done."""
    return next((name for name in names if name.endswith(BEGUN) and name.removesuffix(BEGUN) not in names), None)
