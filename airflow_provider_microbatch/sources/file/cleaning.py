"""What ``clean_source`` may clean and what it has cleaned, by entries of the source log.

``cleaning/<n>`` in the source's state holds all of it; the highest n counts, and the one before it goes. An entry is
**due** once a batch of this checkpoint that read it is in the sink while the source is to be cleaned: what was
committed before that was switched on, what another query read, what was set aside or skipped never is. It is **done**
from before the first of its files is archived or deleted: a file of it that is found nowhere was taken by us, it has
not "vanished". It is being **deleted** until who began that is through with it, whether it went or not.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from airflow_provider_microbatch.checkpoint.log import numbers
from airflow_provider_microbatch.exceptions import CorruptEntryError
from airflow_provider_microbatch.stores import Store

_FOLDER = "cleaning"
_BEFORE = "cleaned"
"""Where older versions kept the highest entry that was done, with ``kept/`` and ``released/`` beside it."""


@dataclass(frozen=True)
class Entries:
    """A set of log ids, as runs of consecutive ones.

    :param runs: first and last id of each, ascending, not touching each other.
    """

    runs: tuple[tuple[int, int], ...] = ()

    def __iter__(self) -> Iterator[int]:
        for first, last in self.runs:
            yield from range(first, last + 1)

    def __contains__(self, number: int) -> bool:
        return any(first <= number <= last for first, last in self.runs)

    def with_(self, ids: Iterable[int]) -> Entries:
        """These too."""
        merged: list[tuple[int, int]] = []
        # As many ids as there were batches may be one run.
        added = ids.runs if isinstance(ids, Entries) else [(number, number) for number in ids]
        for first, last in sorted([*self.runs, *added]):
            if merged and first <= merged[-1][1] + 1:
                merged[-1] = (merged[-1][0], max(merged[-1][1], last))
            else:
                merged.append((first, last))
        return Entries(tuple(merged))

    def after(self, number: int) -> Entries:
        """Those that are higher."""
        return Entries(tuple((max(first, number + 1), last) for first, last in self.runs if last > number))

    def without(self, ids: Iterable[int]) -> Entries:
        """All but these."""
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
    :param done: entries whose files were; of those that are due still, some may have been, or are at this moment.
    :param archives: base of the source and archive folder, all there have been, the newest first.
    """

    due: Entries = Entries()
    done: Entries = Entries()
    archives: tuple[tuple[str, str], ...] = ()
    deleting: Entries = Entries()

    def archiving(self, base: str, archive: str | None) -> Cleaning:
        """The same, and what is archived from now on goes there."""
        if archive is None or (base, archive) in self.archives[:1]:
            return self
        others = tuple(one for one in self.archives if one != (base, archive))
        return replace(self, archives=((base, archive), *others))

    def taking(self, ids: Collection[int], *, deletes: bool) -> Cleaning:
        """The same, and those of the entries that are due are about to be archived, or deleted."""
        taken = [number for number in ids if number in self.due]
        deleting = self.deleting.with_(taken) if deletes else self.deleting
        return replace(self, done=self.done.with_(taken), deleting=deleting)

    def taken(self, ids: Collection[int], *, cleaned: Collection[int]) -> Cleaning:
        """The same, and who took the entries is at their files no more; those that are cleaned are due no more."""
        return replace(self, due=self.due.without(cleaned), deleting=self.deleting.without(ids))

    def is_taking(self, number: int) -> bool:
        """Whether somebody may be archiving or deleting the entry's files now, or died at it."""
        return number in self.due and number in self.done


class CleaningRecord:
    """:param state: the source's own state.
    :param before: those by its former names. Who cleans may have slept through a rename: it says there what it takes.
    """

    def __init__(self, state: Store, *, before: Callable[[], Sequence[Store]] = tuple) -> None:
        self._state = state
        self._before = before
        self._older: Cleaning | None = None

    def read(self) -> Cleaning:
        """What is on record. One listing where nothing was ever cleaned, and one for each former name."""
        found = self._newest()[1]
        for late in (CleaningRecord(state).read() for state in self._before()):
            others = tuple(one for one in late.archives if one not in found.archives)
            found = replace(found, done=found.done.with_(late.done), archives=(*found.archives, *others))
        return found

    def change(self, change: Callable[[Cleaning], Cleaning]) -> Cleaning:
        """Replace the record by what ``change`` makes of it. Durable on return; two at once are one after the other."""
        while True:
            number, found = self._newest()
            wanted = change(found)
            if wanted == found:
                return found
            if self._state.put_if_absent(f"{_FOLDER}/{number + 1}", encode_cleaning(wanted)):
                there = numbers(self._state.list(_FOLDER))
                # Others may have gone on, and have removed the number that this put has taken again; a rename may have
                # taken it along, with all there was, and then it is said once more under the name of before.
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
                if self._older is None:  # what nobody writes any more is read once
                    self._older = self._of_older_version()
                return number, self._older
            data = self._state.get(f"{_FOLDER}/{number}")
            if data is not None:  # else replaced since it was listed
                return number, decode_cleaning(data, where=f"{self._state.location}/{_FOLDER}/{number}")

    def _of_older_version(self) -> Cleaning:
        newest = max(numbers(self._state.list(_BEFORE)), default=-1)
        if newest < 0:
            return Cleaning()
        kept = set(numbers(self._state.list("kept")))
        return Cleaning(done=Entries(((0, newest),)).without(kept))


def encode_cleaning(cleaning: Cleaning) -> bytes:
    """The record as bytes."""
    values = {
        "due": cleaning.due.runs,
        "done": cleaning.done.runs,
        "archives": cleaning.archives,
        "deleting": cleaning.deleting.runs,
    }
    return json.dumps(values, ensure_ascii=False).encode()


def decode_cleaning(data: bytes, *, where: str) -> Cleaning:
    """What :func:`encode_cleaning` made. :raises CorruptEntryError: if it is something else."""
    try:
        values = json.loads(data)
        due, done, deleting = (
            Entries(tuple((int(first), int(last)) for first, last in found))
            # Older versions do not say who deletes.
            for found in (values["due"], values["done"], values.get("deleting", ()))
        )
        archives = tuple((str(base), str(archive)) for base, archive in values["archives"])
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptEntryError(
            f"{where}, which says what clean_source has cleaned, cannot be read: {error!r}. Restore it from a backup "
            "of the checkpoint."
        ) from error
    return Cleaning(due=due, done=done, archives=archives, deleting=deleting)
