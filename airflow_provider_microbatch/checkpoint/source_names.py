"""What a person has said about source names: this one is that one under a new name, or this one is really new.

Log entries are never changed, and a batch in the sink is known by the digest of its entry: so entries of before a
rename keep the old name, and whoever reads them sees the new one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from airflow_provider_microbatch.checkpoint.entries import OffsetEntry
from airflow_provider_microbatch.checkpoint.key import is_name
from airflow_provider_microbatch.checkpoint.log import numbers
from airflow_provider_microbatch.checkpoint.records import corrupt, decode_record, encode_record
from airflow_provider_microbatch.exceptions import CorruptEntryError, UnknownVersionError
from airflow_provider_microbatch.stores import Store

RENAMED = "microbatch/renamed"
"""``<n>``: old and new name, in the order in which it was said. Before it, ``<n>.begun`` says the same: from then on
the source's own files may lie under either name, until ``<n>`` is there."""

BEGUN = ".begun"

NEW = "microbatch/new"
"""``<name>``: the source is no other one under a new name."""

V = TypeVar("V")


@dataclass(frozen=True, kw_only=True)
class HalfRename:
    """A rename that was begun and that nobody has ended: nobody goes on under either name before it is taken back.

    :param path: what says that it was begun.
    :param old: the name that the source still has.
    :param new: the one under which some of its files may lie.
    """

    path: str
    old: str
    new: str

    def message(self, location: str) -> str:
        """What is the matter with the checkpoint, with the way on."""
        return (
            f"renaming source {self.old!r} to {self.new!r} of {location} was begun and given up half way: the source's "
            f"own log and state may lie under either name. `microbatch repair {location}` gives all of it its old name "
            "back; then it can be renamed again."
        )


class SourceNames:
    """Reads the renames once: no command changes them while anybody plans. Whoever plans again after a command says
    :meth:`forget`.

    :param store: the checkpoint's.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._listed: list[str] | None = None
        self._renames: list[tuple[str, str]] | None = None

    def renames(self) -> list[tuple[str, str]]:
        """Old and new name of each, in order. :raises CorruptEntryError: if one cannot be read."""
        if self._renames is None:
            self._renames = [self._rename(str(number)) for number in sorted(numbers(self._names_listed()))]
        return self._renames

    def half(self, *, again: bool = False) -> HalfRename | None:
        """The rename that was begun and not said, or None. Costs no look beside that of :meth:`renames`.

        :param again: look now, whatever was there before: a command may have begun since, and be given up.
        :raises CorruptEntryError: if it cannot be read.
        """
        name = _begun(self._store.list(RENAMED) if again else self._names_listed())
        if name is None:
            return None
        old, new = self._rename(name)
        if not (is_name(old) and is_name(new)):
            # They are folders that repair moves: `orders/0` is an entry of another source's log.
            corrupt(f"{self._store.location}/{RENAMED}/{name}", f"no names of sources: {old!r:.60} and {new!r:.60}")
        return HalfRename(path=f"{RENAMED}/{name}", old=old, new=new)

    def torn(self) -> str | None:
        """The path of what says that a rename was begun, if it cannot be read; None if it can, or there is none."""
        try:
            self.half()
        except UnknownVersionError:
            return None
        except CorruptEntryError:
            return f"{RENAMED}/{_begun(self._names_listed())}"
        return None

    def forget(self) -> None:
        """Read the renames again when somebody asks next: a command has ended since."""
        self._listed = self._renames = None

    def former(self) -> set[str]:
        """Names that stand for another source in older entries, and for none now."""
        return {old for old, _ in self.renames() if self.of(old) != old}

    def of(self, name: str) -> str:
        """What a source of an older entry is called now."""
        for old, new in self.renames():
            name = new if name == old else name
        return name

    def before(self, name: str) -> list[str]:
        """What the source was called, its first name first."""
        return [old for old in dict.fromkeys(old for old, _ in self.renames()) if self.of(old) == name != old]

    def is_new(self, name: str) -> bool:
        """Whether somebody has said that the source is really a new one."""
        return self._store.get(f"{NEW}/{name}") is not None

    def add(self, name: str, *, by: str) -> None:
        """Have it on record that the source is really a new one. Idempotent.

        :param by: who says so.
        """
        self._store.put_if_absent(f"{NEW}/{name}", encode_record({"by": by}))

    def with_log(self) -> list[str]:
        """Sources, of v2, that have planned something."""
        return [name for name in self._store.list("sources") if self._store.list(f"sources/{name}")]

    def is_copy(self, name: str, of: str) -> bool:
        """Whether all that a source has logged and noted is ``of``'s, byte for byte: what a rename has left that died
        when it came late. Reads all of the first one."""
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
        """The entry with the names of today."""
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
    """What says that a rename was begun, and nothing that it was done."""
    return next((name for name in names if name.endswith(BEGUN) and name.removesuffix(BEGUN) not in names), None)
