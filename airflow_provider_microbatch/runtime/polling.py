"""What a user writes to have something of their own polled, and how Spark reads its ranges.

This half travels: where Spark runs, ``from airflow_provider_microbatch import PollingSource`` is the class below.
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
    """Base of a source that is polled: a frozen dataclass of the user's, whose fields are JSON values.

    Offsets are JSON values of any form: a number, a text, a list, an object with texts as keys. A range is what lies
    after ``start`` up to ``end``, and for ever the same rows: it is planned, recorded, and read then, again after a
    crash, and again by a replay. All but :meth:`read` and :meth:`partitions` is asked where Airflow runs; these two
    where Spark runs. None of it may change anything anywhere, except for :meth:`commit`.
    """

    schema: str
    """The columns that rows have, as Spark's DDL: ``"id long, name string"``. A field, a property or a constant."""

    travels: ClassVar[bool] = True
    """Whether the module, or the package that it is in, is sent to Spark with each batch; False if it is installed
    there."""

    def initial_offset(self) -> Any:
        """Where the first batch begins. Asked until that is planned, which it is at once, with or without data: what it
        answers then is recorded. None is "before anything"."""
        return None

    @abstractmethod
    def latest_offset(self, start: Any, limit: Any) -> Any:
        """Where the next range ends; ``start`` if there is nothing after it.

        :param start: where the range begins.
        :param limit: a :class:`~airflow_provider_microbatch.sources.ReadLimit`: ``limit.rows`` and ``limit.bytes`` are
            the most that the range should have, or None. To heed them is a kindness to whoever runs the pipeline; a
            range has at least one row, whatever they say.
        """

    @abstractmethod
    def read(self, start: Any, end: Any) -> Iterable[Mapping[str, Any] | Sequence[Any]]:
        """The rows after ``start`` up to ``end``: mappings by column (what the schema does not name is left out, and
        what a row does not have is null), or sequences in the schema's order."""

    def partitions(self, start: Any, end: Any) -> Sequence[tuple[Any, Any]] | None:
        """Ranges that make up the range, which Spark's executors read beside each other, each by :meth:`read`. None:
        Spark's driver reads the range as a whole. Executors need pyarrow."""
        return None

    def commit(self, end: Any) -> None:  # noqa: B027
        """What lies up to ``end`` is in the table. May be said twice, and said late."""

    def count(self, start: Any, end: Any) -> int | None:
        """How many rows lie in a range, if that is known without reading them. Lag and pace are told by it,
        and a read that gives fewer fails. Of :meth:`partitions` it is asked where Spark runs."""
        return None

    def is_after(self, offset: Any, other: Any) -> bool | None:
        """Whether ``offset`` lies after ``other``, neither of which is None; None if it cannot be told. By default
        numbers can be compared, and nothing else."""
        numbers = (int, float)
        if isinstance(offset, bool) or not isinstance(offset, numbers) or not isinstance(other, numbers):
            return None
        return offset > other

    def finished(self, position: Any) -> bool:
        """True if nothing will ever come after ``position``."""
        return False

    def check(self) -> None:
        """Raise if the source cannot be used at all. By default it is asked where it stands."""
        self.latest_offset(self.initial_offset(), NO_LIMIT)

    def requirements(self) -> Requirements:
        """What :meth:`read` needs where Spark runs: by default the module that the class is in, or its package."""
        return Requirements(modules=(type(self).__module__.partition(".")[0],) if self.travels else ())


class _NoLimit:
    """A limit that limits nothing; the runtime does not have the planner's."""

    rows = bytes = splits = None


NO_LIMIT = _NoLimit()


def read(spark: SparkSession, arguments: Mapping[str, Any]) -> ReadResult:
    """Read one range of a polled source.

    :param arguments: ``name``, ``source`` (``module:Class``), ``fields``, ``schema``, ``start`` and ``end``.
    :raises ValueError: naming the source, for rows or a schema that do not fit.
    """
    from pyspark.sql.types import StructType

    source = revived(arguments)
    start, end = arguments["start"], arguments["end"]
    schema = StructType.fromDDL(arguments["schema"])
    if not isinstance(schema, StructType):
        raise ValueError(f"source {arguments['name']!r}: schema {arguments['schema']!r} is not a list of columns.")
    told: dict[str, int] = {}
    pieces = None if start == end else source.partitions(start, end)
    if pieces is None:
        found = [] if start == end else [*in_columns(source.read(start, end), schema, name=arguments["name"])]
        frame = spark.createDataFrame(found, schema)
        told = {"rows": len(found)}
    else:
        from airflow_provider_microbatch.runtime.ranges import frame_of

        asked = {**arguments, "partitions": [list(piece) for piece in pieces]}
        frame = frame_of(spark, f"{__name__}:pieces_of", f"{__name__}:rows_of", arguments=asked, schema=schema)
    return ReadResult(frame=frame, columns=tuple(schema.fieldNames()), told=told)


def revived(arguments: Mapping[str, Any]) -> PollingSource:
    """The user's source, as it was when the range was planned."""
    module, _, name = arguments["source"].partition(":")
    made: PollingSource = getattr(importlib.import_module(module), name)(**arguments["fields"])
    return made


def pieces_of(arguments: Mapping[str, Any], schema: Any) -> list[Any]:
    """The partitions of a range, for Spark."""
    return list(arguments["partitions"])


def rows_of(arguments: Mapping[str, Any], piece: Any, schema: Any) -> Iterator[tuple[Any, ...]]:
    """The rows of one of them. Runs on an executor."""
    source, read = revived(arguments), 0
    for row in in_columns(source.read(*piece), schema, name=arguments["name"]):
        yield row
        read += 1
    rows = source.count(*piece)
    if rows is not None and read < rows:
        raise ValueError(f"source {arguments['name']!r}: {short(type(source).__name__, read, rows, *piece)}")


def short(who: str, read: int, rows: int, start: Any, end: Any) -> str:
    """What is wrong with a read that gave fewer rows than the range has, for people."""
    return (
        f"{who}.read({start}, {end}) gave {read:,} rows, and count says {rows:,}. Where the API answers in pages, read "
        "all of them; where the count is none of rows, return None."
    )
