"""Rows go to Spark in batches that neither a list of Arrow's nor a worker's memory is too small for."""

from __future__ import annotations

import pytest

from airflow_provider_microbatch.runtime import slot
from airflow_provider_microbatch.runtime.slot import in_batches

COLUMNS = [("id", "long"), ("note", "string"), ("more", "binary")]


def test_a_batch_ends_where_its_values_have_become_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot, "_BYTES_AT_ONCE", 1000)
    rows = [(1, "x" * 600, None), (2, "x", b"x" * 500), (3, None, b"x" * 5000), (4, "x", None)]
    found = list(in_batches(iter(rows), COLUMNS))
    assert [batch.num_rows for batch in found] == [2, 1, 1]
    assert [tuple(row.values()) for batch in found for row in batch.to_pylist()] == rows


def test_a_batch_of_small_values_ends_at_a_number_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot, "_AT_ONCE", 2)
    found = in_batches(((number, None, None) for number in range(5)), COLUMNS)
    assert [batch.column(0).to_pylist() for batch in found] == [[0, 1], [2, 3], [4]]
