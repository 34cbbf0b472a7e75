"""Files of a local or shared POSIX file system."""

from __future__ import annotations

import contextlib
import logging
import os
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

from airflow_provider_microbatch.exceptions import SourceError
from airflow_provider_microbatch.held_folder import opened
from airflow_provider_microbatch.sources.file.folders import check_folders
from airflow_provider_microbatch.sources.file.listing import FoundFile, Listing, Unseen
from airflow_provider_microbatch.sources.file.log import PlannedFile
from airflow_provider_microbatch.sources.file.path import check_readable
from airflow_provider_microbatch.sources.file.place import Place
from airflow_provider_microbatch.sources.file.present import archived_path, folder_of

log = logging.getLogger(__name__)


class PosixPlace(Place):
    """Files of a local or shared POSIX file system; see :class:`Place`."""

    @property
    def top(self) -> str:
        return "/"

    def check(self, listing: Listing, *, archive: str | None, cleans: bool) -> None:
        """Check that the base exists, and that this user may list it (and remove files, if files are cleaned)."""
        check_folders(listing, archive, cleans=cleans)

    def files(self, listing: Listing, unseen: Unseen, *, start: str | None) -> Iterator[FoundFile]:
        """List by a walk over the folders."""
        return listing.files(unseen, start=start)

    def look(self, path: str) -> FoundFile | None:
        """Look by stat, which follows links."""
        try:
            status = Path(path).stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise SourceError(f"cannot look at {path!r}: {error.strerror}. Give this user the right to it.") from error
        return FoundFile(path, status.st_size, status.st_mtime_ns)

    def check_readable(self, path: str) -> None:
        """See :func:`check_readable`."""
        check_readable(path)

    def is_away(self, base: str) -> bool:
        """Whether the base is not there, or is empty."""
        try:
            if Path(base).is_file():
                return False
            with os.scandir(base) as entries:
                return next(entries, None) is None
        except OSError:
            return True

    def why_away(self, paths: Sequence[str], *, base: str, named: str, nothing_found: bool) -> str | None:
        """The reason if a folder of the files is not there, or is empty and none of the files was found, as where a
        file system is not mounted. Files that were skipped in that state would never be read."""
        for folder in dict.fromkeys(folder_of(path, base) for path in paths):
            try:
                with os.scandir(folder) as entries:
                    empty = next(entries, None) is None
            except (FileNotFoundError, NotADirectoryError):
                return (
                    f"path {folder!r} does not exist, and {len(paths)} planned file(s) may be in it: {named}. "
                    "on_missing='skip' does not skip them then. Mount or create it, or correct the path."
                )
            except OSError as error:
                raise SourceError(
                    f"cannot list {folder!r}: {error.strerror}. Give this user the right to it."
                ) from error
            if empty and nothing_found:
                return (
                    f"all {len(paths)} planned file(s) are gone and {folder!r} is empty, as it is where a file system "
                    f"is not mounted: {named}. on_missing='skip' does not skip them then. Mount it; if all was really "
                    "removed, put any file there, such as an empty '.keep'."
                )
        return None

    def take(self, file: PlannedFile, *, base: str, archive: str | None) -> None:
        """Archive by a rename, or delete by an unlink."""
        # Where the source is one file, the user has named its folder too.
        top = base if file.path != base else str(Path(base).parent)
        *below, name = Path(file.path).relative_to(top).parts
        with contextlib.ExitStack() as stack:
            try:
                folder = stack.enter_context(opened(top, below))
            except NotADirectoryError as error:
                log.warning("%s: %s; clean_source leaves it where it is", file.path, error.strerror)
                return
            # The same open folder is used from the look to the end: a user who writes to the source may put a link in
            # its place.
            status = os.stat(name, dir_fd=folder)
            if not file.is_as_planned(status.st_size, status.st_mtime_ns):
                log.warning("%s changed after it was planned; clean_source leaves it where it is", file.path)
            elif archive is None:
                os.unlink(name, dir_fd=folder)
            else:
                _move(archived_path(file.path, base=base, archive=archive), archive, name, folder)

    def note_path(self, base: str, name: str) -> str:
        """Below the base; if the base is a file, beside it."""
        return super().note_path(str(Path(base).parent) if Path(base).is_file() else base, name)

    def notes(self, base: str, beginning: str) -> list[str]:
        """Follows no link, as :meth:`read_note`."""
        notes = Path(self.note_path(base, beginning)).parent
        try:
            with opened(str(notes.parent), [notes.name]) as held:
                folder = os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=held)  # `held` may permit only a search
                try:
                    return sorted(name for name in os.listdir(folder) if name.startswith(beginning))  # noqa: PTH208
                finally:
                    os.close(folder)
        except FileNotFoundError:
            return []

    def read_note(self, path: str) -> bytes:
        """Follows no link below the folder that the user names, since other users may write there."""
        notes = Path(path).parent
        with opened(str(notes.parent), [notes.name]) as folder:
            file = os.open(Path(path).name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
            with os.fdopen(file, "rb") as note:
                return note.read()

    def write_note(self, path: str, data: bytes) -> None:
        """Write by a rename, and follow no link, as in :meth:`read_note`."""
        notes, temporary = Path(path).parent, f".{uuid.uuid4().hex}.tmp"
        with opened(str(notes.parent), [notes.name], make=True) as held:
            # The held descriptor may permit no more than a search; fsync needs one that is open for reading.
            folder = os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=held)
            try:
                file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644, dir_fd=folder)
                with os.fdopen(file, "wb") as written:
                    written.write(data)
                    written.flush()
                    os.fsync(written.fileno())
                os.replace(temporary, Path(path).name, src_dir_fd=folder, dst_dir_fd=folder)
                os.fsync(folder)
            finally:
                with contextlib.suppress(OSError):
                    os.unlink(temporary, dir_fd=folder)
                os.close(folder)


def _move(target: str, archive: str, name: str, folder: int) -> None:
    *below, new = Path(target).relative_to(archive).parts
    Path(archive).mkdir(parents=True, exist_ok=True)
    with opened(archive, below, make=True) as into:
        try:
            os.stat(new, dir_fd=into, follow_symlinks=False)
        except FileNotFoundError:
            os.rename(name, new, src_dir_fd=folder, dst_dir_fd=into)
        else:
            raise FileExistsError(0, f"{target!r} exists already")
