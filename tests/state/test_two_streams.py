"""Two streams across batches, as in one query that goes on: their watermarks, and the sides of their join."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_microbatch.cli.main import main
from airflow_provider_microbatch.exceptions import TransformError
from tests.execution.maintaining import expire_all
from tests.execution.typed_commands import said
from tests.state.stateful import SessionEngine, StatefulWorld

pytestmark = [pytest.mark.spark, pytest.mark.slow]


class InTurn(StatefulWorld):
    """Each source has its rows in batches of its own."""

    def __init__(self, root: Path, engine: SessionEngine, transform: str) -> None:
        conf = {"spark.sql.shuffle.partitions": "1"}  # each partition of a join keeps four stores
        super().__init__(root, transform, schema="id long, at timestamp", engine=engine, mode="append", conf=conf)
        self.sources = ("orders", "payments")
        self.number = 0

    def rests(self) -> None:
        while self.run(self.number) is not None:
            self.number += 1
        self.number += 1

    def lands(self, source: str, *rows: tuple[int, str]) -> None:
        values = ({"id": id, "at": f"2026-01-01T00:{at}Z"} for id, at in rows)
        self.land(str(self.number), *values, source=source)
        self.rests()

    @property
    def rows(self) -> list[dict[str, object]]:
        return [row for rows in self.table().values() for row in rows]


def test_what_waits_for_both_is_told_once_both_have_passed_it(tmp_path: Path, engine: SessionEngine) -> None:
    """A rewind and forward again makes the very rows that were there: which rows of two streams meet, and which are
    late, depends on what was read together."""
    world = InTurn(tmp_path, engine, "tests.state.transforms:paid")
    world.lands("orders", (1, "00:00"), (2, "20:00"))
    assert world.rows == []
    world.lands("payments", (9, "20:00"))
    assert world.rows == [{"id": 1, "paid": False}]
    world.lands("payments", (2, "20:30"), (9, "40:00"))
    world.lands("orders", (3, "40:00"))
    assert world.rows == [{"id": 1, "paid": False}, {"id": 2, "paid": True}]

    before = world.table()
    expire_all(tmp_path)
    status, text = said(["rewind", world.pipeline.checkpoint, "--to", "0", "--drop-output"])
    assert status == 0, text
    world.rests()
    assert world.table() == before


def test_a_stream_that_never_had_a_row_holds_all_up(tmp_path: Path, engine: SessionEngine) -> None:
    world = InTurn(tmp_path, engine, "tests.state.transforms:paid")
    world.lands("orders", (1, "00:00"), (2, "20:00"))
    world.lands("orders", (3, "40:00"))
    assert world.rows == []


def test_with_a_longer_delay_nothing_is_late_by_the_one_of_before(tmp_path: Path, engine: SessionEngine) -> None:
    world = InTurn(tmp_path, engine, "tests.state.transforms:paid")
    world.lands("orders", (1, "00:00"), (2, "50:00"))
    world.transform = "tests.state.transforms:paid_half_an_hour_late"
    world.lands("payments", (9, "59:59"))
    world.lands("orders", (3, "25:00"))
    world.lands("payments", (3, "25:20"))
    assert world.rows == [{"id": 3, "paid": True}]


def test_a_replay_goes_on_from_those_of_before_its_batch(tmp_path: Path, engine: SessionEngine) -> None:
    world = InTurn(tmp_path, engine, "tests.state.transforms:paid")
    world.options["no_data_batches"] = False
    world.lands("orders", (1, "00:00"), (2, "20:00"))
    world.lands("payments", (9, "20:00"))
    told = world.checkpoint.commit_log.get(1)
    assert told is not None
    assert set(told.progress["state"]["watermarks"]) == {"orders: at - 30 seconds", "payments: at - 30 seconds"}
    assert world.run(2, clear_number=1) is not None
    world.lands("payments", (9, "20:10"))
    assert world.rows == [{"id": 1, "paid": False}]


def test_a_join_whose_sides_are_exchanged_is_refused_and_goes_on_as_it_was(
    tmp_path: Path, engine: SessionEngine
) -> None:
    """The kept rows of each side are of the same types, which is all that Spark compares. Others in
    ``test_kept_columns.py``."""
    world = InTurn(tmp_path, engine, "tests.state.transforms:paid_at_all")
    world.lands("orders", (1, "00:00"))
    world.transform = "tests.state.transforms:paid_turned_round"
    with pytest.raises(TransformError, match=r"joins payments with orders .* had one that joins orders with payments"):
        world.lands("payments", (1, "00:30"))
    world.transform = "tests.state.transforms:paid_at_all"
    world.rests()
    assert world.rows == [{"id": 1, "paid": True}]


def test_also_where_both_sides_are_of_one_source(tmp_path: Path, engine: SessionEngine) -> None:
    world = InTurn(tmp_path, engine, "tests.state.transforms:met_below_another")
    world.sources = ("orders",)
    world.lands("orders", (1, "00:00"))
    world.transform = "tests.state.transforms:met_below_another_turned_round"
    with pytest.raises(TransformError, match=r"joins orders with orders .* sides of a join, have changed places"):
        world.lands("orders", (11, "00:30"))
    world.transform = "tests.state.transforms:met_below_another"
    world.rests()
    assert world.rows == [{"id": 1}]


def test_operators_that_change_places_with_the_names_of_their_sources_are_refused(
    tmp_path: Path, engine: SessionEngine
) -> None:
    world = InTurn(tmp_path, engine, "tests.state.transforms:each_once")
    world.lands("orders", (1, "00:00"))
    world.lands("payments", (2, "00:00"))
    assert main(["rename-source", str(tmp_path / "checkpoint"), "orders", "sales"]) == 0
    world.sources = ("sales", "payments")
    with pytest.raises(TransformError, match=r"keeps state of payments .* had one that keeps state of sales"):
        world.lands("sales", (1, "00:10"), (2, "00:10"))
    world.transform = "tests.state.transforms:each_once_last_first"
    world.rests()
    world.lands("payments", (1, "00:10"), (2, "00:10"))
    assert [(row["id"], row["of"]) for row in world.rows] == [
        (1, "orders"),
        (2, "payments"),
        (2, "sales"),
        (1, "payments"),
    ]


def test_a_renamed_stream_goes_on_from_its_watermark(tmp_path: Path, engine: SessionEngine) -> None:
    world = InTurn(tmp_path, engine, "tests.state.transforms:paid")
    world.lands("orders", (1, "00:00"), (2, "20:00"))
    assert main(["rename-source", str(tmp_path / "checkpoint"), "orders", "sales"]) == 0
    world.sources, world.transform = ("sales", "payments"), "tests.state.transforms:sales_paid"
    world.lands("payments", (9, "20:00"))
    assert world.rows == [{"id": 1, "paid": False}]


def test_streams_of_one_source_go_on_though_each_batch_writes_its_number_into_them(
    tmp_path: Path, engine: SessionEngine
) -> None:
    world = InTurn(tmp_path, engine, "tests.state.transforms:met_or_not")
    world.sources = ("orders",)
    world.lands("orders", (1, "00:00"), (2, "20:00"))
    world.lands("orders", (19, "20:00"))
    assert world.rows == [{"id": 1, "met": False}]


def test_a_stream_does_not_go_on_from_the_watermark_of_one_that_is_gone(tmp_path: Path, engine: SessionEngine) -> None:
    """Its rows would be late by it."""
    world = InTurn(tmp_path, engine, "tests.state.transforms:minutes")
    world.sources = ("orders",)
    world.lands("orders", (1, "00:00"), (11, "20:00"))
    world.transform = "tests.state.transforms:minutes_of_small"
    world.lands("orders", (2, "10:00"))
    world.lands("orders", (3, "10:30"))
    world.lands("orders", (4, "21:30"))
    assert [(row["minute"], row["count"]) for row in world.rows] == [("00:00", 1), ("00:10", 2), ("00:20", 1)]


def test_operators_of_one_source_are_told_apart_by_what_spark_leaves_out_of_its_text(
    tmp_path: Path, engine: SessionEngine
) -> None:
    """The code of functions. Others in ``test_kept_columns.py``."""
    world = InTurn(tmp_path, engine, "tests.state.exchanged:of_functions")
    world.sources = ("orders",)
    world.options["output_mode"] = "update"
    world.lands("orders", (1, "00:00"))
    world.lands("orders", (1, "00:10"))
    assert [(row["of"], row["total"]) for row in world.rows[-2:]] == [("rows", 2), ("tens", 20)]
    world.transform = "tests.state.exchanged:of_functions_turned_round"
    with pytest.raises(TransformError, match="have changed places"):
        world.lands("orders", (1, "00:20"))
    world.transform = "tests.state.exchanged:of_functions"
    world.rests()
    assert [(row["of"], row["total"]) for row in world.rows[-2:]] == [("rows", 3), ("tens", 30)]


def test_columns_of_one_type_that_change_their_order_are_refused(tmp_path: Path, engine: SessionEngine) -> None:
    """Spark reads what is kept by their places, and compares their types. Others in ``test_kept_columns.py``."""
    world = InTurn(tmp_path, engine, "tests.state.exchanged:of_two_sums")
    world.sources, world.options["output_mode"] = ("orders",), "update"
    world.lands("orders", (1, "00:00"))
    world.transform = "tests.state.exchanged:of_two_sums_turned_round"
    with pytest.raises(TransformError, match="have changed their order"):
        world.lands("orders", (11, "00:10"))
    world.transform = "tests.state.exchanged:of_two_sums"
    world.rests()


def test_deduplications_of_a_chain_that_change_places_are_refused(tmp_path: Path, engine: SessionEngine) -> None:
    """What is kept by one column would be looked up by the other: new rows would be lost, and old ones come twice."""
    world = InTurn(tmp_path, engine, "tests.state.exchanged:once_by_each")
    world.sources = ("orders",)
    world.lands("orders", (1, "00:00"))
    world.transform = "tests.state.exchanged:once_by_each_turned_round"
    with pytest.raises(TransformError, match=r"keeps state by .* operators have changed places"):
        world.lands("orders", (12, "00:10"))
    world.transform = "tests.state.exchanged:once_by_each"
    world.rests()
    assert [row["id"] for row in world.rows] == [1, 12]


def test_columns_that_change_their_order_with_the_name_of_a_source_are_refused(
    tmp_path: Path, engine: SessionEngine
) -> None:
    world = InTurn(tmp_path, engine, "tests.state.exchanged:sums_by_name")
    world.lands("orders", (1, "00:00"))
    assert main(["rename-source", str(tmp_path / "checkpoint"), "orders", "sales"]) == 0
    world.sources = ("sales", "payments")
    with pytest.raises(TransformError, match=r"sum\(id of orders\).*changed their order"):
        world.lands("payments", (1, "00:00"))


def test_columns_that_are_shown_in_another_order_are_kept_as_they_were(tmp_path: Path, engine: SessionEngine) -> None:
    world = InTurn(tmp_path, engine, "tests.state.exchanged:sums_shown")
    world.sources = ("orders",)
    world.lands("orders", (1, "00:00"))
    world.transform = "tests.state.exchanged:sums_shown_turned_round"
    world.lands("orders", (11, "00:10"))
    world.lands("orders", (2, "30:00"))
    world.lands("orders", (3, "59:00"))
    assert [(row["ids"], row["rows"]) for row in world.rows] == [(1, 1)]


def test_tables_beside_the_streams_may_become_more(tmp_path: Path, engine: SessionEngine) -> None:
    world = InTurn(tmp_path, engine, "tests.state.exchanged:beside_growing_tables")
    world.sources = ("orders",)
    world.lands("orders", (1, "00:00"))
    world.lands("orders", (11, "00:30"))
    assert (1, 11) in [(row["id"], row["other"]) for row in world.rows]
