"""State that a query has kept in files without ids is converted when the query is imported, and may go back."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_microbatch.cli.main import main
from airflow_provider_microbatch.exceptions import CheckpointError
from airflow_provider_microbatch.runtime import converted_state
from airflow_provider_microbatch.runtime.converted_state import OldState
from airflow_provider_microbatch.runtime.streaming import CHANGELOG, FORMAT, PROVIDER, ROCKSDB, state_settings
from airflow_provider_microbatch.stores import Store
from airflow_provider_microbatch.upkeep.commands.convert_state import ConvertState
from tests.spark_exchange.handed import Handed, Spark, as_text, spark_here

pytestmark = [pytest.mark.spark, pytest.mark.exchange, pytest.mark.slow]

HDFS: dict[str, str] = {}
FORMAT_1 = {PROVIDER: ROCKSDB, FORMAT: "1", CHANGELOG: "true"}


@pytest.fixture(scope="module")
def spark() -> Iterator[Spark]:
    with spark_here() as found, converting_in(found):
        yield found


@contextmanager
def converting_in(spark: Spark) -> Iterator[None]:
    """Have commands convert state in this Spark, and not start one each."""

    @contextmanager
    def own_session(name: str, settings: Mapping[str, str]) -> Iterator[None]:
        yield

    def convert_in(_: None, old: OldState, *, is_over: Callable[[], bool]) -> bool:
        spark.convert(old)
        return True

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(converted_state, "own_session", own_session)
        patched.setattr(converted_state, "convert_in", convert_in)
        yield


def test_an_aggregate_goes_on_from_hand_to_hand(tmp_path: Path, spark: Spark) -> None:
    handed = Handed(tmp_path, spark, "counts", FORMAT_1)
    handed.go_on_from_counts()

    handed.export_it()
    handed.conf.update(state_settings())
    handed.land((1, "00:00"), (2, "00:00"), (3, "00:00"))
    assert as_text(handed.stream()) == as_text([{"id": 1, "count": 5}, {"id": 2, "count": 2}, {"id": 3, "count": 1}])


def test_lost_state_that_was_converted_leaves_no_batch_of_the_query_to_go_back_to(tmp_path: Path, spark: Spark) -> None:
    handed = Handed(tmp_path, spark, "counts", FORMAT_1)
    for _ in range(2):
        handed.land((1, "00:00"))
        handed.stream()
    handed.import_it()
    for path in handed.world.root.glob("checkpoint/state/*/*/2_*"):
        path.unlink()
    handed.land((1, "00:00"))
    with pytest.raises(CheckpointError, match=r"state of batch live/1, .* takes all batches back"):
        handed.run()


def test_no_rewind_goes_behind_the_batch_whose_state_was_converted(
    tmp_path: Path, spark: Spark, capsys: pytest.CaptureFixture[str]
) -> None:
    handed = Handed(tmp_path, spark, "counts", FORMAT_1)
    handed.go_on_from_counts()
    before = handed.world.table()
    words = ["rewind", str(handed.world.root / "checkpoint"), "--drop-output", "--to"]
    assert main([*words, "0"]) != 0
    assert "batch live/0 has kept none" in (said := capsys.readouterr().err)
    assert "batch 1 the oldest after it: rewind to one of these" in said
    assert handed.world.table() == before
    assert main([*words, "1"]) == 0
    assert handed.run() == [row for rows in before.values() for row in rows]


def test_a_chain_of_operators_goes_on_from_hand_to_hand(tmp_path: Path, spark: Spark) -> None:
    """All rows are those of a query that nobody takes over."""
    handed = Handed(tmp_path, spark, "paid_in_sessions", HDFS, partitions=1)
    handed.land((1, "00:10"), (1, "00:10"), (2, "00:20"))
    handed.land((1, "00:15"), source="payments")
    handed.stream()
    handed.import_it()
    handed.land((1, "00:10"), (3, "00:40"))  # the first one is known from the query's time
    handed.land(
        (1, "00:15"), (1, "00:30"), (2, "00:40"), source="payments"
    )  # so it is here; the others are of old orders
    handed.run()
    handed.export_it()
    handed.conf.update(state_settings())
    handed.land((3, "00:40"), (9, "10:00"))
    handed.land((3, "00:50"), (9, "10:00"), source="payments")
    handed.stream()

    rows = as_text(handed.query_rows + handed.our_rows)
    handed.at, handed.conf = tmp_path / "all", handed.partitions
    assert rows == as_text(handed.stream())
    assert [(row["id"], row["count"]) for row in map(json.loads, rows)] == [(2, 1), (3, 1), (1, 2)]


def test_a_limit_goes_on_from_hand_to_hand(tmp_path: Path, spark: Spark) -> None:
    handed = Handed(tmp_path, spark, "the_first", HDFS, partitions=1)
    handed.land((1, "00:00"), (2, "00:00"))
    handed.stream()
    handed.import_it()
    handed.land((3, "00:00"))
    assert handed.run() == [{"id": 3}]
    handed.export_it()
    handed.conf.update(state_settings())
    handed.land((4, "00:00"), (5, "00:00"))
    assert handed.stream() == [{"id": 4}]


def test_a_conversion_that_was_killed_goes_on_where_it_was(
    tmp_path: Path, spark: Spark, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[Any] = []
    take, apply = converted_state._take, ConvertState.apply

    def take_one(*given: Any) -> None:
        take(*given)
        done.append(given)
        if len(done) == 1:
            raise KeyboardInterrupt

    def apply_again(step: ConvertState, store: Store, *, is_over: Callable[[], bool]) -> None:
        with pytest.raises(KeyboardInterrupt):
            apply(step, store, is_over=is_over)
        apply(step, store, is_over=is_over)

    monkeypatch.setattr(converted_state, "_take", take_one)
    monkeypatch.setattr(ConvertState, "apply", apply_again)
    handed = Handed(tmp_path, spark, "counts", HDFS)
    handed.land((1, "00:00"), (2, "00:00"), (3, "00:00"))
    handed.stream()
    handed.import_it()
    handed.land((1, "00:00"), (2, "00:00"), (3, "00:00"))

    assert as_text(handed.run()) == as_text([{"id": id, "count": 2} for id in (1, 2, 3)])
    assert len(done) == 2, "each partition once"
    checkpoint = handed.world.root / "checkpoint"
    assert not [*checkpoint.glob("streaming/*"), *checkpoint.glob("state/*/*/*.delta*")]
