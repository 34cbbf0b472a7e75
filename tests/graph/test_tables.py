"""A job of many tables: which of them have their turn."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from airflow_provider_microbatch import FileSink, FileSource, Pipeline
from airflow_provider_microbatch.exceptions import DefinitionError, SourceError
from airflow_provider_microbatch.execution.fire import FireDecision
from airflow_provider_microbatch.graph.tables import TableJob, due, folders_of
from tests.execution.world import World
from tests.graph.test_upkeep_of_jobs import failing


def job_of(tables: object, **more: object) -> TableJob:
    return TableJob(
        "shop",
        checkpoint="/data/checkpoints/shop",
        tables=tables,  # type: ignore[arg-type]
        source=lambda table: FileSource(f"/data/landing/{table}", schema="id long"),
        sink=lambda table: FileSink(f"/data/lake/{table}"),
        **more,  # type: ignore[arg-type]
    )


def test_each_table_is_a_pipeline_of_its_own() -> None:
    job = job_of(["users", "orders"], transform="jobs/clean.py:clean", on_failure="set_aside")
    assert job.tables() == ["orders", "users"]
    assert job.pipeline("orders") == Pipeline(
        "shop.orders",
        checkpoint="/data/checkpoints/shop/orders",
        sources={"orders": FileSource("/data/landing/orders", schema="id long")},
        sink=FileSink("/data/lake/orders"),
        transform="jobs/clean.py:clean",
        on_failure="set_aside",
    )


def test_a_name_that_can_be_no_folder_is_said_and_not_passed_over() -> None:
    with pytest.raises(DefinitionError, match=r"table name '\.\./orders' cannot be used"):
        job_of(["../orders"])
    with pytest.raises(DefinitionError, match=r"table name '\.\./orders' cannot be used"):
        job_of(lambda: ["../orders"]).pipeline("../orders")


def test_the_folders_of_a_landing_folder_are_its_tables(tmp_path: Path) -> None:
    for name in ("orders", "users", "_staging", ".hidden"):
        (tmp_path / name).mkdir()
    (tmp_path / "file").touch()
    assert job_of(folders_of(str(tmp_path))).tables() == ["orders", "users"]
    with pytest.raises(DefinitionError, match="there is no folder"):
        job_of(folders_of(str(tmp_path / "nowhere"))).tables()


def test_the_one_that_has_been_without_a_batch_for_longest_has_its_turn_first(tmp_path: Path) -> None:
    worlds = {name: World(tmp_path / name) for name in ("new", "old", "older", "idle", "failed", "away")}
    now = time.time()
    for name, age in (("old", 100), ("older", 200), ("idle", 300)):
        worlds[name].land(1)
        worlds[name].run(0)
        commit = Path(worlds[name].pipeline.checkpoint) / "commits" / "0"
        os.utime(commit, (now - age, now - age))
    worlds["failed"].land(1)
    failing(worlds["failed"])

    def ask(pipeline: Pipeline, searched_ms: int | None) -> FireDecision:
        if pipeline == worlds["away"].pipeline:
            raise SourceError("the landing folder is away")
        return FireDecision(fire=pipeline != worlds["idle"].pipeline, reason="asked")

    pairs = [(world.pipeline, world.checkpoint) for world in worlds.values()]

    def names(at_most: int) -> list[str]:
        found = due(pairs, ask=ask, at_most=at_most, retry_seconds=60)
        return [Path(pipeline.checkpoint).parent.name for pipeline in found]

    assert names(2) == ["new", "older", "away"], "who cannot be asked takes nobody's turn"
    assert names(9) == ["new", "older", "old", "failed", "away"]
