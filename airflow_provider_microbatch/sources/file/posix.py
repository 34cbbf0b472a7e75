"""Files of a local or shared POSIX file system."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from airflow_provider_microbatch.exceptions import SourceError
from airflow_provider_microbatch.held_folder import opened
from airflow_provider_microbatch.sources.file.listing import FoundFile, Listing, Unseen
from airflow_provider_microbatch.sources.file.log import PlannedFile
from airflow_provider_microbatch.sources.file.overlap import lists_below
from airflow_provider_microbatch.sources.file.path import check_readable
from airflow_provider_microbatch.sources.file.place import Place
from airflow_provider_microbatch.sources.file.present import archived_path, is_below
from airflow_provider_microbatch.sources.file.tables import table_around, why_not

log = logging.getLogger(__name__)


def is_listed(listing: Listing, archive: Path) -> bool:
    """Whether the source comes upon what is archived there, by a link too: it would be read again, and archived one
    level deeper, at each run. By their letters alone that is refused when the DAG is parsed."""
    real, base = archive.resolve(), Path(listing.base).resolve()
    return real.is_relative_to(base) and lists_below(listing, str(Path(listing.base) / real.relative_to(base)))


class PosixPlace(Place):
    """See :class:`Place`."""

    @property
    def top(self) -> str:
        return "/"

    def check(self, listing: Listing, *, archive: str | None, cleans: bool) -> None:
        """Is the base there, and may this user list it (and remove from it, if files are cleaned)?"""
        base = Path(listing.base)
        try:
            _check_folder(base, cleans=cleans, allow_table=listing.allow_table)
            if archive is not None:
                _check_archive(listing, Path(archive), base.stat().st_dev)
        except OSError as error:
            raise SourceError(f"cannot look at {error.filename!r}: {error.strerror}. Give this user the right.") from (
                error
            )

    def files(self, listing: Listing, unseen: Unseen, *, start: str | None) -> Iterator[FoundFile]:
        """By the walk."""
        return listing.files(unseen, start=start)

    def look(self, path: str) -> FoundFile | None:
        """By its status, links followed."""
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
        """Whether the base is not there, or has nothing in it."""
        try:
            if Path(base).is_file():
                return False
            with os.scandir(base) as entries:
                return next(entries, None) is None
        except OSError:
            return True

    def why_away(self, paths: Sequence[str], *, base: str, named: str, nothing_found: bool) -> str | None:
        """Their folder is not there, or has nothing in it and none of the files was found, as where a file system is
        not mounted. What is skipped then would never be read."""
        for folder in dict.fromkeys(_folder(path, base) for path in paths):
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
        """By a rename, or an unlink."""
        # Where the source is one file, the folder that it lies in is the user's word too.
        top = base if file.path != base else str(Path(base).parent)
        *below, name = Path(file.path).relative_to(top).parts
        with contextlib.ExitStack() as stack:
            try:
                folder = stack.enter_context(opened(top, below))
            except NotADirectoryError as error:
                log.warning("%s: %s; clean_source leaves it where it is", file.path, error.strerror)
                return
            # From the look to the end by the same folder: whoever writes the source may put a link into its place.
            status = os.stat(name, dir_fd=folder)
            if not file.is_as_planned(status.st_size, status.st_mtime_ns):
                log.warning("%s changed after it was planned; clean_source leaves it where it is", file.path)
            elif archive is None:
                os.unlink(name, dir_fd=folder)
            else:
                _move(archived_path(file.path, base=base, archive=archive), archive, name, folder)


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


def _check_folder(base: Path, *, cleans: bool, allow_table: bool) -> None:
    folder = base if base.is_dir() else base.parent
    if not base.exists():
        raise SourceError(f"path {str(base)!r} does not exist. Create it or correct the path.")
    if not _may(base, os.R_OK) or not _may(folder, os.R_OK | os.X_OK):
        raise SourceError(f"path {str(base)!r} may not be read by this user. Give it read and search rights.")
    if (base / "_spark_metadata").is_dir():
        raise SourceError(
            f"path {str(base)!r} was written by a Structured Streaming file sink: which of its files count is in "
            "its _spark_metadata, which this source does not read. Copy the committed files elsewhere first."
        )
    if not allow_table and (table := table_around(folder)) is not None:
        raise SourceError(why_not(table))
    if cleans and not _may(folder, os.W_OK | os.X_OK):
        raise SourceError(f"clean_source may not remove files from {str(folder)!r}. Give this user write rights.")


def _check_archive(listing: Listing, archive: Path, device: int) -> None:
    existing = archive
    while not existing.exists():
        existing = existing.parent
    if is_listed(listing, archive):
        raise SourceError(f"archive_dir {str(archive)!r} leads by a link to what it lists. Put it elsewhere.")
    if not existing.is_dir() or not _may(existing, os.W_OK | os.X_OK):
        raise SourceError(f"archive_dir {str(archive)!r} cannot be written by this user. Give it write rights.")
    if existing.stat().st_dev != device:
        raise SourceError(f"archive_dir {str(archive)!r} is on another file system; a rename cannot move files there.")


def _folder(path: str, base: str) -> str:
    """The folder that a planned file's being there depends on: the base, or its own where that is the file itself, or
    where the source has another base by now."""
    return base if path != base and is_below(path, base) else os.path.dirname(path)  # noqa: PTH120 a text, as all here


def _may(path: Path, mode: int) -> bool:
    return os.access(path, mode, effective_ids=os.access in os.supports_effective_ids)
