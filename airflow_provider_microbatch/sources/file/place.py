"""Where a source's files lie: what differs between a file system and an object store, and nothing else."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence

from airflow_provider_microbatch.runtime.job import Requirements
from airflow_provider_microbatch.sources.file.listing import FoundFile, Listing, Unseen
from airflow_provider_microbatch.sources.file.log import PlannedFile

Look = Callable[[str], FoundFile | None]
"""What is at a path now; None if nothing is."""

NOTES = ".microbatch_cleaned"
"""A hidden name, which no listing shows: what lies below is no data."""


class Place(ABC):
    """Methods raise :class:`~airflow_provider_microbatch.exceptions.SourceError` for what a person can mend; the source
    adds its name."""

    lookups = 1_000
    """So many paths at most are looked at for no more than a warning."""

    @property
    @abstractmethod
    def top(self) -> str:
        """What all paths there begin with."""

    @abstractmethod
    def check(self, listing: Listing, *, archive: str | None, cleans: bool) -> None:
        """Raise if the files cannot be listed, or not be cleaned as they are to be. Writes nothing.

        :param archive: absolute path of the archive; None for none.
        :param cleans: whether files are to be archived or deleted.
        """

    @abstractmethod
    def files(self, listing: Listing, unseen: Unseen, *, start: str | None) -> Iterator[FoundFile]:
        """See :meth:`Listing.files`."""

    @abstractmethod
    def look(self, path: str) -> FoundFile | None:
        """What is at a path now; None if nothing is."""

    def looks(self, paths: Sequence[str]) -> Look:
        """:meth:`look`, for somebody who is about to ask for these paths."""
        return self.look

    @abstractmethod
    def check_readable(self, path: str) -> None:
        """Raise for a file that Spark cannot read, before it is planned."""

    def why_away(self, paths: Sequence[str], *, base: str, named: str, nothing_found: bool) -> str | None:
        """Why planned files may be there although they are not seen, in words; None if they are gone.

        :param base: of the source.
        :param named: some of them, for messages.
        :param nothing_found: whether none of the range was found.
        """
        return None

    def is_away(self, base: str) -> bool:
        """Whether what the files lie on is not there, or has nothing in it, as where it is not mounted."""
        return False

    @abstractmethod
    def take(self, file: PlannedFile, *, base: str, archive: str | None) -> None:
        """Move a committed file, which lies below ``base``, to the archive, or remove it if that is None. One that is
        no longer what was planned is left alone, with a warning.

        :raises FileNotFoundError: if it is gone.
        :raises FileExistsError: if something lies at its place in the archive.
        :raises OSError: if it cannot be done.
        """

    def note_path(self, base: str, name: str) -> str:
        """Where a note about the files below ``base`` lies, for :meth:`read_note` and :meth:`write_note`."""
        return f"{base.rstrip('/')}/{NOTES}/{name}"

    @abstractmethod
    def read_note(self, path: str) -> bytes:
        """What is noted there.

        :raises FileNotFoundError: if nothing is.
        :raises OSError: if it cannot be read.
        """

    @abstractmethod
    def write_note(self, path: str, data: bytes) -> None:
        """Put this in place of what is noted there, all of it or nothing; durable on return.

        :raises OSError: if it cannot be written.
        """

    def requires(self) -> Requirements:
        """What Spark needs beside itself to read there."""
        return Requirements()

    def secrets(self) -> Mapping[str, str]:
        """Settings of Hadoop's file system by which Spark reaches the files; any of them may be secret."""
        return {}
