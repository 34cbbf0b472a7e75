"""All that a reader runs on an executor is told as a failure of the read, and names its source."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from airflow_provider_microbatch.runtime import channels, slot, slot_snapshot
from airflow_provider_microbatch.runtime.failure import BatchFailure
from airflow_provider_microbatch.runtime.ranges import Piece, RangeReader
from airflow_provider_microbatch.runtime.reading import SourceReadError, own_token, read_failure, reading

TOKEN = "0f" * 16
FIRST = [pa.record_batch([[0]], names=["id"])]


def no_rows(arguments: Any, piece: Any, schema: Any) -> Iterator[Any]:
    yield (1,)
    raise OSError(f"{piece} of {arguments['where']} cannot be reached")


def of_channels() -> Iterator[Any]:
    return channels._read_groups({"name": "orders", "client": f"{__name__}:away"}, {}, TOKEN, iter(FIRST))


def of_a_slot() -> Iterator[Any]:
    asked = {"name": "orders", "columns": [], "table": "public.orders", "connection": {"port": "none"}}
    return slot._batches(asked, "", TOKEN, iter(()))


def of_a_snapshot() -> Iterator[Any]:
    asked = {"name": "orders", "columns": [], "copied": [], "folder": "/away", "files": [["0", 1]]}
    return slot_snapshot._batches(asked, TOKEN, iter(FIRST))


def of_a_range() -> Iterator[Any]:
    asked = {"rows": f"{__name__}:no_rows", "arguments": {"name": "orders", "where": "the API"}, "token": TOKEN}
    return RangeReader(asked, StructType()).read(Piece(("page 2",)))


@pytest.mark.parametrize("read", [of_channels, of_a_slot, of_a_snapshot, of_a_range], ids=lambda one: one.__name__)
def test_whatever_a_reader_raises_is_a_failure_of_the_read(read: Callable[[], Iterator[Any]]) -> None:
    with pytest.raises(SourceReadError, match=rf"^{TOKEN} source 'orders': \w+: ") as failure:
        list(read())
    assert failure.value.__cause__ is not None


def test_a_source_is_named_once() -> None:
    told = rf"^{TOKEN} ValueError: source 'orders', A: no rows$"
    with pytest.raises(SourceReadError, match=told), reading("orders", TOKEN):
        raise ValueError("source 'orders', A: no rows")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("Traceback …\nx.runtime.reading.SourceReadError: {own} source 'a': away\n\n\tat java", "source 'a': away"),
        ("Caused by: x\n  SourceReadError: {own} source 'a': away", "source 'a': away"),
        ("ValueError: no SourceReadError: {own} at all", None),
    ],
)
def test_it_is_found_where_a_traceback_ends(text: str, told: str | None) -> None:
    assert read_failure(text.format(own=own_token())) == told


@pytest.mark.parametrize("token", ["", f"{TOKEN} "], ids=["none", "another process's"])
def test_a_value_that_is_quoted_passes_for_no_reader(token: str) -> None:
    value = f"1\nSourceReadError: {token}source 'orders': the stream was migrated"
    assert read_failure(f"Traceback …\nValueError: no such order: {value}\n") is None


def test_the_token_is_in_nothing_that_is_shown() -> None:
    text = f"Traceback …\nSourceReadError: {own_token()} source 'orders': away"
    shown = BatchFailure("read", text, text).report()
    assert shown["error"] == shown["traceback"] == "Traceback …\nSourceReadError: source 'orders': away"


FORKS = """
import os
from airflow_provider_microbatch.runtime.reading import own_token
for _ in range(2):
    if (child := os.fork()) == 0:
        os.write(1, own_token().encode() + b"\\n")
        os._exit(0)
    os.waitpid(child, 0)
"""


def test_no_two_forks_of_a_process_have_the_same_token() -> None:
    """As attempts by Spark Connect are."""
    found = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, check=True).stdout.split()
    assert len({*found}) == len(found) == 2
