"""Selects, by age, the files that may be planned."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from airflow_provider_microbatch.exceptions import SourceError
from airflow_provider_microbatch.sources.file import FileSource
from airflow_provider_microbatch.sources.file.left_out import LeftOut
from airflow_provider_microbatch.sources.file.listing import FoundFile, Unseen
from airflow_provider_microbatch.sources.file.place import Place
from airflow_provider_microbatch.sources.file.present import partition_root
from airflow_provider_microbatch.sources.file.seen import SeenFiles


class Candidates:
    """Files that may be planned. Each method lists anew.

    :param source: the source.
    :param place: place of its files.
    :param seen: the files in the source log.
    :param name: name of the source in the pipeline.
    :param clock_ms: now, milliseconds since the epoch.
    """

    def __init__(
        self, source: FileSource, place: Place, seen: SeenFiles, *, name: str, clock_ms: Callable[[], int]
    ) -> None:
        self._source = source
        self._place = place
        self._seen = seen
        self._name = name
        self._clock_ms = clock_ms
        self._listing = source.listing()

    def eligible(self, start: str | None = None) -> Iterator[FoundFile]:
        """Files that may be planned now, in no order."""
        return filter(self.settled(), self.young(self._seen.unseen, start))

    def young(
        self,
        wanted: Unseen,
        start: str | None,
        left_out: LeftOut | None = None,
        *,
        named: Sequence[str] | None = None,
    ) -> Iterator[FoundFile]:
        """Files that may be planned now or later. As in Spark, age counts from the newest planned file; a time in the
        future counts as now, since otherwise a single file with such a time would make all later files too old for
        good.

        :param left_out: notes the files that may never be planned.
        :param named: the only paths to look at, which the source selects; None: list.
        """
        source, oldest_ms = self._source, None
        if source.max_file_age is not None and self._seen.newest_ms is not None:
            oldest_ms = min(self._seen.newest_ms, self._clock_ms()) - int(source.max_file_age * 1000)
        for found in self.listed(wanted, start) if named is None else self._there(wanted(named)):
            if oldest_ms is None or found.mtime_ns // 1_000_000 >= oldest_ms:
                yield found
            elif left_out is not None:
                left_out.old(found.path)

    def settled(self) -> Callable[[FoundFile], bool]:
        """Return a test whether a file has not changed for ``min_file_age``, as of now, and is therefore complete."""
        age = self._source.min_file_age
        youngest = None if age is None else self._clock_ms() * 1_000_000 - int(age * 1e9)
        return lambda file: youngest is None or file.mtime_ns <= youngest

    def listed(self, wanted: Unseen, start: str | None = None) -> Iterator[FoundFile]:
        """Files of any age.

        :raises SourceError: with the source's name, if the files cannot be listed.
        """
        try:
            yield from self._place.files(self._listing, wanted, start=start)
        except (SourceError, OSError) as error:
            raise SourceError(f"source {self._name!r}: {error}") from error

    def _there(self, paths: Sequence[str]) -> Iterator[FoundFile]:
        """The files at these paths, as a listing finds them: objects without a byte are no data."""
        try:
            look = self._place.looks(paths)
            yield from (found for path in paths if (found := look(path)) is not None and found.size)
        except (SourceError, OSError) as error:
            raise SourceError(f"source {self._name!r}: {error}") from error

    def check_readable(self, files: Iterable[FoundFile]) -> None:
        """:raises SourceError: with the source's name, for a file that Spark cannot read."""
        roots: set[str] = set()
        try:
            for file in files:
                self._place.check_readable(file.path)
                root = None if self._source.recursive else partition_root(file.path, self._listing.base)[0]
                if root is not None and root not in roots:
                    roots.add(root)
                    self._place.check_folder(root)
        except SourceError as error:
            raise SourceError(f"source {self._name!r}: {error}") from error
