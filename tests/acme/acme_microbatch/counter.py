"""A source of numbers: a file holds how far the counter has come, and a batch has the next numbers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from airflow_provider_microbatch.exceptions import SourceError
from airflow_provider_microbatch.runtime.job import Read, Requirements
from airflow_provider_microbatch.sources import (
    LATE,
    UNLIMITED,
    Figures,
    Late,
    OpenSource,
    ReadLimit,
    Source,
    SourceContext,
    Split,
    digest_of_range,
)


@dataclass(frozen=True)
class CounterSource(Source):
    """All numbers from 1 on.

    :param path: the file; with a connection the path begins at the folder that the connection has as host.
    :param max_rows: most numbers in a batch; None for no limit.
    :param conn_id: id of the connection; None for the path alone.
    :param late: a batch ends where the counter is when Spark reads it, and not where it is when the batch is planned.
    :param block: number of numbers in a split, counted from 1 on; None for a whole range in one split.
    """

    path: str
    max_rows: int | None = None
    conn_id: str | None = None
    late: bool = False
    block: int | None = None

    def open(self, context: SourceContext) -> OpenCounter:
        return OpenCounter(self, context)

    def location(self) -> str:
        return self.path


class OpenCounter(OpenSource):
    """Offsets are ``{"n": 12}``: the numbers up to 12. A plan looks where the counter is; the source keeps no log."""

    reader = "acme_microbatch.counter_reader:read"

    def __init__(self, source: CounterSource, context: SourceContext) -> None:
        self._source = source
        self._name = context.name
        self._connect = context.connect

    def check(self) -> None:
        self._head()

    def has_new(self, position: str | None) -> bool:
        return self._head() > _number(position)

    def latest_offset(self, start: str | None, limit: ReadLimit = UNLIMITED) -> str | Late | None:
        if self._source.late:
            return LATE if self.has_new(start) else start
        most = [one for one in (self._source.max_rows, limit.rows, limit.splits) if one is not None]
        begin, head = _number(start), self._head()
        end = max(begin, min([head, *(begin + one for one in most)]))
        return start if end == begin else json.dumps({"n": end})

    def read(self, start: str | None, end: str | None) -> Read:
        return self._read(start=_number(start), end=_number(end), path=str(self._path()))

    def known_as(self, start: str | None, end: str | None) -> str | None:
        return digest_of_range(str(self._path()), _number(start), _number(end))

    def splits_of(self, start: str | None, end: str | None) -> Sequence[Split]:
        begin, last, block = _number(start), _number(end), self._source.block
        if block is None or begin == last:
            return super().splits_of(start, end)
        path, edges = str(self._path()), [begin, *range((begin // block + 1) * block, last, block), last]
        return [
            Split(id=f"{after + 1}-{upto}", read=self._read(start=after, end=upto, path=path))
            for after, upto in pairwise(edges)
        ]

    def read_late(self, start: str | None) -> Read:
        return self._read(start=_number(start), path=str(self._path()), max_rows=self._source.max_rows)

    def resolve(self, start: str | None, told: Mapping[str, Any]) -> str | None:
        end = told.get("end")
        if type(end) is not int:
            raise SourceError(f"source {self._name!r}: the reader did not tell how far it came.")
        return start if end == _number(start) else json.dumps({"n": end})

    def is_after(self, offset: str | None, other: str | None) -> bool:
        return _number(offset) > _number(other)

    def check_offset(self, offset: str) -> None:
        try:
            known = 0 < _number(offset) <= self._head()
        except (ValueError, KeyError, TypeError):
            known = False
        if not known:
            raise SourceError(f"source {self._name!r}: {offset} is no position of {self._source.path}.")

    def lag(self, position: str | None) -> Figures:
        return Figures(rows=self._head() - _number(position))

    def describe(self, start: str | None, end: str | None) -> Figures:
        return Figures(rows=_number(end) - _number(start))

    def _read(self, **arguments: Any) -> Read:
        return Read(reader=self.reader, arguments=arguments, requires=Requirements(modules=("acme_microbatch",)))

    def _head(self) -> int:
        try:
            return int(self._path().read_text())
        except (OSError, ValueError) as error:
            raise SourceError(f"source {self._name!r} cannot be read: {error}") from error

    def _path(self) -> Path:
        conn_id = self._source.conn_id
        return Path("" if conn_id is None else self._connect(conn_id).host or "", self._source.path)


def _number(offset: str | None) -> int:
    return 0 if offset is None else int(json.loads(offset)["n"])
