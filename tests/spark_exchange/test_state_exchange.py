"""State goes along: a stateful streaming query is handed to a pipeline and back, and all goes on from what was."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.checkpoint.verify import verify_all
from airflow_provider_microbatch.cli.main import main
from airflow_provider_microbatch.execution.planned import load_batch
from airflow_provider_microbatch.runtime.streaming import state_settings
from airflow_provider_microbatch.stores.location import open_store
from tests.execution.world import run_identity
from tests.state import transforms
from tests.state.stateful import SessionEngine, StatefulWorld
from tests.support.local_spark import local_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.exchange, pytest.mark.slow]

FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
SCHEMAS = {"counts": "id long", "by_minute": "id long, at timestamp", "joined": "id long"}
MODES = {"counts": "update", "by_minute": "append", "joined": "append"}


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    with local_spark() as session:
        yield session


class Batch:
    """Of a batch what the transforms use."""

    def __init__(self, sources: Mapping[str, DataFrame]) -> None:
        self.sources = sources


class _World(StatefulWorld):
    """Its files land where the query finds them: they are known by their paths."""

    def _landing(self, source: str) -> Path:
        return self.root.parent / "landing" / source


class Handed:
    """One transform, made by a streaming query and by a pipeline in turn, each with a checkpoint of its own place.

    :param kind: the transform's name.
    :param conf: settings of the query's session.
    """

    def __init__(self, root: Path, spark: SparkSession, kind: str, conf: Mapping[str, str]) -> None:
        self.root, self.kind, self.conf = root, kind, dict(conf)
        self.spark = spark
        self.sources = ("payments", "orders") if kind == "joined" else ("orders",)
        self.worlds = 0
        self.landed = 0
        self.query_rows: list[dict[str, Any]] = []
        self.our_rows: list[dict[str, Any]] = []
        self.at = root / "query-0"
        for name in self.sources:
            (root / "landing" / name).mkdir(parents=True)

    def land(self, *rows: tuple[int, str], source: str = "orders") -> None:
        """A file of these ids and times."""
        self.landed += 1
        path = self.root / "landing" / source / f"{self.landed:03}.json"
        path.write_text("".join(json.dumps({"id": id, "at": f"2026-01-01T00:{at}Z"}) + "\n" for id, at in rows))

    def stream(self, *, files: int = 1000) -> list[dict[str, Any]]:
        """Let a streaming query catch up, from the checkpoint that is its now; the rows that it gave.

        :param files: so many are a batch at most.
        """
        session = self.spark.newSession()
        settings = {"spark.sql.shuffle.partitions": "2", "spark.sql.session.timeZone": "UTC", **self.conf}
        for name, value in settings.items():
            session.conf.set(name, value)
        rows: list[dict[str, Any]] = []
        read = {
            name: session.readStream.schema(SCHEMAS[self.kind])
            .option("maxFilesPerTrigger", files)
            .json(str(self.root / "landing" / name))
            for name in self.sources
        }
        made = getattr(transforms, self.kind)(Batch(read))
        query = made.writeStream.outputMode(MODES[self.kind]).foreachBatch(
            lambda frame, number: rows.extend(json.loads(text) for text in frame.toJSON().collect())
        )
        query.option("checkpointLocation", str(self.at)).trigger(availableNow=True).start().awaitTermination()
        self.query_rows += rows
        return rows

    def begin(self) -> None:
        """A pipeline that no query was before."""
        self.worlds += 1
        self.world = _World(
            self.root / f"ours-{self.worlds}",
            f"tests.state.transforms:{self.kind}",
            schema=SCHEMAS[self.kind],
            mode=MODES[self.kind],
            engine=SessionEngine(self.spark),
            checkpoint_format="v1",
        )
        self.world.root.mkdir()
        self.world.sources = self.sources

    def import_it(self) -> None:
        """From the query's checkpoint to one of ours, which goes on without that."""
        self.begin()
        target = str(self.world.root / "checkpoint")
        words = ["import", str(self.at), target, "--pipeline", "orders", "--sources", ",".join(self.sources)]
        assert main(words) == 0
        shutil.rmtree(self.at)
        assert verify_all(self.world.checkpoint) == []

    def run(self) -> list[dict[str, Any]]:
        """Runs of the pipeline until there is nothing to do; the rows that they gave."""
        number = 0
        while self.world.run(100 * self.worlds + self.landed + number) is not None:
            number += 50
        assert verify_all(self.world.checkpoint) == []
        rows = [row for batch in self.world.table().values() for row in batch]
        self.our_rows += rows
        return rows

    def export_it(self) -> None:
        """From ours to one that the query goes on from."""
        self.at = self.root / f"query-{self.worlds}"
        assert main(["export", str(self.world.root / "checkpoint"), str(self.at)]) == 0
        assert verify_all(Checkpoint(open_store(str(self.at)), sources=self.sources)) == []


