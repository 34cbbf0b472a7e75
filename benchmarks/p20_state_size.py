"""P20: what a batch of a stateful pipeline writes, by the size of the state that it goes on from.

Each size has a checkpoint of its own with a kilobyte of state a key, which batch 0 has built before anything counts;
each batch behind it touches as many keys, whatever the size. If a batch writes as much for all sizes, it copies
nothing. Bytes are those of P18: files of the checkpoint's folder that are new, or other, after a batch.

The batches are our tasks' own, in a Spark of this process that is up already, since who starts Spark changes no byte.
Seconds are told, and are no pass mark: each batch begins without state in memory, as in a process of its own, and Spark
itself loads the state then, from the checkpoint's folder to its own disk.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_provider_microbatch.runtime.batch import Batch
from airflow_provider_microbatch.runtime.streaming import SNAPSHOT_EVERY, close_state
from benchmarks.harness import Row
from tests.state.stateful import SessionEngine, StatefulWorld
from tests.support.local_spark import local_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SIZES = [int(size) for size in os.environ.get("P20_MB", "10,100,1000").split(",")]
"""Megabytes of state; the others are compared with the first."""
TOUCHED = int(os.environ.get("P20_TOUCHED", 1_000))
BATCHES = int(os.environ.get("P20_BATCHES", SNAPSHOT_EVERY + 1))
"""Batches in all, with the one that builds the state, and one at least that uploads a snapshot."""


def transform(batch: Batch) -> DataFrame:
    """A kilobyte of text for each key, half of which no compression saves."""
    from pyspark.sql import functions as F

    parts = [F.sha2(F.concat_ws("/", "id", F.lit(f"{batch.id}/{part}")), 512) for part in range(8)]
    orders = batch.sources["orders"].withColumn("text", F.concat(*parts))
    return orders.groupBy("id").agg(F.max("text").alias("text")).select("id", F.length("text").alias("length"))


def measure() -> list[Row]:
    """A row for each size but the first; its own where there is one."""
    sides = [_side(size) for size in SIZES]
    return [_row(size, side, sides[0]) for size, side in zip(SIZES, sides, strict=True)][len(SIZES) > 1 :]


class _Side:
    """:param root: an empty folder.
    :param keys: number of keys in state.
    """

    def __init__(self, root: Path, *, keys: int, engine: SessionEngine) -> None:
        self._world = StatefulWorld(root, f"{__name__}:{transform.__name__}", engine=engine)
        self._checkpoint = root / "checkpoint"
        self._keys = keys
        self.written: list[int] = []
        self.seconds: list[float] = []
        self._seen: dict[Path, tuple[int, int, int]] = {}

    def make(self) -> None:
        """The next batch."""
        number = len(self.written)
        first = number * TOUCHED % self._keys
        self._world.land(f"{number:04}", *(range(self._keys) if number == 0 else range(first, first + TOUCHED)))
        began = time.perf_counter()
        assert self._world.run(number) is not None
        self.seconds.append(time.perf_counter() - began)
        found = {}
        for path in self._checkpoint.rglob("*"):
            if path.is_file():
                told = path.stat()
                found[path] = (told.st_ino, told.st_mtime_ns, told.st_size)
        self.written.append(sum(told[2] for path, told in found.items() if self._seen.get(path) != told))
        self._seen = found


def _side(size: int) -> _Side:
    with tempfile.TemporaryDirectory() as folder, local_spark(cores=os.cpu_count() or 1) as spark:
        side = _Side(Path(folder), keys=size * 1_000, engine=SessionEngine(spark))
        while len(side.written) < BATCHES:
            side.make()
            close_state(spark)
            told = f"{side.written[-1]:,} bytes, {side.seconds[-1]:.1f} s"
            print(f"     {size} MB of state, batch {len(side.written) - 1}: {told}", flush=True)
        return side


def _row(size: int, side: _Side, least: _Side) -> Row:
    snapshots = [number for number in range(1, BATCHES) if (number + 1) % SNAPSHOT_EVERY == 0]
    uploads = ", ".join(f"{side.written[number] / 1e6:.3g}" for number in snapshots)
    seconds = f"{statistics.median(side.seconds[1:]):.1f} s a batch, {statistics.median(least.seconds[1:]):.1f} s"
    return Row(
        name="P20",
        what=f"bytes that a batch of {TOUCHED:,} keys writes at {size} MB of state / at {SIZES[0]} MB",
        reach=1.5,
        ours=[float(count) for count in side.written[1:]],
        peer=[float(count) for count in least.written[1:]],
        note=f"batch 0: {side.written[0] / 1e6:.3g} MB; with a snapshot: {uploads} MB; {seconds}",
        unit="bytes",
    )
