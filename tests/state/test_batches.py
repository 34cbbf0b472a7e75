"""State goes on from batch to batch, on real Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import CheckpointError
from tests.state.stateful import COUNTS, StatefulWorld

pytestmark = [pytest.mark.spark, pytest.mark.slow]

BY_MINUTE = """
from pyspark.sql import functions as F

def transform(batch):
    rows = batch.sources["orders"].withWatermark("at", "30 seconds").dropDuplicates(["id", "at"])
    by = rows.groupBy(F.window("at", "1 minute")).count()
    return by.select(F.col("window.start").alias("minute"), F.col("count").alias("rows"))
"""

JOINED = """
def transform(batch):
    return batch.sources["payments"].join(batch.sources["orders"], "id")
"""

START = 1_767_225_600_000  # 2026-01-01T00:00:00Z


def test_counts_go_on_from_the_batch_before(tmp_path: Path) -> None:
    world = StatefulWorld(tmp_path)
    world.land("a", 1, 1, 2)
    world.run(0)
    world.land("b", 1, 3)
    world.run(1)
    world.land("c", 1, 2)
    world.run(2)

    assert world.table() == {
        0: [{"id": 1, "count": 2}, {"id": 2, "count": 1}],
        1: [{"id": 1, "count": 3}, {"id": 3, "count": 1}],
        2: [{"id": 1, "count": 4}, {"id": 2, "count": 2}],
    }
    first, last = (world.checkpoint.commit_log.get(number) for number in (0, 2))
    assert first is not None
    assert last is not None
    assert first.progress["state"]["conf"]["spark.sql.shuffle.partitions"] == "2"
    assert last.progress["state"]["base"] != last.progress["state"]["ids"]
    assert not list((tmp_path / "checkpoint" / "streaming").iterdir())


def test_a_replay_of_the_newest_batch_replaces_output_and_state(tmp_path: Path) -> None:
    world = StatefulWorld(tmp_path)
    world.land("a", 1)
    world.run(0)
    world.land("b", 1)
    world.run(1)
    world.transform = COUNTS.replace('["orders"]', '["orders"].unionAll(batch.sources["orders"])')
    world.run(1, clear_number=1)
    replayed = world.table()[1]
    world.transform = COUNTS
    world.land("c", 1)
    world.run(2)

    assert replayed == [{"id": 1, "count": 3}]
    assert world.table()[2] == [{"id": 1, "count": 4}]

    with pytest.raises(CheckpointError, match=r"from which batches 2 to 2 have gone on.*rewind"):
        world.run(1, clear_number=2)
    assert not world.checkpoint.replays.pending(BatchKey("live", 1))


def test_rows_come_when_the_watermark_has_passed_and_late_ones_are_counted(tmp_path: Path) -> None:
    world = StatefulWorld(tmp_path, BY_MINUTE, schema="id long, at timestamp", mode="append")
    world.land("a", {"id": 1, "at": "2026-01-01T00:00:10Z"}, {"id": 1, "at": "2026-01-01T00:00:10Z"})
    world.run(0)
    world.land("b", {"id": 2, "at": "2026-01-01T00:10:00Z"})
    world.run(1)
    world.run(2)  # without data: Spark asks for it
    assert world.run(3) is None
    world.land("c", {"id": 3, "at": "2026-01-01T00:00:20Z"})
    world.run(4)

    assert world.table() == {0: [], 1: [], 2: [{"minute": "2026-01-01T00:00:00.000Z", "rows": 1}], 3: []}
    entries = [world.checkpoint.offset_log.get(number) for number in range(4)]
    watermarks = [entry.watermark_ms for entry in entries if entry is not None]
    assert watermarks == [0, START - 20_000, START + 570_000, START + 570_000]
    last = world.checkpoint.commit_log.get(3)
    assert last is not None
    assert last.progress["numRowsDroppedByWatermark"] > 0


def test_two_streams_are_joined_across_batches_whatever_the_order_of_their_names(tmp_path: Path) -> None:
    world = StatefulWorld(tmp_path, JOINED, mode="append")
    world.sources = ("orders", "payments")
    world.land("a", 1, 2)
    world.run(0)
    world.land("b", 2, source="payments")
    world.run(1)
    world.land("c", 3, source="payments")
    world.land("c", 2, 3)
    summary = world.run(2)

    assert world.table() == {0: [], 1: [{"id": 2}], 2: [{"id": 2}, {"id": 3}]}
    assert summary is not None
    last = world.checkpoint.commit_log.get(2)
    assert last is not None
    assert last.progress["numInputRows"] == {"orders": 2, "payments": 1}