def _sorted(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(json.dumps(row, sort_keys=True) for row in rows)


def test_an_aggregate_goes_on_from_hand_to_hand(tmp_path: Path, spark: SparkSession) -> None:
    handed = Handed(tmp_path, spark, "counts", state_settings())
    handed.land((1, "00:00"), (2, "00:00"))
    handed.stream()
    handed.land((1, "00:00"))
    handed.stream()
    handed.import_it()
    assert handed.run() == [], "what the query has read is not read again"
    for _ in range(2):
        handed.land((1, "00:00"))
        handed.run()
    assert handed.our_rows[-1] == {"id": 1, "count": 4}

    handed.export_it()
    handed.land((1, "00:00"), (2, "00:00"), (3, "00:00"))
    assert _sorted(handed.stream()) == _sorted([{"id": 1, "count": 5}, {"id": 2, "count": 2}, {"id": 3, "count": 1}])
    handed.import_it()
    handed.land((2, "00:00"))
    assert handed.run() == [{"id": 2, "count": 3}]


def test_deduplication_and_windows_go_on_from_hand_to_hand(tmp_path: Path, spark: SparkSession) -> None:
    handed = Handed(tmp_path, spark, "by_minute", state_settings())
    handed.land((1, "00:10"), (1, "00:10"))
    handed.stream()
    handed.import_it()
    handed.land((1, "00:10"), (2, "00:20"))  # the first one is known from the query's time
    handed.run()
    handed.export_it()
    handed.land((2, "00:20"), (3, "00:30"))  # the first one from ours
    handed.stream()
    handed.import_it()
    handed.land((3, "00:30"), (4, "10:00"))
    handed.run()
    handed.export_it()
    handed.land((5, "20:00"))
    handed.stream()

    rows = handed.query_rows + handed.our_rows
    assert [row["rows"] for row in rows if row["minute"].startswith("2026-01-01T00:00")] == [3]


def test_a_join_goes_on_from_hand_to_hand(tmp_path: Path, spark: SparkSession) -> None:
    handed = Handed(tmp_path, spark, "joined", state_settings())
    handed.land((1, "00:00"), (2, "00:00"))
    handed.stream()
    handed.import_it()
    handed.land((1, "00:00"), (3, "00:00"), source="payments")
    assert [row["id"] for row in handed.run()] == [1]
    handed.export_it()
    handed.land((2, "00:00"), source="payments")
    handed.land((3, "00:00"), (4, "00:00"))
    assert sorted(row["id"] for row in handed.stream()) == [2, 3]
    handed.import_it()
    handed.land((4, "00:00"), source="payments")
    assert [row["id"] for row in handed.run()] == [4]


def test_a_batch_that_the_query_has_planned_is_made_by_us_and_one_of_ours_by_the_query(
    tmp_path: Path, spark: SparkSession
) -> None:
    handed = Handed(tmp_path, spark, "counts", state_settings())
    handed.land((1, "00:00"))
    handed.stream()
    handed.land((1, "00:00"))
    handed.stream()
    (handed.at / "commits" / "1").unlink()
    (handed.at / "commits" / ".1.crc").unlink()
    handed.import_it()
    assert handed.run() == [{"id": 1, "count": 2}]

    handed.land((1, "00:00"), (2, "00:00"))
    assert handed.world.execution.plan(run_identity(77)) is not None
    handed.export_it()
    assert _sorted(handed.stream()) == _sorted([{"id": 1, "count": 3}, {"id": 2, "count": 1}])


def test_files_of_the_query_are_kept_as_long_as_a_batch_may_go_on_from_them(
    tmp_path: Path, spark: SparkSession
) -> None:
    """Its snapshots are not where ours would be: a replay of our first batch reads all of its changes."""
    changes = {"spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true"}
    handed = Handed(tmp_path, spark, "counts", {**state_settings(), **changes})
    for _ in range(12):
        handed.land((1, "00:00"))
    handed.stream(files=1)
    handed.import_it()
    handed.world.options["min_batches_to_retain"] = 2
    handed.land((1, "00:00"))
    handed.world.run(1)
    handed.world.run(1, clear_number=1)

    assert handed.world.table() == {12: [{"id": 1, "count": 13}]}


def test_a_pipeline_that_began_here_is_handed_to_a_query(tmp_path: Path, spark: SparkSession) -> None:
    """The query's own number of partitions is another one."""
    handed = Handed(tmp_path, spark, "counts", {**state_settings(), "spark.sql.shuffle.partitions": "5"})
    handed.begin()
    handed.land((1, "00:00"), (2, "00:00"), (3, "00:00"))
    handed.run()
    handed.export_it()
    handed.land((1, "00:00"), (2, "00:00"), (3, "00:00"))

    assert _sorted(handed.stream()) == _sorted([{"id": id, "count": 2} for id in (1, 2, 3)])


def test_a_batch_is_known_in_the_copy_as_it_was(tmp_path: Path, spark: SparkSession) -> None:
    """Its entry has other settings there, and is the same plan: so a table knows the batch."""
    handed = Handed(tmp_path, spark, "counts", state_settings())
    handed.land((1, "00:00"))
    handed.stream()
    handed.import_it()
    handed.land((1, "00:00"))
    handed.run()
    ours = load_batch(handed.world.checkpoint, BatchKey("live", 1))
    handed.export_it()
    copied = load_batch(Checkpoint(open_store(str(handed.at)), sources=handed.sources), BatchKey("live", 1))

    assert copied.entry.stands_for == ours.identity.digest
    assert copied.identity == ours.identity


def test_after_a_replay_the_query_goes_on_from_what_is_published(tmp_path: Path, spark: SparkSession) -> None:
    handed = Handed(tmp_path, spark, "counts", state_settings())
    handed.land((1, "00:00"))
    handed.stream()
    handed.import_it()
    handed.land((1, "00:00"))
    handed.world.run(1)
    handed.world.transform = "tests.state.transforms:counts_twice"
    handed.world.run(1, clear_number=1)
    handed.export_it()
    handed.land((1, "00:00"))
    assert handed.stream() == [{"id": 1, "count": 4}]


def test_a_batch_that_was_planned_before_the_export_is_made_once_by_the_pipeline_that_imports_it(
    tmp_path: Path, spark: SparkSession
) -> None:
    """Its entry was handed over with other settings, and is the same plan."""
    handed = Handed(tmp_path, spark, "counts", state_settings())
    handed.begin()
    handed.land((1, "00:00"))
    handed.run()
    handed.land((1, "00:00"))
    assert handed.world.execution.plan(run_identity(77)) is not None
    handed.export_it()
    handed.import_it()
    handed.world.run(1)
    handed.land((1, "00:00"))
    handed.world.run(2)

    assert handed.world.table() == {1: [{"id": 1, "count": 2}], 2: [{"id": 1, "count": 3}]}


@pytest.mark.parametrize("hand_over", [True, False], ids=["to a copy", "to another table"])
def test_after_a_replay_a_pipeline_goes_on_from_what_is_published(
    tmp_path: Path, spark: SparkSession, hand_over: bool
) -> None:
    """The table of now never had the batch, and its commit entry is of before the replay."""
    handed = Handed(tmp_path, spark, "counts", state_settings())
    handed.begin()
    handed.land((1, "00:00"))
    handed.world.run(1)
    handed.world.transform = "tests.state.transforms:counts_twice"
    handed.world.run(1, clear_number=1)
    if hand_over:
        handed.export_it()
        handed.import_it()
    else:
        handed.world.transform = "tests.state.transforms:counts"
        handed.world.lake = "another"
    handed.land((1, "00:00"))
    handed.world.run(2)

    assert handed.world.table() == {1: [{"id": 1, "count": 3}]}


@pytest.mark.parametrize(
    ("conf", "how"),
    [
        ({}, "by org.apache.spark.*HDFSBackedStateStoreProvider"),
        ({**state_settings(), FORMAT: "1"}, "in checkpoint format 1"),
    ],
    ids=["hdfs", "format 1"],
)
def test_state_that_attempts_would_overwrite_is_refused_with_the_way_on(
    tmp_path: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str], conf: Mapping[str, str], how: str
) -> None:
    handed = Handed(tmp_path, spark, "counts", conf)
    handed.land((1, "00:00"))
    handed.stream()
    words = ["import", str(handed.at), str(tmp_path / "ours"), "--pipeline", "orders", "--sources", "orders"]

    assert main(words) == 2
    assert re.search(f"keeps state {how}: two attempts.*Begin a checkpoint and a table", capsys.readouterr().err)
    assert not (tmp_path / "ours").exists()
