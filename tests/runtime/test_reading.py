"""All that a reader runs on an executor is told as a failure of the read, and names its source."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from airflow_provider_microbatch.runtime import channels, slot, slot_snapshot
from airflow_provider_microbatch.runtime.ranges import Piece, RangeReader
from airflow_provider_microbatch.runtime.reading import SourceReadError, read_failure, reading

FIRST = [pa.record_batch([[0]], names=["id"])]


def no_rows(arguments: Any, piece: Any, schema: Any) -> Iterator[Any]:
    yield (1,)
    raise OSError(f"{piece} of {arguments['where']} cannot be reached")


def of_channels() -> Iterator[Any]:
    return channels._read_groups({"name": "orders", "client": f"{__name__}:away"}, {}, iter(FIRST))


def of_a_slot() -> Iterator[Any]:
    asked = {"name": "orders", "columns": [], "table": "public.orders", "connection": {"port": "none"}}
    return slot._batches(asked, "", iter(()))


def of_a_snapshot() -> Iterator[Any]:
    asked = {"name": "orders", "columns": [], "copied": [], "folder": "/away", "files": [["0", 1]]}
    return slot_snapshot._batches(asked, iter(FIRST))


def of_a_range() -> Iterator[Any]:
    asked = {"rows": f"{__name__}:no_rows", "arguments": {"name": "orders", "where": "the API"}}
    return RangeReader(asked, StructType()).read(Piece(("page 2",)))


@pytest.mark.parametrize("read", [of_channels, of_a_slot, of_a_snapshot, of_a_range], ids=lambda one: one.__name__)
def test_whatever_a_reader_raises_is_a_failure_of_the_read(read: Callable[[], Iterator[Any]]) -> None:
    with pytest.raises(SourceReadError, match=r"^source 'orders': \w+: ") as failure:
        list(read())
    assert failure.value.__cause__ is not None


def test_a_source_is_named_once() -> None:
    with pytest.raises(SourceReadError, match=r"^ValueError: source 'orders', A: no rows$"), reading("orders"):
        raise ValueError("source 'orders', A: no rows")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("Traceback …\nx.runtime.reading.SourceReadError: source 'a': away\n\n\tat java", "source 'a': away"),
        ("Caused by: x\n  SourceReadError: source 'a': away", "source 'a': away"),
        ("ValueError: no SourceReadError: at all", None),
    ],
)
def test_it_is_found_where_a_traceback_ends(text: str, told: str | None) -> None:
    assert read_failure(text) == told
