"""A real Spark reads exactly the planned snapshots of Iceberg tables, by the address of their metadata alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_microbatch.runtime.iceberg import read
from airflow_provider_microbatch.sources import OpenSource
from tests.environments import jars
from tests.sources.iceberg_world import World
from tests.support.iceberg_orders import OrdersOfIceberg
from tests.support.local_spark import local_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    own = [jar for jar in jars("iceberg") if jar.name.startswith("iceberg-")]
    with local_spark(cores=2, jars=own) as session:
        yield session


def frame(spark: SparkSession, source: OpenSource, start: str | None, end: str | None) -> DataFrame:
    """What the range reads as; the plan travels as JSON."""
    return read(spark, json.loads(json.dumps(source.read(start, end).arguments))).frame


def ids(found: DataFrame) -> list[int]:
    return sorted(row.id for row in found.collect())


def batches(spark: SparkSession, world: World, **arguments: Any) -> list[list[int]]:
    """The ids of all batches up to the head."""
    found = []
    while (ends := world.plan(**arguments))[0] != ends[1]:
        found.append(ids(frame(spark, world.open(**arguments), *ends)))
    return found


def test_a_snapshot_is_read_in_limited_batches_and_then_what_comes(spark: SparkSession, tmp_path: Path) -> None:
    world = World(tmp_path)
    for _ in range(3):
        world.orders.append(2)
    first = world.plan(max_files=2)
    assert ids(frame(spark, world.open(), *first)) == [0, 1, 2, 3]
    for _ in range(3):
        world.orders.append()
    assert batches(spark, world, max_files=2) == [[4, 5, 6], [7, 8]]
    assert ids(frame(spark, world.open(), *first)) == [0, 1, 2, 3]
    empty = frame(spark, world.open(), first[1], first[1])
    assert (empty.count(), empty.columns) == (0, ["id", "note"])


def test_snapshots_from_the_first_on_and_without_those_that_are_passed_over(
    spark: SparkSession, tmp_path: Path
) -> None:
    world = World(tmp_path)
    snapshots = []
    for _ in range(4):
        world.orders.append()
        snapshots.append(world.orders.head)
    assert batches(spark, world, start=snapshots[0], max_files=3) == [[0, 1, 2], [3]]
    later = World(tmp_path / "later", orders=world.orders)
    skipping = {"start": snapshots[0], "skip_snapshots": [snapshots[1]]}
    assert batches(spark, later, **skipping) == [[0, 2, 3]]


def test_a_table_that_was_of_format_1_is_read_whole_and_then_what_comes(spark: SparkSession, tmp_path: Path) -> None:
    orders = OrdersOfIceberg(tmp_path / "old", format_version=1)
    for _ in range(3):
        orders.append()
    orders.upgrade()
    world = World(tmp_path, orders=orders)
    first, second = batches(spark, world, max_files=2)
    assert (len(first), sorted(first + second)) == (2, [0, 1, 2])
    for _ in range(2):
        orders.append()
    assert batches(spark, world) == [[3, 4]]


def test_a_column_has_its_name_of_then(spark: SparkSession, tmp_path: Path) -> None:
    world = World(tmp_path)
    world.orders.append()
    world.plan()
    world.orders.append()
    second = world.plan()
    assert ids(frame(spark, world.open(), *second)) == [1]
    with world.orders.table.update_schema() as update:
        update.rename_column("note", "remark")
        update.add_column("more", update._schema.find_type("id"))
    found = frame(spark, world.open(), *second)
    assert [row.asDict() for row in found.collect()] == [{"id": 1, "note": "x"}]
