"""P18: a batch that touches some keys of a large state, beside the same batch of an availableNow query; and what a late
batch writes, beside an early one.

Both sides of the first row are a Python process that imports its operator and calls ``execute``, as in P2. Each has a
checkpoint of its own with state of all keys, which its batch 0 has built before anything counts, and gets the same
files. The query keeps its state as ours does: RocksDB, as many partitions, and in each batch the choice of ours between
changes and a full snapshot, by which a start of Spark always has the same to load. Its checkpoint format is Spark's
default.

The second row counts the bytes of all files in the checkpoint's folder, state and logs, that are new or other after a
batch; one that was changed counts whole. The attempt's own folder, which is gone then, does not count. Early and late
batches are ten in a row each, compared at the same phase: the last of ten uploads a snapshot, and what RocksDB has
merged by then. The note has these uploads by themselves.
"""

from __future__ import annotations

import json
import os
import random
import tempfile
from dataclasses import replace
from pathlib import Path

from airflow_provider_microbatch.runtime.streaming import ROCKSDB, SNAPSHOT_EVERY
from benchmarks.harness import Row, paired, python_seconds
from benchmarks.p2_one_batch import BEGIN, EXECUTE, PEER

PAIRS = int(os.environ.get("P18_PAIRS", 5))
KEYS = int(os.environ.get("P18_KEYS", 1_000_000))
TOUCHED = int(os.environ.get("P18_TOUCHED", 10_000))
BATCHES = int(os.environ.get("P18_BATCHES", 40))
"""Batches of ours in all, with the one that builds the state: three times ten at least."""
PARTITIONS = os.environ.get("P18_PARTITIONS", str(os.cpu_count()))

SCHEMA = "key long, amount long"

OURS = (
    BEGIN
    + """
home, number, schema, partitions = sys.argv[1:]
pipeline = Pipeline(
    "bench", checkpoint=f"{home}/checkpoint", transform="job.py:transform", sink=FileSink(f"{home}/lake"),
    sources={"orders": FileSource(f"{home}/landing", format="json", schema=schema)},
    stateful=True, output_mode="update", conf={"spark.sql.shuffle.partitions": partitions},
)
"""
    + EXECUTE
    + """
assert (summary["state"], summary["key"]) == ("committed", f"live/{number}"), summary
print(json.dumps(time.perf_counter() - started))
"""
)

JOB = """
from pyspark.sql import functions as F
def totals(orders):
    return orders.groupBy("key").agg(F.count("*").alias("orders"), F.sum("amount").alias("amount"))
def transform(batch):
    return totals(batch.sources["orders"])
"""

QUERY = f"""
import sys
from pyspark.sql import SparkSession
from job import totals
home, schema, partitions, changes = sys.argv[1:]
store = "spark.sql.streaming.stateStore."
settings = {{"spark.sql.shuffle.partitions": partitions, store + "providerClass": {ROCKSDB!r},
            store + "rocksdb.changelogCheckpointing.enabled": changes}}
builder = SparkSession.builder
for name, value in settings.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
def write(frame, number):
    frame.write.mode("overwrite").parquet(f"{{home}}/lake/batch_id={{number}}")
writer = totals(spark.readStream.schema(schema).json(f"{{home}}/landing")).writeStream.outputMode("update")
writer = writer.option("checkpointLocation", f"{{home}}/checkpoint").foreachBatch(write)
query = writer.trigger(availableNow=True).start()
query.awaitTermination()
assert sum(bool(done["numInputRows"]) for done in query.recentProgress) == 1, "there was one batch to make"
spark.stop()
"""


def measure() -> list[Row]:
    """The rows of the table."""
    with tempfile.TemporaryDirectory() as folder:
        sides = Path(folder, "ours"), Path(folder, "peer")
        for side in sides:
            side.mkdir()
            (side / "job.py").write_text(JOB)
        (sides[1] / "query.py").write_text(QUERY)
        ours, peer = _Ours(sides[0]), _Peer(sides[1])
        for build in (ours, peer):
            build()
        row = paired(
            Row(
                name="P18",
                what=f"our task, {TOUCHED:,} keys of {KEYS:,} in state / an availableNow query by spark-submit",
                reach=1.05,
                note=f"{PARTITIONS} partitions",
            ),
            ours=ours,
            peer=peer,
            runs=PAIRS,
        )
        while ours.made < BATCHES:
            ours()
    return [row, _growth(ours.written)]


def _growth(written: list[int]) -> Row:
    """The row of what was written.

    :param written: bytes by batch.
    """
    early, late = (
        [float(count) for count in of] for of in (written[SNAPSHOT_EVERY:][:SNAPSHOT_EVERY], _last_whole(written))
    )
    uploads = ", ".join(f"{count / 1e6:.3g}" for count in written[SNAPSHOT_EVERY - 1 :: SNAPSHOT_EVERY])
    row = Row(
        name="P18", what=f"bytes written by one of ten batches to the {len(written)}th / to the 20th", reach=1.2,
        ours=late, peer=early, unit="bytes",
    )  # fmt: skip
    told = f"batch 0: {written[0] / 1e6:.3g} MB; those with a snapshot: {uploads} MB"
    return replace(row, note=f"{told}; ten batches together: {sum(late) / sum(early):.3g}")


def _last_whole(written: list[int]) -> list[int]:
    end = len(written) // SNAPSHOT_EVERY * SNAPSHOT_EVERY
    return written[end - SNAPSHOT_EVERY : end]


class _Side:
    """Makes one batch a call, and returns its seconds.

    :param home: has the landing folder, the checkpoint and the table.
    """

    def __init__(self, home: Path) -> None:
        self._home = home
        self.made = 0
        self._environment = {
            "AIRFLOW_HOME": str(home / "airflow"),
            "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": f"local[{os.cpu_count()}]"}),
        }

    def __call__(self) -> float:
        number = self.made
        self._land(number)
        seconds = self._run(number)
        self.made += 1
        return seconds

    def _run(self, number: int) -> float:
        raise NotImplementedError

    def _land(self, number: int) -> None:
        """The same file for either side: all keys for batch 0, some of them for each other one. Amounts are noise: sums
        of few small ones compress well, and less well with each batch, so that what is written would grow by them."""
        chance = random.Random(number)
        keys = range(KEYS) if number == 0 else sorted(chance.sample(range(KEYS), TOUCHED))
        landing = self._home / "landing"
        landing.mkdir(exist_ok=True)
        with (landing / f"{number}.json").open("w") as file:
            file.writelines(f'{{"key":{key},"amount":{chance.getrandbits(40)}}}\n' for key in keys)


class _Ours(_Side):
    """Our task; ``written`` has the bytes that each batch wrote into the checkpoint."""

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self.written: list[int] = []
        self._seen: dict[Path, tuple[int, int, int]] = {}

    def _run(self, number: int) -> float:
        seconds = python_seconds(OURS, str(self._home), str(number), SCHEMA, PARTITIONS, **self._environment)
        found = {}
        for path in (self._home / "checkpoint").rglob("*"):
            if path.is_file():
                told = path.stat()
                found[path] = (told.st_ino, told.st_mtime_ns, told.st_size)
        self.written.append(sum(told[2] for path, told in found.items() if self._seen.get(path) != told))
        self._seen = found
        return seconds


class _Peer(_Side):
    """A streaming query."""

    def _run(self, number: int) -> float:
        whole = number == 0 or (number + 1) % SNAPSHOT_EVERY == 0
        query = [str(self._home / "query.py"), str(self._home), SCHEMA, PARTITIONS, str(not whole).lower()]
        return python_seconds(PEER, *query, **self._environment)
