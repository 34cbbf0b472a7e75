"""Reads a planned range by partitions that Python functions read on executors, as a batch data source of Spark's, which
Spark Connect has too. Executors need pyarrow, as for every Python data source."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from airflow_provider_microbatch.runtime.reading import own_token, reading

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_RANGE = "range"


class RangeSource(DataSource):
    """The range that the only option describes as JSON: which functions are called, and with which arguments."""

    @classmethod
    def name(cls) -> str:
        return "microbatch_range"

    def schema(self) -> StructType:
        return StructType.fromJson(self._range["schema"])

    def reader(self, schema: StructType) -> DataSourceReader:
        return RangeReader(self._range, schema)

    @property
    def _range(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.options[_RANGE])
        return found


class Piece(InputPartition):
    """One partition.

    :param value: the partition as the range's functions know it; anything that can be pickled.
    """

    def __init__(self, value: Any) -> None:
        super().__init__(value)


class RangeReader(DataSourceReader):
    """Computes the partitions once, and reads the rows of each partition where Spark runs it.

    :param range: ``pieces`` and ``rows`` (``module:function``), ``arguments`` for both, and the driver's ``token``.
    """

    def __init__(self, range: Mapping[str, Any], schema: StructType) -> None:
        self._range = range
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        pieces = _loaded(self._range["pieces"])(self._range["arguments"], self._schema)
        # Without any partition, Spark would make one by itself, and read it.
        return [Piece((piece,)) for piece in pieces] or [Piece(None)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if partition.value is not None:
            with reading(self._range["arguments"]["name"], self._range["token"]):
                yield from _loaded(self._range["rows"])(self._range["arguments"], partition.value[0], self._schema)


def frame_of(
    spark: SparkSession, pieces: str, rows: str, *, arguments: Mapping[str, Any], schema: StructType
) -> DataFrame:
    """The rows of a range.

    :param pieces: ``module:function``, called with the arguments and the schema; returns the partitions.
    :param rows: ``module:function``, called with the arguments, a partition and the schema; returns an iterator over
        rows.
    :param arguments: JSON values.
    :param schema: schema of the rows.
    """
    spark.dataSource.register(RangeSource)
    range = {"pieces": pieces, "rows": rows, "arguments": dict(arguments), "schema": schema.jsonValue()}
    option = json.dumps({**range, "token": own_token()})
    return spark.read.format(RangeSource.name()).option(_RANGE, option).load()


def _loaded(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)
