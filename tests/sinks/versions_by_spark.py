"""Changes that Spark has staged, and what the table has of them: versions of each key, as Spark finds them, and nothing
of what was to be forgotten."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.runtime.app import run_job
from airflow_provider_microbatch.runtime.checks import Checks, Forgotten
from airflow_provider_microbatch.sinks import OpenSink
from airflow_provider_microbatch.sinks.merge import Merge
from tests.runtime.jobs import EXPECTED, land, make_job
from tests.sinks.stages import batch_of, expect

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


def check_nothing_forgotten_comes_back(
    spark: Any, sink: OpenSink, rows: Callable[[], Iterable[tuple[str, Any]]], *, landing: Path
) -> None:
    """Check that of a key that is to be forgotten no state comes back, whichever of its batches are made again.

    :param rows: finds the names in the table, with where their versions end; None for rows of now.
    :param landing: a folder for the changes.
    """
    batches = [
        [(1, "Ada", 1, "U"), (2, "Bob", 1, "U")],
        [(1, "Ada L.", 2, "U"), (3, "Cy", 2, "U"), (3, None, 3, "D")],
        [(1, "Ada L.", 4, "D"), (2, "Bob", 4, "D"), (4, "Di", 4, "U")],
    ]

    def put(number: int, *, epoch: int, checks: Checks | None = None) -> tuple[list[str], list[str]]:
        key = BatchKey("live", number)
        rows = [
            {"id": id, "name": name, "at": f"2026-01-0{day}T00:00:00Z", "op": op}
            for id, name, day, op in batches[number]
        ]
        job = make_job(
            sink,
            None,
            [land(landing / f"{number}-{epoch}", rows)],
            schema=SCHEMA,
            epoch=epoch,
            batch_id=number,
            stages=sink.stages_by_name(batch_of(key), epoch),
            identity=batch_of(key).to_dict(),
            checks=checks,
        )
        run_job(spark, job)
        if epoch == 1:
            sink.publish(expect(key), epoch)
        else:
            sink.replace(expect(key), epoch)
        return names()

    def names() -> tuple[list[str], list[str]]:
        found = sorted(rows(), key=lambda row: row[0])
        return [name for name, end in found if end is None], [name for name, end in found if end is not None]

    def closed(*names: str) -> list[str]:
        return list(names) if sink.definition.merge.bounds else []  # type: ignore[attr-defined]

    assert put(0, epoch=1) == (["Ada", "Bob"], [])
    assert put(1, epoch=1) == (["Ada L.", "Bob"], closed("Ada", "Cy"))
    forgets = Checks(forgotten=(Forgotten(condition="id = 1", number=0, mark="0-x"),))
    # The deletion, which is to be forgotten itself, deletes; and batch 1, made again, gives way to no older state.
    assert put(2, epoch=1, checks=forgets) == (["Di"], closed("Ada", "Ada L.", "Bob", "Cy"))
    assert put(1, epoch=2, checks=forgets) == (["Di"], closed("Ada", "Bob", "Cy"))
    assert put(2, epoch=2, checks=forgets) == (["Di"], closed("Ada", "Bob", "Cy"))
    assert put(0, epoch=2, checks=forgets) == (["Di"], closed("Bob", "Cy"))
    sink.withdraw(expect(BatchKey("live", 2)), 2)
    assert names() == (["Bob"], closed("Cy"))
