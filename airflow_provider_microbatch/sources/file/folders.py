"""Checks that this user can use the folders of a file source."""

from __future__ import annotations

import os
from pathlib import Path

from airflow_provider_microbatch.exceptions import SourceError
from airflow_provider_microbatch.sources.file.listing import Listing
from airflow_provider_microbatch.sources.file.overlap import lists_below
from airflow_provider_microbatch.sources.file.tables import table_around, why_not


def is_listed(listing: Listing, archive: Path) -> bool:
    """Whether the source lists files that are archived there, also through a link: they would be read again, and
    archived one level deeper, at each run. Where the paths alone show it, the definition refuses it when the DAG is
    parsed."""
    real, base = archive.resolve(), Path(listing.base).resolve()
    return real.is_relative_to(base) and lists_below(listing, str(Path(listing.base) / real.relative_to(base)))


def check_folders(listing: Listing, archive: str | None, *, cleans: bool) -> None:
    """Check that the base exists, and that this user may list it (and remove files from it, if files are cleaned).
    Writes nothing.

    :param archive: the archive's absolute local path; None without one.
    :param cleans: whether files are to be archived or deleted.
    :raises SourceError: if a check fails.
    """
    base = Path(listing.base)
    try:
        _check_base(base, cleans=cleans, allow_table=listing.allow_table)
        if archive is not None:
            _check_archive(Path(archive), listing, base.stat().st_dev)
    except OSError as error:
        raise SourceError(f"cannot look at {error.filename!r}: {error.strerror}. Give this user the right.") from error


def _check_base(base: Path, *, cleans: bool, allow_table: bool) -> None:
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


def _check_archive(archive: Path, listing: Listing, device: int) -> None:
    existing = archive
    while not existing.exists():
        existing = existing.parent
    if is_listed(listing, archive):
        raise SourceError(f"archive_dir {str(archive)!r} leads by a link to what it lists. Put it elsewhere.")
    if not existing.is_dir() or not _may(existing, os.W_OK | os.X_OK):
        raise SourceError(f"archive_dir {str(archive)!r} cannot be written by this user. Give it write rights.")
    if existing.stat().st_dev != device:
        raise SourceError(f"archive_dir {str(archive)!r} is on another file system; a rename cannot move files there.")


def _may(path: Path, mode: int) -> bool:
    return os.access(path, mode, effective_ids=os.access in os.supports_effective_ids)
