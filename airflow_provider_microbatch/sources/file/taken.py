"""A note of the entries that ``clean_source`` has taken, beside the files that it took.

If the checkpoint is restored from a backup, its own record is restored too. Table and logs then agree, and nothing in
them shows that files of later batches were archived or deleted: no batch would read these files, and they would be in
no table. So a cleaner that takes files first writes ``<base>/.microbatch_cleaned/<checkpoint>.<source>``, a file or an
object with a hidden name that no listing shows, where an older checkpoint finds it. A folder that is restored together
with the checkpoint has its files again, and the note of that time.

A source may be renamed after the backup, or after the note. So the note lies under each name that the source has had,
and is read under each: whatever the restored checkpoint calls the source, the first of its names is among them.

A source may also be added after the backup, and be added again, under another name. So a note of this checkpoint whose
name no source of it has, or had, counts too: it was written in a life that the checkpoint has forgotten.
"""

from __future__ import annotations

from collections.abc import Iterable

from airflow_provider_microbatch.checkpoint.identity import is_checkpoint_id
from airflow_provider_microbatch.checkpoint.key import is_name
from airflow_provider_microbatch.exceptions import CorruptEntryError, SourceError
from airflow_provider_microbatch.sources import SourceContext
from airflow_provider_microbatch.sources.file.cleaning import Cleaning, Entries, decode_cleaning, encode_cleaning
from airflow_provider_microbatch.sources.file.place import Place


class Taken:
    """The note of one source of one checkpoint.

    :param place: place of the files and of the note.
    :param base: the source's base.
    :param context: tells the source's names, those of other sources, and the checkpoint's id: None while the checkpoint
        belongs to no pipeline, and nothing was taken.
    """

    def __init__(self, place: Place, *, base: str, context: SourceContext) -> None:
        self._place = place
        self._base = base
        self._name = context.name
        self._names_before = context.names_before
        self._knows = context.knows
        self._checkpoint = context.checkpoint_id

    def read(self) -> Cleaning:
        """Return the noted entries; empty if there is no note. Opens one file, or requests one object, for each name
        that the source has had.

        :raises SourceError: if a note cannot be read.
        """
        return _together(self._notes().values())

    def note(self, cleaning: Cleaning) -> None:
        """Note the entries that are about to be taken, with all earlier ones; durable on return.

        :param cleaning: the checkpoint's own record.
        :raises SourceError: if a note cannot be written; no file may be taken then.
        """
        notes = self._notes()
        own = Cleaning(done=cleaning.done, archives=cleaning.archives, left=cleaning.left)
        told = _together([own, *notes.values()])
        for where, before in notes.items():
            if told != before:
                self._write(where, told)

    def unknown_to(self, latest: int, *, log: str) -> str | None:
        """Describe the files that were taken for batches that the checkpoint does not know, with the possible remedies;
        None if there are none. Takes one listing, and opens each note that is there under a name of this source, or
        under one that no source has.

        :param latest: the last log id.
        :param log: address of the source log.
        :raises SourceError: if a note cannot be read.
        """
        paths, there = self._paths(), self._there()
        own = {where: self._read(where) for where in paths if where in there}
        others = {
            where: self._read(where) for where, name in there.items() if where not in own and self._is_stray(name)
        }
        strays = {where: note for where, note in others.items() if note.done.runs}
        telling = {where: note.done.after(latest) for where, note in own.items() if note.done.after(latest).runs}
        if not telling and not strays:
            return None
        taken = []
        if telling:
            ends = f"ends at {latest}" if latest >= 0 else "is empty"
            taken.append(f"{_entries(telling.values())} of the source log {log}, which {ends}")
        taken += [
            f"{_entries([note.done])} of source {there[where]!r}, which it does not know"
            for where, note in strays.items()
        ]
        telling |= {where: note.done for where, note in strays.items()}
        noted = _together([*own.values(), *strays.values()])
        archives = [repr(archive) for base, archive in noted.archives if base == self._base]
        back = f"They are in {' or '.join(archives)}, or were deleted" if archives else "They were deleted"
        notes = " and ".join(f"{where!r} ({_entries([entries])})" for where, entries in telling.items())
        return (
            f"clean_source has taken the files of {'; and of '.join(taken)}: this checkpoint was restored from an "
            f"older backup, and does not know the batches that have read them. {back}; what they held is in the table "
            "only if that is younger. Restore the newer checkpoint; or move the files back to where they were, which "
            f"has them read again. Then, or if they are not to be read, remove {notes}, which "
            f"{'says' if len(telling) == 1 else 'say'} so."
        )

    def _there(self) -> dict[str, str]:
        """By path, the names of the sources of which there is a note of this checkpoint."""
        checkpoint = self._checkpoint()
        if checkpoint is None:
            return {}
        folder = self._place.note_path(self._base, "").rstrip("/")
        try:
            found = self._place.notes(self._base, f"{checkpoint}.")
        except (OSError, SourceError) as error:
            raise SourceError(
                f"{folder}, where notes say what clean_source has taken, cannot be read: {_said(error)}. Give this "
                "user the right to it."
            ) from error
        return {f"{folder}/{note}": note.removeprefix(f"{checkpoint}.") for note in found}

    def _is_stray(self, name: str) -> bool:
        """Whether no source of this checkpoint has, or had, the name."""
        return is_name(name) and not self._knows(name)

    def _notes(self) -> dict[str, Cleaning]:
        """By path, the note under each name; empty where there is none."""
        return {where: self._read(where) for where in self._paths()}

    def _read(self, where: str) -> Cleaning:
        try:
            return decode_cleaning(self._place.read_note(where), where=where)
        except FileNotFoundError:
            return Cleaning()
        except (OSError, SourceError, CorruptEntryError) as error:
            raise SourceError(
                f"{where}, which says what clean_source has taken, cannot be read: {_said(error)}. Give this user the "
                "right to it, or, if it was damaged and the checkpoint is no restored backup, remove it."
            ) from error

    def _write(self, where: str, told: Cleaning) -> None:
        try:
            self._place.write_note(where, encode_cleaning(told))
        except (OSError, SourceError) as error:
            raise SourceError(
                f"{where}, which is to say what clean_source takes, cannot be written: {_said(error)}. Nothing was "
                "taken. Give this user the right to write there."
            ) from error

    def _paths(self) -> list[str]:
        """The paths of the note, that of today's name first."""
        checkpoint = self._checkpoint()
        if checkpoint is None:
            return []
        if not is_checkpoint_id(checkpoint):
            raise SourceError(f"{checkpoint!r} is no id of a checkpoint.")
        names = [self._name, *self._names_before()]
        for name in names:
            if not is_name(name):
                # Names of before come out of the checkpoint, where others may write: `../x` would be a file elsewhere.
                raise SourceError(
                    f"by the checkpoint, the source was called {name!r} before, which is no name of a source. Restore "
                    "microbatch/renamed from a backup of the checkpoint."
                )
        return [self._place.note_path(self._base, f"{checkpoint}.{name}") for name in names]


def _together(notes: Iterable[Cleaning]) -> Cleaning:
    told = Cleaning()
    for one in notes:
        told = told.knowing(one)
    return told


def _entries(found: Iterable[Entries]) -> str:
    together = Entries()
    for one in found:
        together = together.with_(one)
    return "entries " + ", ".join(f"{first} to {last}" for first, last in together.runs)


def _said(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) and error.strerror else str(error)).rstrip(".")
