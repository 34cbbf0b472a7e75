"""Versions of each key, of changes that Spark has staged, as Spark finds them in the table."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from airflow_provider_microbatch.runtime.app import run_job
from airflow_provider_microbatch.sinks import OpenSink
from airflow_provider_microbatch.sinks.merge import Merge
from tests.runtime.jobs import EXPECTED, land, make_job

MERGE = Merge(keys=("id",), sequence_by=("at",), delete_when="op = 'D'", leave_out=("op",))
VERSIONED = replace(MERGE, leave_out=("op", "at"), scd_type=2)
SCHEMA = "id long, name string, at timestamp, op string"
CHANGES = [
    {"id": 1, "name": "Ada", "at": "2999-01-02T00:00:00Z", "op": "U"},
    {"id": 1, "name": "late", "at": "2026-01-01T00:00:00Z", "op": "U"},
    {"id": 2, "name": "Bob", "at": "2026-01-03T00:00:00Z", "op": "U"},
    {"id": 2, "name": None, "at": "2026-01-03T00:00:00.000001Z", "op": "D"},
]


def check_versions_of_now_and_of_then(spark: Any, sink: OpenSink, name: str, *, landing: Path) -> None:
    """:param sink: merges by :data:`VERSIONED`.
    :param name: the table, for SQL.
    :param landing: a folder for the changes.
    """
    run_job(spark, make_job(sink, None, [land(landing, CHANGES)], schema=SCHEMA))
    sink.publish(EXPECTED, 1)

    def names(when: str) -> list[str]:
        return [row.name for row in spark.sql(f"SELECT name FROM {name} WHERE {when} ORDER BY id").collect()]

    assert names("valid_to IS NULL") == ["Ada"]
    at = "TIMESTAMP'2026-01-03T00:00:00Z'"
    assert names(f"valid_from <= {at} AND (valid_to > {at} OR valid_to IS NULL)") == ["late", "Bob"]
