"""The change feed of a Delta table as a source: of which versions it tells, and what becomes of the others. Rows are
read in test_delta_source_spark.py."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import SourceChangedError, SourceError
from airflow_provider_microbatch.sources.delta.table import Snapshot, snapshot_of
from tests.sinks.delta_stages import write_delta_stage
from tests.sinks.delta_world import opened, publish
from tests.sinks.stages import batch_of, expect
from tests.sources.delta_world import World, place


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_an_upstream_replay_is_in_the_change_feed(tmp_path: Path) -> None:
    world = World(tmp_path, made=False)
    sink = opened(world.root)
    publish(sink, 6)
    DeltaTable(world.root.as_uri()).alter.set_table_properties({"delta.enableChangeDataFeed": "true"})
    fed = {"change_feed": True}
    world.plan(**fed)
    write_delta_stage(sink, 2, batch=batch_of(BatchKey("live", 6)), rows=5)
    sink.replace(expect(BatchKey("live", 6)), 2)
    ends = world.plan(**fed)
    assert world.open(**fed).read(*ends).arguments["changes"] == [[2, 2]]
    assert world.open(**fed).describe(*ends).splits == 2, "a file that went, and one that came"


def test_a_change_feed_does_not_begin_within_a_version_that_is_read_by_files(tmp_path: Path) -> None:
    world = World(tmp_path, made=False)
    rows = pa.table({"day": ["1", "2", "3"], "id": [1, 2, 3]})
    feed = {"delta.enableChangeDataFeed": "true"}
    write_deltalake(world.root, rows, partition_by=["day"], configuration=feed)
    world.plan(start=0, max_files=1)
    assert place(world.position) == (0, 0, False)
    with pytest.raises(SourceChangedError, match=r"version 0 .* is read in part"):
        world.plan(change_feed=True)
    while place(world.position) != (1, -1, False):
        world.plan(max_files=1)
    write_deltalake(world.root, rows, mode="append")
    assert world.open(change_feed=True).describe(*world.plan(change_feed=True)).rows == 3


def test_a_table_without_a_change_feed_is_refused_by_name(world: World) -> None:
    with pytest.raises(SourceError, match=r"no change feed: ALTER TABLE"):
        world.open(change_feed=True).check()


def turn_feed(world: World, value: str) -> None:
    world.orders.table.alter.set_table_properties({"delta.enableChangeDataFeed": value})


def test_rows_of_while_the_change_feed_was_off_are_named_with_ways_that_lead_on(tmp_path: Path) -> None:
    """Delta refuses to read such versions: no batch may have one of them."""
    world = World(tmp_path, change_feed=True)
    world.orders.append()
    world.plan(change_feed=True)
    start = world.position
    turn_feed(world, "false")
    world.orders.append()
    world.orders.append()
    turn_feed(world, "true")
    world.orders.append()
    with pytest.raises(SourceChangedError, match=r"version 3 .* feed was off, as it was up to version 4") as told:
        world.plan(change_feed=True)
    assert "skip_versions=[3, 4] passes over them" in str(told.value)
    with pytest.raises(SourceChangedError, match=r"version 4 .*skip_versions=\[3, 4\]"):
        world.plan(change_feed=True, skip_versions=[3])
    skipping = {"change_feed": True, "skip_versions": [3, 4]}
    ends = world.plan(**skipping)
    assert world.open(**skipping).read(*ends).arguments["changes"] == [[6, 6]]
    (behind,) = re.findall(r"--source orders --offset '([^']*)' --allow-skip`", str(told.value))
    world.position = behind
    assert world.open(change_feed=True).read(*world.plan(change_feed=True)).arguments["changes"] == [[6, 6]]
    world.position = start
    assert world.open().describe(*world.plan()).rows == 2, "by files, up to where the feed is on again"
    assert world.open(change_feed=True).read(*world.plan(change_feed=True)).arguments["changes"] == [[6, 6]]


def test_a_change_feed_that_was_off_while_nothing_came_goes_on(tmp_path: Path) -> None:
    world = World(tmp_path, change_feed=True)
    world.orders.append()
    world.plan(change_feed=True)
    turn_feed(world, "false")
    turn_feed(world, "true")
    world.orders.append()
    ends = world.plan(change_feed=True)
    assert world.open(change_feed=True).read(*ends).arguments["changes"] == [[4, 4]]


def test_what_the_table_had_at_a_version_is_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it had a feed then: opening a large table takes seconds, and each question walks from the position."""
    world = World(tmp_path, change_feed=True)
    world.orders.append()
    world.plan(change_feed=True)
    asked = list[int]()

    def counted(root: str, version: int) -> Snapshot:
        asked.append(version)
        return snapshot_of(root, version)

    monkeypatch.setattr("airflow_provider_microbatch.sources.delta.history.snapshot_of", counted)
    world.orders.append()
    source = world.open(change_feed=True)
    assert source.has_new(world.position)
    end = source.latest_offset(world.position)
    assert isinstance(end, str)
    source.read(world.position, end)
    source.describe(world.position, end)
    assert asked == [2]


def test_a_position_of_before_the_table_had_a_change_feed_is_not_read_by_it(world: World) -> None:
    world.orders.append()
    world.plan()
    for _ in range(30):
        world.orders.append()
    turn_feed(world, "true")
    world.orders.append()
    with pytest.raises(
        SourceChangedError, match=r"version 2 .*feed was off, .* up to version 31:.*behind them"
    ) as told:
        world.plan(change_feed=True)
    assert "skip_versions" not in str(told.value), "a list that nobody reads"
    assert world.open().describe(*world.plan()).rows == 30
    assert world.open(change_feed=True).describe(*world.plan(change_feed=True)).rows == 1
