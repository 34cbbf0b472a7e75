"""The record of the entries of the source log that ``clean_source`` may clean, and of those that it has cleaned.

``cleaning/<n>`` in the source's state holds the whole record; the highest n counts, and the one before it is deleted.
An entry is **due** once a batch of this checkpoint that read it is in the sink while cleaning is switched on. Entries
that were committed before that, that another query read, or that were set aside or skipped are never due. An entry is
**done** from before the first of its files is archived or deleted: if one of its files is found nowhere, clean_source
took it, and the file has not "vanished". An entry is being **deleted** until the cleaner that began is through with it,
whether the files are gone or not. Files of it that are **left** were no longer as planned before the first of its files
was taken: none of them was, and with ``on_changed="read"`` they are what its batch has read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from airflow_provider_microbatch.checkpoint.log import numbers
from airflow_provider_microbatch.exceptions import CorruptEntryError
from airflow_provider_microbatch.stores import Store

_FOLDER = "cleaning"
_BEFORE = "cleaned"
"""The folder where older versions kept the highest entry that was done, with ``kept/`` and ``released/`` beside it."""


@dataclass(frozen=True)
class Entries:
    """A set of log ids, as runs of consecutive ids.

    :param runs: first and last id of each run, ascending, not touching each other.
    """

    runs: tuple[tuple[int, int], ...] = ()

    def __iter__(self) -> Iterator[int]:
        for first, last in self.runs:
            yield from range(first, last + 1)

    def __contains__(self, number: int) -> bool:
        return any(first <= number <= last for first, last in self.runs)

    def with_(self, ids: Iterable[int]) -> Entries:
        """These ids and the given ones."""
        merged: list[tuple[int, int]] = []
        # One run may contain as many ids as there were batches.
        added = ids.runs if isinstance(ids, Entries) else [(number, number) for number in ids]
        for first, last in sorted([*self.runs, *added]):
            if merged and first <= merged[-1][1] + 1:
                merged[-1] = (merged[-1][0], max(merged[-1][1], last))
            else:
                merged.append((first, last))
        return Entries(tuple(merged))

    def after(self, number: int) -> Entries:
        """The ids that are higher than ``number``."""
        return Entries(tuple((max(first, number + 1), last) for first, last in self.runs if last > number))

    def without(self, ids: Iterable[int]) -> Entries:
        """All ids but the given ones."""
        runs = list(self.runs)
        for first, last in Entries().with_(ids).runs if runs else ():
            runs = [
                part for run in runs for part in ((run[0], min(run[1], first - 1)), (max(run[0], last + 1), run[1]))
            ]
            runs = [run for run in runs if run[0] <= run[1]]
        return Entries(tuple(runs))


@dataclass(frozen=True, kw_only=True)
class Cleaning:
    """The record.

    :param due: entries whose files are to be archived or deleted.
    :param done: entries whose files were archived or deleted; of the entries that are still due, some files may have
        been, or are at this moment.
    :param archives: pairs of the source's base and archive folder, all that were ever used, newest first.
    :param deleting: entries whose files a cleaner is deleting.
    :param left: by entry, paths of the files that cleaners have left alone. An entry that a cleaner has begun and that
        none has finished is here too, if with none: which of its other files were taken is not known.
    """

    due: Entries = Entries()
    done: Entries = Entries()
    archives: tuple[tuple[str, str], ...] = ()
    deleting: Entries = Entries()
    left: Mapping[int, frozenset[str]] = field(default_factory=dict)

    def archiving(self, base: str, archive: str | None) -> Cleaning:
        """The record, with this archive as the target of files archived from now on."""
        if archive is None or (base, archive) in self.archives[:1]:
            return self
        others = tuple(one for one in self.archives if one != (base, archive))
        return replace(self, archives=((base, archive), *others))

    def knowing(self, other: Cleaning) -> Cleaning:
        """This record, with what another one of the same source tells of entries that are done. Either may be the older
        one: a file of an entry that is done by both is left only if it is by both."""
        left = {}
        for number in {*self.left, *other.left}:
            ours, theirs = self.left.get(number, frozenset()), other.left.get(number, frozenset())
            by_both = number in self.done and number in other.done
            left[number] = ours & theirs if by_both else ours | theirs
        archives = (*self.archives, *(one for one in other.archives if one not in self.archives))
        return replace(self, done=self.done.with_(other.done), archives=archives, left=left)

    def taking(self, changed: Mapping[int, Collection[str]], *, deletes: bool) -> Cleaning:
        """The record, with those of the entries that are due marked as about to be archived, or deleted.

        :param changed: by entry, paths of its files that are no longer as planned.
        """
        taken = [number for number in changed if number in self.due]
        left = dict(self.left)
        for number in taken:
            left[number] = frozenset(changed[number])
            if number in self.done:
                # A cleaner has begun before: what has changed since may lie in the place of a file that it has taken.
                left[number] &= self.left.get(number, frozenset())
        deleting = self.deleting.with_(taken) if deletes else self.deleting
        return replace(self, done=self.done.with_(taken), deleting=deleting, left=left)

    def taken(self, ids: Collection[int], *, cleaned: Collection[int]) -> Cleaning:
        """The record after the cleaner has finished with the entries; those that are cleaned are no longer due."""
        left = {number: paths for number, paths in self.left.items() if paths or number not in cleaned}
        return replace(self, due=self.due.without(cleaned), deleting=self.deleting.without(ids), left=left)

    def is_taking(self, number: int) -> bool:
        """Whether a cleaner may be archiving or deleting the entry's files now, or died while doing so."""
        return number in self.due and number in self.done

    def gives_up(self, number: int, path: str) -> bool:
        """Whether this file of the entry was archived or deleted, or is about to be."""
        return number in self.done and path not in self.left.get(number, ())

    def has_taken(self, number: int, path: str) -> bool:
        """Whether this file of the entry was archived or deleted, or may have been: a cleaner is at the entry, or was
        not through with it."""
        begun = number not in self.due or number in self.deleting or number in self.left
        return begun and self.gives_up(number, path)

    def has_finished(self, number: int) -> bool:
        """Whether a cleaner has taken all files of the entry."""
        return number in self.done and number not in self.due and number not in self.left


