"""A polled source, opened for its checkpoint: calls the user's code, and rejects answers that the logs cannot hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_provider_microbatch.checkpoint.entries import Offset
from airflow_provider_microbatch.definition import class_path
from airflow_provider_microbatch.exceptions import MicroBatchError, SourceChangedError, SourceError
from airflow_provider_microbatch.runtime.job import Read
from airflow_provider_microbatch.runtime.masking import mask, refusal
from airflow_provider_microbatch.runtime.polling import counted, short
from airflow_provider_microbatch.sources import (
    UNLIMITED,
    Figures,
    OpenSource,
    ReadLimit,
    SourceContext,
    digest_of_range,
)
from airflow_provider_microbatch.sources.polling.offsets import decoded, encoded, same
from airflow_provider_microbatch.sources.ways_on import made_anew

if TYPE_CHECKING:
    from airflow_provider_microbatch.sources.polling import PollingSource

_READER = "airflow_provider_microbatch.runtime.polling:read"
_OF_ONE_PROCESS = ("unusual_prefix_", "__main__")
"""Prefixes of names of modules that no other process can import; the first is that of DAG files."""

T = TypeVar("T")


class OpenPollingSource(OpenSource):
    """Offsets are the user's own JSON values, as texts."""

    def __init__(self, source: PollingSource, context: SourceContext) -> None:
        self._source = source
        self._name = context.name
        self._set_offset = context.set_offset

    def check(self) -> None:
        self._importable()
        for name, value in self._fields().items():
            # Not by its name alone: `token_file` is not a secret.
            if isinstance(value, str) and mask(value) != value and (refused := refusal(name, value)) is not None:
                raise SourceError(f"source {self._name!r}: {self._class}: {refused}")
        self._asked("check", self._source.check)

    def initial_offset(self) -> Offset | None:
        return self._offset(self._source.initial_offset)

    def begins_as_asked(self) -> bool:
        """A class of the user's may answer with its newest data."""
        return True

    def has_new(self, position: Offset | None) -> bool:
        return self.latest_offset(position) != position

    def latest_offset(self, start: Offset | None, limit: ReadLimit = UNLIMITED) -> Offset | None:
        begin = self._begin(start)
        end = self._offset(self._source.latest_offset, decoded(begin), limit)
        if same(decoded(end), decoded(begin)):
            return start
        if end is None:
            raise SourceError(
                f"source {self._name!r}: {self._class}.latest_offset({begin}) gave None, which is before anything. "
                "Return start where there is nothing new."
            )
        if self.is_after(begin, end):
            raise SourceError(
                f"source {self._name!r}: {self._class}.latest_offset({begin}) gave {end}, which lies before. A range "
                f"cannot go back. {made_anew(self._set_offset, end)}"
            )
        return end

    def read(self, start: Offset | None, end: Offset | None) -> Read:
        path = self._importable()
        begin = self._begin(start)
        return Read(
            reader=_READER,
            arguments={
                "name": self._name,
                "source": path,
                "fields": self._fields(),
                "schema": self._asked("schema", lambda: self._source.schema),
                "start": decoded(begin),
                "end": decoded(begin if end is None else end),
            },
            requires=self._asked("requirements", self._source.requirements),
        )

    def known_as(self, start: Offset | None, end: Offset | None) -> str | None:
        """Return a digest of the class, its fields, and the offsets."""
        begin = self._begin(start)
        return digest_of_range(class_path(type(self._source)), self._fields(), decoded(begin), decoded(end))

    def rows(self, start: Offset | None, end: Offset | None) -> Iterator[Sequence[Any] | Mapping[str, Any]]:
        begin = self._begin(start)
        if end is None or end == begin:
            return
        ranges = self._asked("partitions", self._source.partitions, decoded(begin), decoded(end))
        for piece in [(decoded(begin), decoded(end))] if ranges is None else ranges:
            yield from self._asked("read", lambda *of: list(self._source.read(*of)), *piece)

    def verify(self, start: Offset | None, end: Offset | None, told: Mapping[str, Any] | None = None) -> None:
        """Check the number of rows: an API that returns one page instead of all rows would silently lose rows."""
        read, rows = (told or {}).get("rows"), self.describe(start, end).rows
        if read is not None and rows is not None and read < rows:
            raise SourceChangedError(f"source {self._name!r}: {short(self._class, read, rows, start, end)}")

    def commit(self, end: Offset) -> None:
        self._asked("commit", self._source.commit, decoded(end))

    def finished(self, position: Offset | None) -> bool:
        return position is not None and bool(self._asked("finished", self._source.finished, decoded(position)))

    def check_offset(self, offset: Offset) -> None:
        try:
            decoded(offset)
            self.latest_offset(offset)
        except (ValueError, MicroBatchError) as error:
            raise SourceError(f"source {self._name!r}: {offset} is no position of {self._class}: {error}") from error

    def is_after(self, offset: Offset | None, other: Offset | None) -> bool | None:
        if offset is None or other is None:
            return None if offset == other else offset is not None
        return self._asked("is_after", self._source.is_after, decoded(offset), decoded(other))

    def lag(self, position: Offset | None) -> Figures:
        return self.describe(position, self.latest_offset(position))

    def describe(self, start: Offset | None, end: Offset | None) -> Figures:
        begin = self._begin(start)
        if end is None or end == begin:
            return Figures(rows=0)
        return Figures(rows=self._asked("count", partial(counted, self._source), decoded(begin), decoded(end)))

    def _begin(self, start: Offset | None) -> Offset | None:
        return self.initial_offset() if start is None else start

    def _offset(self, ask: Callable[..., Any], *arguments: Any) -> Offset | None:
        method = ask.__name__
        return self._asked(method, lambda *given: encoded(ask(*given), who=f"{self._class}.{method}"), *arguments)

    def _asked(self, method: str, ask: Callable[..., T], *arguments: Any) -> T:
        """Return the answer of the user's code. Any exception of it becomes an error of this source, with its name."""
        try:
            return ask(*arguments)
        except MicroBatchError:
            raise
        except Exception as error:
            given = ", ".join(f"{argument!r:.100}" for argument in arguments)
            raise SourceError(
                f"source {self._name!r}: {self._class}.{method}({given}) raised {type(error).__name__}: {error}"
            ) from error

    def _fields(self) -> dict[str, Any]:
        fields: dict[str, Any] = self._source.to_dict()["arguments"]
        return fields

    @property
    def _class(self) -> str:
        return type(self._source).__name__

    def _importable(self) -> str:
        """The class path, by which Spark finds the class."""
        path = class_path(type(self._source))
        if path.startswith(_OF_ONE_PROCESS) or "." in path.partition(":")[2]:
            raise SourceError(
                f"source {self._name!r}: Spark cannot import {path}. Put the class at the top level of a module of its "
                "own beside the DAG file (`sources/rates.py`), and import it from there."
            )
        return path
