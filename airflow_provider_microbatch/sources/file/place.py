"""The place of a source's files: the differences between a file system and an object store, and nothing else."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence

from airflow_provider_microbatch.runtime.job import Requirements
from airflow_provider_microbatch.sources.file.listing import FoundFile, Listing, Unseen
from airflow_provider_microbatch.sources.file.log import PlannedFile

Look = Callable[[str], FoundFile | None]
"""Returns the file that is at a path now; None if there is none."""

NOTES = ".microbatch_cleaned"
"""A hidden name, which no listing shows: files below it are not data."""


class Place(ABC):
    """The place of a source's files.

    Methods raise :class:`~airflow_provider_microbatch.exceptions.SourceError` for a problem that the user can solve;
    the source adds its name.
    """

    lookups = 1_000
    """The largest number of paths that are looked at for a mere warning."""

    put_back = "Put them back where they were, with the times that they had (cp -p)."
    """How files that ``clean_source`` has deleted come to be the planned ones again."""

    @property
    @abstractmethod
    def top(self) -> str:
        """The beginning of all paths of this place."""

    @abstractmethod
    def check(self, listing: Listing, *, archive: str | None, cleans: bool) -> None:
        """Raise if the files cannot be listed, or cannot be cleaned as requested. Writes nothing.

        :param archive: absolute path of the archive; None for none.
        :param cleans: whether files are to be archived or deleted.
        """

    @abstractmethod
    def files(self, listing: Listing, unseen: Unseen, *, start: str | None) -> Iterator[FoundFile]:
        """See :meth:`Listing.files`."""

    @abstractmethod
    def look(self, path: str) -> FoundFile | None:
        """The file that is at a path now; None if there is none."""

    def looks(self, paths: Sequence[str]) -> Look:
        """Return :meth:`look` for a caller that is about to look at these paths."""
        return self.look

    def is_mark(self, file: PlannedFile) -> bool:
        """Whether a planned file that is not there never was: what was listed marks a folder, and is no data."""
        return False

    @abstractmethod
    def check_readable(self, path: str) -> None:
        """Raise for a file that Spark cannot read, before it is planned."""

    def check_folder(self, path: str) -> None:
        """Raise for a folder that Spark takes for none, before a file of a partition below it is planned."""
        return

    def why_away(self, paths: Sequence[str], *, base: str, named: str, nothing_found: bool) -> str | None:
        """The reason, in words, why planned files may exist although they are not visible; None if they are gone.

        :param base: base of the source.
        :param named: some of the files, for messages.
        :param nothing_found: whether no file of the range was found.
        """
        return None

    def is_away(self, base: str) -> bool:
        """Whether the storage of the files is not there, or is empty, as where it is not mounted."""
        return False

    @abstractmethod
    def take(self, file: PlannedFile, *, base: str, archive: str | None) -> None:
        """Move a committed file, which lies below ``base``, to the archive, or remove it if ``archive`` is None. A file
        that is no longer the planned one is left alone, with a warning.

        :raises FileNotFoundError: if the file is gone.
        :raises FileExistsError: if another file lies at its place in the archive.
        :raises OSError: if the file cannot be moved or removed.
        """

    def note_path(self, base: str, name: str) -> str:
        """The path of a note about the files below ``base``, for :meth:`read_note` and :meth:`write_note`."""
        return f"{base.rstrip('/')}/{NOTES}/{name}"

    @abstractmethod
    def notes(self, base: str, beginning: str) -> list[str]:
        """Return the names of the notes about the files below ``base`` that begin with ``beginning``, ascending.

        :raises OSError: if they cannot be listed.
        """

    @abstractmethod
    def read_note(self, path: str) -> bytes:
        """Read a note.

        :raises FileNotFoundError: if there is none.
        :raises OSError: if it cannot be read.
        """

    @abstractmethod
    def write_note(self, path: str, data: bytes) -> None:
        """Replace a note by ``data``, all of it or nothing; durable on return.

        :raises OSError: if it cannot be written.
        """

    def requires(self) -> Requirements:
        """Return the packages that Spark needs in addition to itself to read there."""
        return Requirements()

    def secrets(self) -> Mapping[str, str]:
        """Return the settings of Hadoop's file system by which Spark reaches the files; any of them may be secret."""
        return {}
