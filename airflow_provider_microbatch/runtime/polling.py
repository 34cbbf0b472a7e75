"""Defines the base class for a user's own polled source, and reads its ranges in Spark.

This module travels: where Spark runs, ``from airflow_provider_microbatch import PollingSource`` is the class below.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_provider_microbatch.runtime.files import ReadResult
from airflow_provider_microbatch.runtime.job import Requirements
from airflow_provider_microbatch.runtime.rows import in_columns

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class PollingSource(ABC):
    """Base of a source that is polled: the user's subclass is a frozen dataclass whose fields are JSON values.

    Offsets are JSON values of any form: a number, a text, a list, an object with texts as keys. A range is everything
    after ``start`` up to ``end``, and must hold the same rows for ever: a range is planned, recorded, and read then,
    again after a crash, and again by a replay. :meth:`read` and :meth:`partitions` are called where Spark runs, all
    other methods where Airflow runs. No method may change anything anywhere, except :meth:`commit`.
    """

    schema: str
    """The columns of the rows, as Spark's DDL: ``"id long, name string"``. A field, a property or a constant."""

    travels: ClassVar[bool] = True
    """Whether the class's module, or the package that contains it, is sent to Spark with each batch; False if it is
    installed there."""

    def initial_offset(self) -> Any:
        """The offset at which the first batch begins. Called until the first batch is planned, which happens at once,
        with or without data; the offset is recorded then. None means "before anything"."""
        return None

    @abstractmethod
    def latest_offset(self, start: Any, limit: Any) -> Any:
        """The end of the next range; ``start`` if there is nothing after it.

        :param start: where the range begins.
        :param limit: a :class:`~airflow_provider_microbatch.sources.ReadLimit`: ``limit.rows`` and ``limit.bytes`` are
            the most that the range should have, or None. Heeding them is optional and a kindness to the user of the
            pipeline; a range has at least one row, whatever the limits.
        """

    @abstractmethod
    def read(self, start: Any, end: Any) -> Iterable[Mapping[str, Any] | Sequence[Any]]:
        """The rows after ``start`` up to ``end``: mappings by column (keys that the schema does not name are left out,
        and columns that a row lacks are null), or sequences in the schema's order."""

    def partitions(self, start: Any, end: Any) -> Sequence[tuple[Any, Any]] | None:
        """Ranges that make up the range, which Spark's executors read in parallel, each by :meth:`read`. None: Spark's
        driver reads the range as a whole. Executors need pyarrow."""
        return None

    def commit(self, end: Any) -> None:  # noqa: B027
        """Called when the rows up to ``end`` are in the table. May be called twice, and late."""

    def count(self, start: Any, end: Any) -> int | None:
        """The number of rows in a range, if it is known without reading them. Lag and pace are computed from it, a read
        that gives fewer rows fails, and so do :meth:`partitions` that have another number together. For their ranges it
        is called where Spark runs."""
        return None

    def is_after(self, offset: Any, other: Any) -> bool | None:
        """Whether ``offset`` lies after ``other``, neither of which is None; None if the order is unknown. By default
        only numbers can be compared."""
        numbers = (int, float)
        if isinstance(offset, bool) or not isinstance(offset, numbers) or not isinstance(other, numbers):
            return None
        return offset > other

    def finished(self, position: Any) -> bool:
        """True if nothing will ever come after ``position``."""
        return False

    def check(self) -> None:
        """Raise if the source cannot be used at all. By default, call :meth:`latest_offset` from the initial offset."""
        self.latest_offset(self.initial_offset(), NO_LIMIT)

    def requirements(self) -> Requirements:
        """The requirements of :meth:`read` where Spark runs: by default the module of the class, or its package."""
        return Requirements(modules=(type(self).__module__.partition(".")[0],) if self.travels else ())


class _NoLimit:
    """A limit without bounds; the planner's ``ReadLimit`` does not travel with the runtime."""

    rows = bytes = splits = None


NO_LIMIT = _NoLimit()


