"""Stream readers of Python data sources, old or new, simple or not, used without a streaming query."""

from __future__ import annotations

import importlib
import inspect
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_microbatch.runtime.ddl import parse_columns

Position = dict[str, Any]


class StreamReader(ABC):
    """The common interface to both kinds of reader. A position is an offset as the reader's own methods return it."""

    @abstractmethod
    def initial(self) -> Position:
        """The position at which a new stream begins."""

    def check(self) -> None:
        """Raise if the reader cannot be used, without reading anything: data at the initial position may be gone by
        now, or be all the data there ever was."""
        self.initial()

    @abstractmethod
    def latest(self, start: Position, *, rows: int | None = None, bytes: int | None = None) -> Position:
        """The end of the range that begins at ``start``, under the reader's own limit and the given limits."""

    @abstractmethod
    def pieces(self, start: Position, end: Position) -> Sequence[Any]:
        """The partitions of a range, as the reader made them."""

    @abstractmethod
    def rows(self, piece: Any) -> Iterator[Any]:
        """The rows of a partition, or record batches of Arrow."""

    @abstractmethod
    def commit(self, end: Position) -> None:
        """Tell the reader that the rows up to ``end`` are in the table."""


class PartitionedReader(StreamReader):
    """Wraps a reader with partitions.

    :param reader: a ``DataSourceStreamReader``.
    """

    def __init__(self, reader: Any) -> None:
        self._reader = reader

    def initial(self) -> Position:
        found: Position = self._reader.initialOffset()
        return found

    def check(self) -> None:
        self.initial()
        if not inspect.signature(self._reader.latestOffset).parameters:
            self._reader.latestOffset()

    def latest(self, start: Position, *, rows: int | None = None, bytes: int | None = None) -> Position:
        # Tell the signatures apart as Spark 4.2 does: older readers take neither a start nor limits.
        found: Position
        if inspect.signature(self._reader.latestOffset).parameters:
            found = self._reader.latestOffset(start, self._limit(rows, bytes))
        else:
            found = self._reader.latestOffset()
        return found

    def pieces(self, start: Position, end: Position) -> Sequence[Any]:
        return list(self._reader.partitions(start, end))

    def rows(self, piece: Any) -> Iterator[Any]:
        return iter(self._reader.read(piece))

    def commit(self, end: Position) -> None:
        self._reader.commit(end)

    def _limit(self, rows: int | None, bytes: int | None) -> Any:
        limits = _limits()
        ask = getattr(self._reader, "getDefaultReadLimit", None)
        own = limits.ReadAllAvailable() if ask is None else ask()
        kind = type(own).__name__
        if rows is not None and kind in ("ReadAllAvailable", "ReadMaxRows"):
            return limits.ReadMaxRows(min(rows, getattr(own, "max_rows", rows)))
        if bytes is not None and kind in ("ReadAllAvailable", "ReadMaxBytes"):
            return limits.ReadMaxBytes(min(bytes, getattr(own, "max_bytes", bytes)))
        return own


class SimpleReader(StreamReader):
    """Reads once to find the end of a range, and reads the range again when it is recorded: the batch gets the rows of
    the second reading, as a reading after a crash would.

    :param reader: a ``SimpleDataSourceStreamReader``.
    """

    def __init__(self, reader: Any) -> None:
        self._reader = reader

    def initial(self) -> Position:
        found: Position = self._reader.initialOffset()
        return found

    def latest(self, start: Position, *, rows: int | None = None, bytes: int | None = None) -> Position:
        found, end = self._reader.read(start)
        if end == start and next(iter(found), None) is not None:
            # As in Spark, an error: these rows would be read again and again.
            raise ValueError(f"read({start}) gave rows, and an end that is its start: it must lie behind the rows")
        position: Position = end
        return position

    def pieces(self, start: Position, end: Position) -> Sequence[Any]:
        return [(start, end)]

    def rows(self, piece: Any) -> Iterator[Any]:
        return iter(self._reader.readBetweenOffsets(*piece))

    def commit(self, end: Position) -> None:
        self._reader.commit(end)


@dataclass
class ReadAllAvailable:
    """The class of Spark 4.2, for readers that are written for it and run on an older Spark."""


@dataclass
class ReadMaxRows:
    """As :class:`ReadAllAvailable`."""

    max_rows: int


@dataclass
class ReadMaxBytes:
    """As :class:`ReadAllAvailable`."""

    max_bytes: int


def _limits() -> Any:
    """The module of the limits that the reader knows."""
    try:
        return importlib.import_module("pyspark.sql.streaming.datasource")
    except ModuleNotFoundError:  # before Spark 4.2
        return importlib.import_module(__name__)


def data_source(arguments: Mapping[str, Any]) -> Any:
    """The user's data source.

    :param arguments: ``source`` (``module:Class``) and ``options``.
    """
    from pyspark.sql.datasource import CaseInsensitiveDict

    module, _, name = arguments["source"].partition(":")
    return getattr(importlib.import_module(module), name)(options=CaseInsensitiveDict(arguments["options"]))


def open_reader(arguments: Mapping[str, Any], schema: Any = None) -> StreamReader:
    """The reader of the user's data source.

    :param arguments: as for :func:`data_source`, and ``schema`` (as DDL) if the user gave one.
    :param schema: the schema as Spark has it; None where no Spark runs.
    """
    from pyspark.errors import PySparkNotImplementedError

    source = data_source(arguments)
    known = _known(arguments.get("schema") or source.schema()) if schema is None else schema
    try:
        return PartitionedReader(source.streamReader(known))
    except PySparkNotImplementedError:
        return SimpleReader(source.simpleStreamReader(known))


def _known(schema: Any) -> Any:
    from pyspark.sql.types import StructType

    return StructType.fromJson(parse_columns(schema)) if isinstance(schema, str) else schema
