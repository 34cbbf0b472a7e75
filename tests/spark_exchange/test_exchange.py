"""A real Structured Streaming query and this package go on from each other's checkpoint: v1 with the locked pyspark,
v2 with pyspark 4.2.0 in an environment of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_microbatch.checkpoint.handover import hand_over
from airflow_provider_microbatch.checkpoint.verify import verify_all
from tests.spark_exchange.lake import SOURCES, Lake, Spark, running

pytestmark = [pytest.mark.spark, pytest.mark.exchange]


@pytest.fixture(scope="module", params=["v1", "v2"])
def spark(request: pytest.FixtureRequest) -> Iterator[Spark]:
    """The Spark that reads and writes this format."""
    with running(request.param) as found:
        yield found


def offset(number: int) -> str:
    return f'{{"logOffset":{number}}}'


def test_spark_runs_our_planned_batch_and_goes_on(tmp_path: Path, spark: Spark) -> None:
    lake = Lake(tmp_path, spark)
    lake.land("orders", "backfilled.json", 9)
    lake.backfill("orders")
    lake.land("orders", "a b.json", 1)
    lake.plan(0)
    lake.set_aside(0)
    lake.land("orders", "é%20+.json", 2)
    lake.plan(1)
    lake.land("orders", "late.json", 3)
    lake.land("refunds", "first.json", 4)
    assert hand_over(lake.checkpoint) == []
    # Batch 0 is set aside, which to Spark is committed, and does not run again; 1 is exactly what we planned; 2 has
    # what came later, nothing twice, and not what a lane beside has read.
    assert lake.stream() == {1: [2], 2: [3, 4]}
    assert verify_all(lake.checkpoint) == []


def test_we_read_what_spark_wrote_and_spark_goes_on_after_us(tmp_path: Path, spark: Spark) -> None:
    lake = Lake(tmp_path, spark)
    lake.land("orders", "a.json", 1)
    assert lake.stream() == {0: [1]}

    identity = lake.checkpoint.identity()
    assert identity is not None
    assert (identity.pipeline, identity.format) == (None, spark.version)
    entry = lake.checkpoint.offset_log.get(0)
    assert entry is not None
    assert {name: end for name, end in entry.ends.items() if end is not None} == {"orders": offset(0)}
    assert lake.checkpoint.lane("live").tail().commit_id == 0
    assert verify_all(lake.checkpoint) == []

    # The checkpoint keeps its format, whatever the pipeline asks for.
    claimed = lake.checkpoint.claim(pipeline="orders", sources=SOURCES, format="v2" if spark.version == "v1" else "v1")
    assert claimed.format == spark.version
    assert claimed.query_id == identity.query_id
    lake.land("refunds", "b.json", 2)
    lake.plan(1)
    lake.commit(1)
    lake.land("orders", "c.json", 3)
    assert lake.stream() == {2: [3]}
    last = lake.checkpoint.offset_log.get(2)
    assert last is not None
    assert last.ends == {"orders": offset(1), "refunds": offset(0)}
    assert verify_all(lake.checkpoint) == []


def test_spark_finds_every_file_of_a_long_source_log(tmp_path: Path, spark: Spark) -> None:
    lake = Lake(tmp_path, spark)
    for batch in range(23):
        lake.land("orders", f"{batch:02d}.json", batch)
        lake.plan(batch)
        if batch < 22:
            lake.commit(batch)
    [written] = hand_over(lake.checkpoint)
    assert written.endswith("/19.compact")
    assert hand_over(lake.checkpoint) == [], "said again it writes nothing"
    lake.land("orders", "new.json", 100)
    # Were a file missing from the log, it would be read again here.
    assert lake.stream() == {22: [22], 23: [100]}
    assert verify_all(lake.checkpoint) == []


@pytest.mark.parametrize(("theirs", "all_of_us"), [(10, 20), (10, 30), (10, 40), (20, 50)])
def test_spark_goes_on_from_what_we_added_to_its_own_compactions(
    tmp_path: Path, spark: Spark, theirs: int, all_of_us: int
) -> None:
    """From 9 to 19, 29 and 39, and from 19 to 49; other ways are shown by Spark's rule in
    ``tests/checkpoint/test_handover.py``."""
    lake = Lake(tmp_path, spark)
    for number in range(theirs):
        lake.land("orders", f"{number:02d}.json", number)
    assert sorted(lake.stream(files=1)) == list(range(theirs))
    folder = next(path.parent for path in tmp_path.rglob(f"{theirs - 1}.compact"))
    for number in range(theirs, all_of_us):
        lake.land("orders", f"{number:02d}.json", number)
        lake.plan(number)
        lake.commit(number)
    [written] = hand_over(lake.checkpoint)
    assert [path.name for path in folder.glob("*.compact")] == [written.rpartition("/")[2]]
    lake.land("orders", "new.json", 100)
    assert lake.stream() == {all_of_us: [100]}
    assert verify_all(lake.checkpoint) == []
