"""What happens to a batch's files after its commit: nothing, archive or delete.

``cleaned/<log id>`` in the source's state says that an entry and all before it are done. Markers are written in order,
so the highest marker tells all, the one before it goes, and saying a commit again costs one look. An entry that is kept
for a batch that was set aside is passed over, and cleaned when it has been released.
"""

from __future__ import annotations

import logging
import os.path
from pathlib import Path

from airflow_provider_microbatch.checkpoint.key import LIVE
from airflow_provider_microbatch.checkpoint.log import numbers
from airflow_provider_microbatch.checkpoint.store import Store
from airflow_provider_microbatch.exceptions import SourceError
from airflow_provider_microbatch.sources.file_kept import KeptEntries
from airflow_provider_microbatch.sources.file_log import NOTHING, PlannedFile, SourceLog
from airflow_provider_microbatch.sources.file_present import archived_path

log = logging.getLogger(__name__)


class Cleaner:
    """Archives or deletes the files of committed ranges.

    :param source_log: the entries to clean.
    :param state: the source's own state.
    :param base: the source's base.
    :param archive: the folder to move files to; None deletes them.
    """

    def __init__(self, source_log: SourceLog, state: Store, *, base: str, archive: str | None) -> None:
        self._log = source_log
        self._state = state
        self._kept = KeptEntries(state)
        self._base = base
        self._archive = archive

    def clean(self, end: int) -> None:
        """Clean every entry of the live lane up to ``end`` that is not cleaned yet. Files that are gone, or are no
        longer the ones that were planned, are left alone. All files are tried before an error is raised.

        :raises SourceError: if a file cannot be moved or removed; the next call tries again.
        """
        errors: list[str] = []
        for number in range(self._cleaned(end) + 1, end + 1):
            if not self._kept.holds(number):
                errors += self._entry(number, LIVE)
            if not errors:
                self._state.put_if_absent(f"cleaned/{number}", b"v1")
                if number:
                    self._state.delete(f"cleaned/{number - 1}")
        for number in self._kept.released():
            failed = self._entry(number, LIVE)
            errors += failed
            if not failed:
                self._kept.forget(number)
        self._raise(errors)

    def clean_lane(self, number: int, lane: str) -> None:
        """Clean what one entry has for another lane than the live one; said again, it looks at the files again.

        :raises SourceError: as :meth:`clean`.
        """
        self._raise(self._entry(number, lane))

    def _entry(self, number: int, lane: str) -> list[str]:
        errors = []
        for file in self._log.range(number - 1, number):
            # Another lane's files may not be read yet; its own commit cleans them.
            if file.lane != lane:
                continue
            try:
                self._one(file)
            except OSError as error:
                errors.append(f"{file.path!r}: {error.strerror or error}")
        return errors

    def _raise(self, errors: list[str]) -> None:
        if errors:
            how = "delete" if self._archive is None else f"archive to {self._archive!r}"
            raise SourceError(
                f"cannot {how} {len(errors)} file(s), first {errors[0]}. Mend it; the next commit tries again."
            )

    def _cleaned(self, end: int) -> int:
        """The highest log id up to ``end`` that is done; -1 if none is."""
        if self._state.get(f"cleaned/{end}") is not None:
            return end
        if end and self._state.get(f"cleaned/{end - 1}") is not None:
            return end - 1
        return min(max(numbers(self._state.list("cleaned")), default=NOTHING), end)

    def _one(self, file: PlannedFile) -> None:
        try:
            status = Path(file.path).stat()
        except (FileNotFoundError, NotADirectoryError):
            return
        if not file.is_as_planned(status.st_size, status.st_mtime_ns):
            log.warning("%s changed after it was planned; clean_source leaves it where it is", file.path)
            return
        if self._archive is None:
            Path(file.path).unlink()
            return
        target = Path(archived_path(file.path, base=self._base, archive=self._archive))
        target.parent.mkdir(parents=True, exist_ok=True)
        if os.path.lexists(target):
            raise FileExistsError(0, f"{str(target)!r} exists already")
        Path(file.path).rename(target)
