"""A source of lines that others append to a file: a batch has all lines that are there when Spark reads it."""

from __future__ import annotations

from dataclasses import dataclass

from acme_microbatch.counter import CounterSource, OpenCounter
from airflow_provider_microbatch.exceptions import SourceError
from airflow_provider_microbatch.sources import SourceContext


@dataclass(frozen=True)
class QueueSource(CounterSource):
    """The lines of a file, each of which is a JSON list of rows. Offsets count lines.

    :param path: the file.
    """

    late: bool = True

    def open(self, context: SourceContext) -> OpenQueue:
        return OpenQueue(self, context)


class OpenQueue(OpenCounter):
    """Like the counter, with the number of lines in place of the number in the file."""

    reader = "acme_microbatch.queue_reader:read"

    def _head(self) -> int:
        try:
            return self._path().read_bytes().count(b"\n")
        except OSError as error:
            raise SourceError(f"source {self._name!r} cannot be read: {error}") from error
