"""The driver is killed at named points; the next attempt makes the batch, and the table is that of an uninterrupted
run."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_microbatch.exceptions import EngineError
from tests.execution.world import Killed
from tests.state.intervals import IntervalsWorld, minute
from tests.state.stateful import StatefulWorld

pytestmark = [pytest.mark.spark, pytest.mark.slow]

POINTS = ["before the stage", "after the state's commit"]
"""The others are those of ``make chaos SYSTEM=state``, and of a topic's pipeline beside it."""

KILLED = """
import os, signal
from pathlib import Path
from airflow_provider_microbatch.runtime import app, streaming

ROOT = Path({root!r})

def die(point, batch):
    flag = ROOT / f"killed-{{batch}}"
    if POINTS[batch % len(POINTS)] == point and not flag.exists():
        flag.touch()
        os.kill(os.getpid(), signal.SIGKILL)

POINTS = {points!r}

def transform(batch):
    run_query, read_commit = streaming.run_query, streaming.read_commit
    def killed_query(spark, job, result, write):
        def killed_write(frame):
            die("before the stage", batch.id)
            write(frame)
        return run_query(spark, job, result, killed_write)
    def killed_read(folder, batch_id):
        die("after the state's commit", batch.id)
        return read_commit(folder, batch_id)
    app.run_query, streaming.read_commit = killed_query, killed_read
    return batch.sources["orders"].groupBy("id").count()
"""


def test_a_driver_that_is_killed_anywhere_leaves_the_table_of_an_uninterrupted_run(tmp_path: Path) -> None:
    world = StatefulWorld(tmp_path, KILLED.format(root=str(tmp_path), points=POINTS))
    counts: Counter[int] = Counter()
    wanted: dict[int, list[Any]] = {}
    for number, _ in enumerate(POINTS):
        rows = [1, 1, number + 2]
        counts.update(rows)
        wanted[number] = [{"id": id, "count": counts[id]} for id in (1, number + 2)]
        world.land(f"{number}", *rows)
        with pytest.raises(EngineError):
            world.run(number)
        world.run(number, try_number=2)

    assert world.table() == wanted
    assert not list((tmp_path / "checkpoint" / "streaming").iterdir())


INTERVAL_KILLED = """
import os, signal
from pathlib import Path
from pyspark.sql import functions as F
from airflow_provider_microbatch.runtime import app, streaming

ROOT = Path({root!r})

def die(point):
    flag = ROOT / point
    if not flag.exists():
        flag.touch()
        os.kill(os.getpid(), signal.SIGKILL)

def transform(batch):
    run_query, plan_end = streaming.run_query, streaming.plan_end
    def killed_query(spark, job, result, write):
        def killed_write(frame):
            write(frame)
            die("after the stage of the end")
        return run_query(spark, job, result, killed_write)
    def killed_end(*args, **kwargs):
        die("between data and end")
        plan_end(*args, **kwargs)
    app.run_query, streaming.plan_end = killed_query, killed_end
    orders = batch.sources["orders"].withWatermark("at", "30 seconds")
    return orders.groupBy(F.window("at", "1 minute"), "id").count().select(F.col("window.start").alias("at"), "count")
"""


def test_a_driver_that_is_killed_in_an_interval_leaves_the_table_of_an_uninterrupted_run(tmp_path: Path) -> None:
    world = IntervalsWorld(tmp_path, INTERVAL_KILLED.format(root=str(tmp_path)), mode="append")
    world.land_at(0.5, (1, "00:10:00"), (1, "00:10:30"), (2, "00:50:00"))
    for attempt in (1, 2):
        with pytest.raises(EngineError):
            world.run_hour(0, try_number=attempt)
        assert world.hours() == []
    world.run_hour(0, try_number=3)

    assert (tmp_path / "after the stage of the end").exists()
    assert world.hours() == [[minute("00:10", 2), minute("00:50", 1)]]
    assert world.left() == []


COUNTS_OF_A_BUNDLE = """
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

class Counts(StatefulProcessor):
    def init(self, handle):
        self.rows = handle.getValueState("rows", "rows long")
    def handleInputRows(self, key, rows, timerValues):
        (count,) = self.rows.get() or (0,)
        count += len([*rows])
        self.rows.update((count,))
        yield Row(id=key[0], count=count)

def transform(batch):
    by_id = batch.sources["orders"].groupBy("id")
    return by_id.transformWithState(Counts(), "id long, count long", "Update", "None")
"""
"""A processor of a file that travels with the job, which Spark asks beside the driver too."""


def test_a_task_that_dies_between_publish_and_commit_goes_on_from_what_it_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = StatefulWorld(tmp_path, COUNTS_OF_A_BUNDLE)
    world.land("a", 1)

    def killed(*args: object, **kwargs: object) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr("airflow_provider_microbatch.execution.execution.add_commit", killed)
        with pytest.raises(Killed):
            world.run(0)
    world.run(0, try_number=2)
    world.land("b", 1)
    world.run(1)

    assert world.table() == {0: [{"id": 1, "count": 1}], 1: [{"id": 1, "count": 2}]}
