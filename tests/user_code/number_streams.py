"""Data sources of a user's, as PySpark's documentation has them written: numbers up to the one that a file holds."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamReader,
    InputPartition,
    SimpleDataSourceStreamReader,
)


class Numbers(DataSource):
    """Its stream reader has the signature that Spark 4.0 and 4.1 know."""

    @classmethod
    def name(cls) -> str:
        return "numbers"

    def schema(self) -> str:
        return "id long, note string"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return NumbersReader(Path(self.options["path"]), schema.fieldNames())


class Span(InputPartition):
    """A part of a range, of a class of the user's own."""

    def __init__(self, start: int, end: int) -> None:
        self.start = start
        self.end = end


class NumbersReader(DataSourceStreamReader):
    """:param columns: those of the schema, which the reader is given as Spark has it."""

    def __init__(self, path: Path, columns: list[str]) -> None:
        self.path = path
        self.columns = columns

    def head(self) -> int:
        return int(self.path.read_text())

    def initialOffset(self) -> dict[str, Any]:
        self.path.stat()  # as one that asks a server
        return {"n": 0}

    def latestOffset(self) -> dict[str, Any]:
        print("to the standard output")
        return {"n": self.head()}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        middle = (start["n"] + end["n"]) // 2
        return [Span(start["n"], middle), Span(middle, end["n"])]

    def read(self, partition: Any) -> Iterator[tuple[Any, ...]]:
        assert self.columns == ["id", "note"]
        for number in range(partition.start + 1, partition.end + 1):
            yield (number, f"n{number}")

    def commit(self, end: dict[str, Any]) -> None:
        self.path.with_suffix(".committed").write_text(str(end["n"]))


class LostAnswers(Numbers):
    """As long as the file says so it hears nothing from its server, and has no timeout."""

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return LostAnswersReader(Path(self.options["path"]), schema.fieldNames())


class LostAnswersReader(NumbersReader):
    def head(self) -> int:
        text = self.path.read_text()
        if text == "lost":
            time.sleep(60)  # far longer than a test waits
        return int(text)


class LimitedNumbers(Numbers):
    """Likewise, with the signature of Spark 4.2: it is told where it is, and how much it may give."""

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return LimitedReader(Path(self.options["path"]), schema.fieldNames())


class LimitedReader(NumbersReader):
    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:  # type: ignore[override,unused-ignore]
        most = getattr(limit, "max_rows", None)
        head = self.head()
        return {"n": head if most is None else min(head, start["n"] + most)}


class SimpleNumbers(Numbers):
    """It has the simple reader alone."""

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return super(Numbers, self).streamReader(schema)

    def simpleStreamReader(self, schema: Any) -> SimpleDataSourceStreamReader:
        return SimpleNumbersReader(Path(self.options["path"]))


class SimpleNumbersReader(SimpleDataSourceStreamReader):
    """At most two a read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def initialOffset(self) -> dict[str, Any]:
        self.path.stat()  # as one that asks a server
        return {"n": 0}

    def read(self, start: dict[str, Any]) -> tuple[Iterator[tuple[Any, ...]], dict[str, Any]]:
        end = {"n": min(int(self.path.read_text()), start["n"] + 2)}
        return self.readBetweenOffsets(start, end), end

    def readBetweenOffsets(self, start: dict[str, Any], end: dict[str, Any]) -> Iterator[tuple[Any, ...]]:
        return iter([(number, f"n{number}") for number in range(start["n"] + 1, end["n"] + 1)])

    def commit(self, end: dict[str, Any]) -> None:
        self.path.with_suffix(".committed").write_text(str(end["n"]))


class ShortNumbers(SimpleNumbers):
    """Keeps only what is behind 2."""

    def simpleStreamReader(self, schema: Any) -> SimpleDataSourceStreamReader:
        return ShortReader(Path(self.options["path"]))


class ShortReader(SimpleNumbersReader):
    def read(self, start: dict[str, Any]) -> tuple[Iterator[tuple[Any, ...]], dict[str, Any]]:
        if start["n"] < 2:
            raise ValueError("410 Gone")
        return super().read(start)


class CountsItsCalls(Numbers):
    """As the example of PySpark's documentation: how often it was asked is where it stands."""

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return CountingReader(Path(self.options["path"]), schema.fieldNames())


class CountingReader(NumbersReader):
    current = 0

    def latestOffset(self) -> dict[str, Any]:
        self.current += 2
        return {"n": self.current}
