"""State goes along: a stateful streaming query is handed to a pipeline and back, and all goes on from what was."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.checkpoint.replays import Replays
from airflow_provider_microbatch.cli.main import main
from airflow_provider_microbatch.execution.planned import load_batch
from airflow_provider_microbatch.runtime.streaming import state_settings
from airflow_provider_microbatch.stores.location import open_store
from tests.execution.world import run_identity
from tests.spark_exchange.handed import Handed, Spark, as_text, spark_here

pytestmark = [pytest.mark.spark, pytest.mark.exchange, pytest.mark.slow]


@pytest.fixture(scope="module")
def spark() -> Iterator[Spark]:
    with spark_here() as found:
        yield found


def test_an_aggregate_goes_on_from_hand_to_hand(tmp_path: Path, spark: Spark) -> None:
    handed = Handed(tmp_path, spark, "counts", state_settings())
    handed.go_on_from_counts()

    handed.export_it()
    handed.land((1, "00:00"), (2, "00:00"), (3, "00:00"))
    assert as_text(handed.stream()) == as_text([{"id": 1, "count": 5}, {"id": 2, "count": 2}, {"id": 3, "count": 1}])
    handed.import_it()
    handed.land((2, "00:00"))
    assert handed.run() == [{"id": 2, "count": 3}]


def test_deduplication_and_windows_go_on_from_hand_to_hand(tmp_path: Path, spark: Spark) -> None:
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


def test_a_join_goes_on_from_hand_to_hand(tmp_path: Path, spark: Spark) -> None:
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


def test_a_processor_goes_on_from_hand_to_hand(tmp_path: Path, spark: Spark) -> None:
    """Its values, lists, maps and timers do: all rows are those of a query that nobody takes over."""
    handed = Handed(tmp_path, spark, "visits", state_settings(), partitions=1)
    handed.land((1, "00:10"), (2, "00:30"))
    handed.stream()
    handed.import_it()
    handed.land((1, "00:20"), (4, "00:50"))
    handed.run()
    handed.export_it()
    handed.land((2, "01:00"), (9, "09:00"))
    handed.stream()

    rows = as_text(handed.query_rows + handed.our_rows)
    handed.at = tmp_path / "all"
    assert rows == as_text(handed.stream())
    assert [json.loads(row)["id"] for row in rows] == [1, 2, 4]


def test_a_processor_goes_on_behind_a_rewind_to_a_batch_of_the_query(tmp_path: Path, spark: Spark) -> None:
    """Of each batch the import tells the columns that its state has."""
    handed = Handed(tmp_path, spark, "visits", state_settings(), partitions=1)
    for rows in ([(1, "00:10"), (2, "00:30")], [(1, "00:40")], [(4, "02:00")]):
        handed.land(*rows)
        handed.stream()
    handed.import_it()
    handed.land((1, "00:20"), (9, "09:00"))
    handed.run()
    assert main(["rewind", str(handed.world.root / "checkpoint"), "--to", "0", "--drop-output"]) == 0
    handed.our_rows.clear()
    handed.run()

    handed.at = tmp_path / "all"
    rows = as_text(handed.stream())
    assert as_text(handed.our_rows) == rows
    assert rows


def test_no_rewind_goes_behind_columns_that_no_address_is_left_of(
    tmp_path: Path, spark: Spark, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without them a batch runs whole, and is refused then: for ever, once it has left an address of its own."""
    handed = Handed(tmp_path, spark, "visits", state_settings(), partitions=1)
    for number in range(3):
        handed.land((1, f"00:{number}0"))
        handed.stream()
    (handed.at / "state" / "0" / "_metadata" / "v2" / "0").unlink()
    handed.import_it()
    handed.land((9, "09:00"))
    handed.run()
    assert main(["rewind", str(handed.world.root / "checkpoint"), "--to", "0", "--drop-output"]) != 0
    assert "such as 0/_metadata/v2" in capsys.readouterr().err


def test_a_batch_that_the_query_has_planned_is_made_by_us_and_one_of_ours_by_the_query(
    tmp_path: Path, spark: Spark
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
    assert as_text(handed.stream()) == as_text([{"id": 1, "count": 3}, {"id": 2, "count": 1}])


def test_files_of_the_query_are_kept_as_long_as_a_batch_may_go_on_from_them(tmp_path: Path, spark: Spark) -> None:
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


def test_a_pipeline_that_began_here_is_handed_to_a_query(tmp_path: Path, spark: Spark) -> None:
    """The query's own number of partitions is another one."""
    handed = Handed(tmp_path, spark, "counts", {**state_settings(), "spark.sql.shuffle.partitions": "5"})
    handed.begin()
    handed.land((1, "00:00"), (2, "00:00"), (3, "00:00"))
    handed.run()
    handed.export_it()
    handed.land((1, "00:00"), (2, "00:00"), (3, "00:00"))

    assert as_text(handed.stream()) == as_text([{"id": id, "count": 2} for id in (1, 2, 3)])


def test_a_batch_is_known_in_the_copy_as_it_was(tmp_path: Path, spark: Spark) -> None:
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


def test_after_a_replay_the_query_goes_on_from_what_is_published(tmp_path: Path, spark: Spark) -> None:
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
    tmp_path: Path, spark: Spark
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
    tmp_path: Path, spark: Spark, hand_over: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table of now never had the batch, and its commit entry is of before the replay; an older version's answer to
    that tells no state."""
    if hand_over:
        complete = Replays.complete
        monkeypatch.setattr(
            Replays, "complete", lambda *given, progress, **named: complete(*given, progress=None, **named)
        )
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
