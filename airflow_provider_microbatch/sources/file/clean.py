"""Archives or deletes a batch's files after its commit, or leaves them alone."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from airflow_provider_microbatch.exceptions import SourceError
from airflow_provider_microbatch.sources.file.cleaning import CleaningRecord
from airflow_provider_microbatch.sources.file.log import PlannedFile, SourceLog, log_id
from airflow_provider_microbatch.sources.file.place import Place
from airflow_provider_microbatch.sources.file.present import Presence, is_below, locate
from airflow_provider_microbatch.sources.file.taken import Taken
from airflow_provider_microbatch.sources.intervals import CommittedRange

log = logging.getLogger(__name__)

_FAR = 16
"""An entry of the source log that is so many entries behind is looked at once in as many entries, not at each
commit."""


class Cleaner:
    """Archives or deletes the files of entries that are due.

    :param source_log: the entries.
    :param record: the record of the due entries.
    :param place: place of the files.
    :param base: the source's base. The cleaner touches no file outside of it, and follows no link below it: the log may
        belong to another query, or to another path, and other users write there.
    :param archive: the folder to move files to; None deletes them.
    :param taken: the note beside the files.
    """

    def __init__(
        self,
        source_log: SourceLog,
        record: CleaningRecord,
        *,
        place: Place,
        base: str,
        archive: str | None,
        taken: Taken,
    ) -> None:
        # Asked anew, whoever makes the cleaner: since its process has read an entry, a backup may have been restored
        # and other files be planned under that number: by memory, files would be deleted that no batch has read.
        self._log = source_log.anew()
        self._place = place
        self._record = record
        self._base = base
        self._archive = archive
        self._taken = taken

    def clean(
        self, *, being_read: Callable[[], Collection[int]], committed: Callable[[str], Iterable[CommittedRange]]
    ) -> None:
        """Clean the entries that are due and committed. Files that are gone, or that are no longer the planned ones,
        are left alone, and so are entries with a file that nobody can look at. All others are tried before an error is
        raised.

        :param being_read: returns the entries that attempts read now, or are about to read; these stay due.
        :param committed: returns the ranges of the committed batches of a lane, newest first. An entry that is in no
            range of its lane stays due: its batch may have been rewound, and be planned again.
        :raises SourceError: if a file cannot be moved or removed; the next call tries again.
        """
        if not self._record.read().due.runs:
            return
        # The archive is on record before a file is in it: a replay of the range then finds the file there.
        due = self._record.change(lambda found: found.archiving(self._base, self._archive)).due
        held = being_read()
        files = {number: self._log.range(number - 1, number) for number in due if number not in held}
        ready = _committed(files, committed)
        # The entries are put on record as taken before their first file is, and only then the cleaner asks once more
        # which entries are being read and committed: a reader that announces its range first and then looks at the
        # record is seen by the cleaner, or sees the record. Also, files that a dead cleaner took are known to be taken
        # by clean_source. Which files are left is told by a look before that: of an entry with a file that nobody can
        # look at now none is taken, else that one would count as taken for ever, however it is found later.
        changed: dict[int, list[str]] = {}
        errors: list[str] = []
        for number in sorted(ready):
            paths, unseen = self._changed(files[number])
            errors += unseen
            if not unseen:
                changed[number] = paths
        taken, deletes = list(changed), self._archive is None
        begun = self._record.change(lambda found: found.taking(changed, deletes=deletes))
        due = begun.due
        if not self._place.is_away(self._base):  # else no file is there, and the note would lie below the mount point
            self._taken.note(begun)
        held = being_read()
        still = {number for number in changed if number in due and number not in held}
        ready = _committed({number: files[number] for number in still}, committed)
        # Last: a backup may have been restored since the entries were read, and others have been planned and committed
        # under their numbers. Their files are the next commit's.
        ready = {number for number in ready if self._log.range(number - 1, number) == files[number]}
        cleaned: list[int] = []
        for number in sorted(ready):
            failed = self._entry(files[number])
            errors += failed
            if not failed:
                cleaned.append(number)
        self._record.change(lambda found: found.taken(taken, cleaned=cleaned))
        if errors:
            how = "delete" if self._archive is None else f"archive to {self._archive!r}"
            raise SourceError(
                f"cannot {how} {len(errors)} file(s), first {errors[0]}. Mend it; the next commit tries again."
            )

    def _entry(self, files: list[PlannedFile]) -> list[str]:
        errors = []
        for file in files:
            try:
                self._one(file)
            except FileExistsError as error:
                # The file in the archive may be this file itself, from a batch that was rewound and made again: then
                # the file in the source's folder is another one. An object there with the planned ETag is not.
                if not self._is_archived(file):
                    errors.append(f"{file.path!r}: {error.strerror}")
            except FileNotFoundError:
                # Another run cleans at the same moment, or the file was archived before; or the file system is away,
                # and the file with it.
                errors += self._away(file)
            except OSError as error:
                errors.append(f"{file.path!r}: {error.strerror or error}")
        return errors

    def _changed(self, files: Sequence[PlannedFile]) -> tuple[list[str], list[str]]:
        """The paths of files that are not, or no longer, the planned ones; and for people, which files nobody can look
        at now."""
        below = [file for file in files if is_below(file.path, self._base)]
        changed = [file.path for file in files if not is_below(file.path, self._base)]
        unseen: list[str] = []
        try:
            look = self._place.looks([file.path for file in below])
            for file in below:
                found = look(file.path)
                if found is None:
                    unseen += self._away(file)
                elif not file.is_as_planned(found.size, found.mtime_ns, found.etag):
                    changed.append(file.path)
        except SourceError as error:
            unseen.append(str(error).rstrip("."))
        return changed, unseen

    def _away(self, file: PlannedFile) -> list[str]:
        """That a file which is not found may be there all the same; nothing if it is gone, or in the archive."""
        if self._place.is_away(self._base) and not self._is_archived(file):
            return [f"{file.path!r}: {self._base!r} is empty or not there, as if it were not mounted"]
        return []

    def _is_archived(self, file: PlannedFile) -> bool:
        archives = self._record.read().archives
        found = locate(file, look=self._place.look, base=self._base, archives=archives, given_up=True)
        return found.presence is Presence.AS_PLANNED and found.base != self._base

    def _one(self, file: PlannedFile) -> None:
        if not is_below(file.path, self._base):
            log.warning("%s does not lie below %s; clean_source leaves it where it is", file.path, self._base)
            return
        self._place.take(file, base=self._base, archive=self._archive)


def _committed(
    entries: Mapping[int, Sequence[PlannedFile]], committed: Callable[[str], Iterable[CommittedRange]]
) -> set[int]:
    """Those of the entries that a committed batch of their lane has read. The newest batch that covers an entry
    decides: a command may have set the position back, or have passed over data that was read before.

    :param entries: by log id, with the files of each.
    """
    lanes: dict[str, set[int]] = {}
    for number, files in entries.items():
        if files:
            lanes.setdefault(files[0].lane, set()).add(number)
    found: set[int] = set()
    for lane, numbers in lanes.items():
        position: int | None = None
        for one in committed(lane):
            start, end = log_id(one.start), log_id(one.end)
            if position is None:
                position = end
                # Otherwise, a file that cannot be cleaned would make every commit read the logs back to its batch.
                looks_back = start // _FAR != end // _FAR
                numbers = {number for number in numbers if number <= position and (looks_back or end - number < _FAR)}
                if not numbers:
                    break
            over = {number for number in numbers if min(start, end) < number <= max(start, end)}
            found |= over if one.is_read else set()
            numbers -= over
            if not numbers:
                break
    return found