class CleaningRecord:
    """:param state: the source's own state.
    :param kept: what was read before and never changes, by name.
    :param before: returns the states under its former names. A cleaner that slept through a rename writes there which
        entries it takes.
    """

    def __init__(
        self,
        state: Store,
        *,
        before: Callable[[], Sequence[Store]] = tuple,
        kept: dict[str, bytes] | None = None,
    ) -> None:
        self._state = state
        self._before = before
        self._kept = {} if kept is None else kept

    def read(self) -> Cleaning:
        """Return the record. Takes one listing where nothing was ever cleaned, and one for each former name."""
        found = self._newest()[1]
        for late in (CleaningRecord(state).read() for state in self._before()):
            found = found.knowing(late)
        return found

    def change(self, change: Callable[[Cleaning], Cleaning]) -> Cleaning:
        """Replace the record by the result of ``change``. Durable on return; simultaneous changes follow each other."""
        while True:
            number, found = self._newest()
            wanted = change(found)
            if wanted == found:
                return found
            if self._state.put_if_absent(f"{_FOLDER}/{number + 1}", encode_cleaning(wanted)):
                there = numbers(self._state.list(_FOLDER))
                # Other writers may have gone on, and may have removed the number that this put has used again; or a
                # rename may have moved this put away with the other entries, and the change is then made once more
                # under the old name.
                if max(there, default=-1) == number + 1:
                    for old in there:
                        if old <= number:
                            self._state.delete(f"{_FOLDER}/{old}")
                    return wanted
                self._state.delete(f"{_FOLDER}/{number + 1}")

    def _newest(self) -> tuple[int, Cleaning]:
        while True:
            number = max(numbers(self._state.list(_FOLDER)), default=-1)
            if number < 0:
                if _BEFORE not in self._kept:  # records of older versions no longer change, so they are read once
                    self._kept[_BEFORE] = encode_cleaning(self._of_older_version())
                return number, decode_cleaning(self._kept[_BEFORE], where=f"{self._state.location}/{_BEFORE}")
            data = self._state.get(f"{_FOLDER}/{number}")
            if data is not None:  # else the record was replaced since it was listed
                return number, decode_cleaning(data, where=f"{self._state.location}/{_FOLDER}/{number}")

    def _of_older_version(self) -> Cleaning:
        newest = max(numbers(self._state.list(_BEFORE)), default=-1)
        if newest < 0:
            return Cleaning()
        kept = set(numbers(self._state.list("kept")))
        return Cleaning(done=Entries(((0, newest),)).without(kept))


def encode_cleaning(cleaning: Cleaning) -> bytes:
    """Encode the record."""
    values = {
        "due": cleaning.due.runs,
        "done": cleaning.done.runs,
        "archives": cleaning.archives,
        "deleting": cleaning.deleting.runs,
        "left": {str(number): sorted(paths) for number, paths in sorted(cleaning.left.items())},
    }
    return json.dumps(values, ensure_ascii=False).encode()


def decode_cleaning(data: bytes, *, where: str) -> Cleaning:
    """Decode the result of :func:`encode_cleaning`. :raises CorruptEntryError: if ``data`` is something else."""
    try:
        values = json.loads(data)
        due, done, deleting = (
            Entries(tuple((int(first), int(last)) for first, last in found))
            # Older versions do not record which entries are being deleted.
            for found in (values["due"], values["done"], values.get("deleting", ()))
        )
        archives = tuple((str(base), str(archive)) for base, archive in values["archives"])
        # Nor which files were left: then an entry that is due and done is one that a cleaner has begun.
        told = values["left"] if "left" in values else {number: () for number in due if number in done}
        left = {int(number): frozenset(map(str, paths)) for number, paths in dict(told).items()}
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptEntryError(
            f"{where}, which says what clean_source has cleaned, cannot be read: {error!r}. Restore it from a backup "
            "of the checkpoint."
        ) from error
    return Cleaning(due=due, done=done, archives=archives, deleting=deleting, left=left)
