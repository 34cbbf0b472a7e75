"""A Python data source, opened for its checkpoint: each question goes to a planner process that stays alive."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow_provider_microbatch.checkpoint.entries import Offset
from airflow_provider_microbatch.exceptions import SourceError
from airflow_provider_microbatch.lifetime import shared
from airflow_provider_microbatch.runtime.job import Read, Requirements
from airflow_provider_microbatch.sources import UNLIMITED, OpenSource, ReadLimit, SourceContext, digest_of_range
from airflow_provider_microbatch.sources.python.order import is_after
from airflow_provider_microbatch.sources.python.resident import RESIDENTS, Planner
from airflow_provider_microbatch.sources.ways_on import made_anew

if TYPE_CHECKING:
    from airflow_provider_microbatch.sources.python import PythonSource

_READER = "airflow_provider_microbatch.runtime.python_source:read"


class OpenPythonSource(OpenSource):
    """Offsets are ``json.dumps`` of the values that the reader returns, as Spark records them."""

    def __init__(self, source: PythonSource, context: SourceContext) -> None:
        self._source = source
        self._name = context.name
        self._set_offset = context.set_offset

    def check(self) -> None:
        self._ask("check")

    def initial_offset(self) -> Offset | None:
        return self._offset("initial")

    def begins_as_asked(self) -> bool:
        """A reader may answer with its newest data."""
        return True

    def has_new(self, position: Offset | None) -> bool:
        return self.latest_offset(position) != position

    def latest_offset(self, start: Offset | None, limit: ReadLimit = UNLIMITED) -> Offset | None:
        begin = self.initial_offset() if start is None else start
        end = self._offset("latest", start=_position(begin), rows=limit.rows, bytes=limit.bytes)
        if end is None or _position(end) == _position(begin):
            return start
        if self.is_after(begin, end):
            raise SourceError(
                f"source {self._name!r}: {self._source.source} was at {begin}, and its newest offset is {end} now, "
                "which lies before. Its latestOffset must tell where the stream stands, and not count how often it was "
                f"asked. {made_anew(self._set_offset, end)}"
            )
        return end

    def read(self, start: Offset | None, end: Offset | None) -> Read:
        begin = self.initial_offset() if start is None else start
        return Read(
            reader=_READER,
            arguments={
                "name": self._name,
                "source": self._source.source,
                "options": dict(self._source.options),
                "schema": self._source.schema,
                "start": _position(begin),
                "end": _position(begin if end is None else end),
            },
            requires=Requirements(modules=(self._source.module,) if self._source.travels else ()),
        )

    def known_as(self, start: Offset | None, end: Offset | None) -> str | None:
        """Return a digest of the data source, its options, and the offsets."""
        begin = self.initial_offset() if start is None else start
        return digest_of_range(self._source.source, dict(self._source.options), _position(begin), _position(end))

    def rows(self, start: Offset | None, end: Offset | None) -> Iterator[Sequence[Any] | Mapping[str, Any]]:
        if end is not None and start != end:
            yield from self._ask("rows", start=_position(start), end=_position(end))

    def commit(self, end: Offset) -> None:
        self._ask("commit", end=_position(end))

    def check_offset(self, offset: Offset) -> None:
        try:
            position = json.loads(offset)
        except ValueError as error:
            raise SourceError(f"source {self._name!r}: {offset} is no JSON: {error}") from error
        own = json.loads(self.initial_offset() or "null")
        if type(position) is not type(own) or (isinstance(own, dict) and own and not set(position) & set(own)):
            raise SourceError(
                f"source {self._name!r}: {offset} is no position of {self._source.source}, whose first one is "
                f"{json.dumps(own)}."
            )

    def is_after(self, offset: Offset | None, other: Offset | None) -> bool | None:
        if offset is None or other is None:
            return None if offset == other else offset is not None
        return is_after(json.loads(offset), json.loads(other))

    def _offset(self, do: str, **question: Any) -> Offset | None:
        position = self._ask(do, **question)
        if not isinstance(position, dict):
            raise SourceError(
                f"source {self._name!r}: the offset of {self._source.source} is {position!r:.200}, and not a dict."
            )
        return json.dumps(position)

    def _ask(self, do: str, **question: Any) -> Any:
        try:
            return self._planner.ask(do, **question)
        except SourceError as error:
            told = SourceError(f"source {self._name!r}: {self._source.source}: {error}")
            for note in getattr(error, "__notes__", ()):
                told.add_note(note)
            raise told from error

    @cached_property
    def _planner(self) -> Planner:
        opening = {
            "source": self._source.source,
            "options": dict(self._source.options),
            "schema": self._source.schema,
            "path": [path for path in sys.path if path],
        }
        # By the whole task or trigger, and not by a look of it: where that is cancelled its look may hang.
        key = ("planner of a data source", os.getpid(), json.dumps(opening, sort_keys=True))
        return shared(key, lambda: RESIDENTS.hold(opening))


def _position(offset: Offset | None) -> Any:
    return None if offset is None else json.loads(offset)
