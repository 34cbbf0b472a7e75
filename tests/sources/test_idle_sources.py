"""Idle sources where each batch replaces the table: a batch that is there only for a position would empty it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from acme_microbatch.counter import CounterSource
from deltalake import DeltaTable

from airflow_provider_microbatch import PathCatalog, TableSink
from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.execution.opened_sources import OpenedSources
from airflow_provider_microbatch.execution.plan import Planner
from airflow_provider_microbatch.pipeline import Pipeline
from airflow_provider_microbatch.sources import Source
from airflow_provider_microbatch.sources.delta import DeltaSource
from airflow_provider_microbatch.sources.file import FileSource
from airflow_provider_microbatch.sources.file.appending import Appender
from airflow_provider_microbatch.stores.location import open_store
from tests.sources.delta_world import World


def sources_of(tmp_path: Path, mode: str, **tables: World) -> OpenedSources:
    """As a plan of tomorrow asks them, of a pipeline whose sink writes so."""
    return opened(tmp_path, mode, {name: DeltaSource(str(table.root)) for name, table in tables.items()})


def opened(tmp_path: Path, mode: str, sources: dict[str, Source]) -> OpenedSources:
    pipeline = Pipeline(
        "orders",
        sources=sources,
        sink=TableSink(PathCatalog(str(tmp_path / "lake")), "orders", mode=mode),
        transform="jobs/orders.py:transform",
        checkpoint=str(tmp_path / "checkpoint"),
    )
    checkpoint = Checkpoint(open_store(pipeline.checkpoint), sources=list(sources))
    tomorrow_ms = time.time_ns() // 1_000_000 + 24 * 3_600_000
    return Planner(
        pipeline=pipeline, checkpoint=checkpoint, lane=checkpoint.lane("live"), clock_ms=lambda: tomorrow_ms
    ).sources


@pytest.mark.parametrize("mode", ["create_or_replace", "append"])
def test_no_batch_without_rows_takes_the_place_of_a_tables_rows(tmp_path: Path, mode: str) -> None:
    world = World(tmp_path)
    world.orders.append()
    world.plan()
    world.orders.table.optimize.compact()
    DeltaTable(world.root.as_uri()).alter.set_table_properties({"delta.logRetentionDuration": "interval 1 days"})
    sources = sources_of(tmp_path, mode, orders=world)
    is_followed = mode == "append"
    assert sources.with_new({"orders": world.position}) == (["orders"] if is_followed else [])
    assert sources.next_ranges({"orders": world.position}, {}).are_empty is not is_followed
    world.orders.append()
    assert sources.with_new({"orders": world.position}) == ["orders"]


def test_where_each_batch_replaces_the_table_an_idle_source_moves_with_the_batches_of_a_busy_one(
    tmp_path: Path,
) -> None:
    """Else its history would expire, and the pipeline stand still, though it has had a batch every hour."""
    idle, busy = World(tmp_path / "idle"), World(tmp_path / "busy")
    for table in (idle, busy):
        table.orders.append()
        table.plan()
    for _ in range(3):
        idle.orders.table.optimize.compact()
        DeltaTable(idle.root.as_uri()).alter.set_table_properties({"delta.logRetentionDuration": "interval 1 days"})
    sources = sources_of(tmp_path, "create_or_replace", idle=idle, busy=busy)
    committed = {"idle": idle.position, "busy": busy.position}
    assert sources.with_new(committed) == []
    assert sources.next_ranges(committed, {}).are_empty
    busy.orders.append()
    assert sources.with_new(committed) == ["busy"]
    ranges = sources.next_ranges(committed, {})
    assert {name: found.get("files", 0) for name, found in sources.describe(ranges).items()} == {"idle": 0, "busy": 1}
    idle.orders.append()
    idle.orders.clean_log(idle.orders.table.version())
    assert sources.with_new(ranges.ends) == ["idle"]
    assert sources.describe(sources.next_ranges(ranges.ends, {}))["idle"]["files"] == 1


@pytest.mark.parametrize("mode", ["create_or_replace", "append"])
def test_an_idle_folder_beside_a_busy_source_is_listed_once_a_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """A listing of a bucket takes long, and is paid for; no folder has a position to move without files."""
    counter, folder = tmp_path / "count", tmp_path / "landing"
    folder.mkdir()
    folder.joinpath("a.json").write_text('{"id": 1}')
    counter.write_text("1")
    files = FileSource(str(folder), format="json", schema="id long")
    sources = opened(tmp_path, mode, {"numbers": CounterSource(str(counter)), "files": files})
    committed = sources.next_ranges({}, {}).ends
    listings: list[str] = []
    append = Appender.append
    monkeypatch.setattr(Appender, "append", lambda *arguments: (listings.append("files"), append(*arguments))[1])
    counter.write_text("2")
    ranges = sources.next_ranges(committed, {})
    assert (ranges.ends["numbers"] != committed["numbers"], ranges.ends["files"] == committed["files"]) == (True, True)
    assert listings == ["files"]