def read(spark: SparkSession, arguments: Mapping[str, Any]) -> ReadResult:
    """Read one range of a polled source.

    :param arguments: ``name``, ``source`` (``module:Class``), ``fields``, ``schema``, ``start`` and ``end``.
    :raises ValueError: naming the source, if rows or schema do not fit.
    """
    from pyspark.sql.types import StructType

    source = revived(arguments)
    start, end = arguments["start"], arguments["end"]
    schema = StructType.fromDDL(arguments["schema"])
    if not isinstance(schema, StructType):
        raise ValueError(f"source {arguments['name']!r}: schema {arguments['schema']!r} is not a list of columns.")
    told: dict[str, int] = {}
    parts = None if start == end else source.partitions(start, end)
    pieces = None if parts is None else [list(piece) for piece in parts]
    if pieces is None:
        found = [] if start == end else [*in_columns(source.read(start, end), schema, name=arguments["name"])]
        frame = spark.createDataFrame(found, schema)
        told = {"rows": len(found)}
    else:
        from airflow_provider_microbatch.runtime.ranges import frame_of

        check_parts(source, start, end, pieces, name=arguments["name"])
        asked = {**arguments, "partitions": pieces}
        frame = frame_of(spark, f"{__name__}:pieces_of", f"{__name__}:rows_of", arguments=asked, schema=schema)
    return ReadResult(frame=frame, columns=tuple(schema.fieldNames()), told=told)


def revived(arguments: Mapping[str, Any]) -> PollingSource:
    """The user's source, as it was when the range was planned."""
    module, _, name = arguments["source"].partition(":")
    made: PollingSource = getattr(importlib.import_module(module), name)(**arguments["fields"])
    return made


def counted(source: PollingSource, start: Any, end: Any) -> int | None:
    """What the source says that a range has of rows; None if it does not say.

    :raises ValueError: if the answer is no number of rows: nobody could read a commit entry that has it.
    """
    rows: Any = source.count(start, end)
    if isinstance(rows, float) and rows.is_integer():
        rows = int(rows)
    if rows is None or (isinstance(rows, int) and not isinstance(rows, bool) and rows >= 0):
        return rows
    raise ValueError(
        f"{type(source).__name__}.count({start}, {end}) is {rows!r:.100}, which is no number of rows. Return a whole "
        "number, 0 or more, or None if nobody knows."
    )


def check_parts(source: PollingSource, start: Any, end: Any, pieces: Sequence[Sequence[Any]], *, name: str) -> None:
    """Check that the partitions of a range have as many rows together as it has: each is held against its own number
    alone where it is read. Not where nobody knows one of the numbers.

    :raises ValueError: if they have more or fewer.
    """
    rows = counted(source, start, end)
    parts = [] if rows is None else [counted(source, *piece) for piece in pieces]
    together = sum(part for part in parts if part is not None)
    if rows is not None and None not in parts and together != rows:
        raise ValueError(
            f"source {name!r}: {type(source).__name__}.partitions({start}, {end}) gave {len(parts)} ranges of "
            f"{together:,} rows together, and count says {rows:,}. Each row of the range has to be in one of them."
        )


def pieces_of(arguments: Mapping[str, Any], schema: Any) -> list[Any]:
    """The partitions of a range, for Spark."""
    return list(arguments["partitions"])


def rows_of(arguments: Mapping[str, Any], piece: Any, schema: Any) -> Iterator[tuple[Any, ...]]:
    """The rows of one partition. Runs on an executor."""
    source, read = revived(arguments), 0
    for row in in_columns(source.read(*piece), schema, name=arguments["name"]):
        yield row
        read += 1
    rows = counted(source, *piece)
    if rows is not None and read < rows:
        raise ValueError(f"source {arguments['name']!r}: {short(type(source).__name__, read, rows, *piece)}")


def short(who: str, read: int, rows: int, start: Any, end: Any) -> str:
    """The error text for a read that gave fewer rows than the range has."""
    return (
        f"{who}.read({start}, {end}) gave {read:,} rows, and count says {rows:,}. Where the API answers in pages, read "
        "all of them; where the count is none of rows, return None."
    )
