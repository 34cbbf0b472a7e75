"""The demo's claims fail when what they claim is not so: else a green demo would prove nothing."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from demo.orders import Till
from demo.proof import (
    check_is_clean,
    compare_rows,
    lake_rows,
    landed_rows,
    logs_are_in,
    no_disk_has,
    no_java_left,
    no_process_left,
    no_stage_left,
    verdict,
)
from tests.demo.tree import Tree
from tests.execution.world import World

Rows = list[dict[str, Any]]


class Shop:
    """Landed files, and a table with the same rows in two batches."""

    def __init__(self, root: Path) -> None:
        self.landing = root / "landing"
        self.table = root / "lake"
        Till(self.landing, rows=5).land(2)
        self.rows: Rows = [dict(row) for row in landed_rows(self.landing)]

    def publish(self, *batches: Rows) -> None:
        shutil.rmtree(self.table, ignore_errors=True)
        for number, rows in enumerate(batches):
            self.write(self.table / f"lane=live/batch_id={number}", rows)

    @staticmethod
    def write(folder: Path, rows: Rows) -> None:
        folder.mkdir(parents=True)
        pyarrow.parquet.write_table(pa.Table.from_pylist(rows), folder / "part-0.parquet")

    def compare(self) -> tuple[str, ...]:
        return compare_rows(landed_rows(self.landing), lake_rows(self.table)).problems


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


def test_the_same_rows_are_the_same(shop: Shop) -> None:
    shop.publish(shop.rows[:5], shop.rows[5:])
    assert shop.compare() == ()


def test_a_lost_row_is_told(shop: Shop) -> None:
    shop.publish(shop.rows[:5], shop.rows[6:])
    assert shop.compare() == ("lost: landed and not in the lake: 1 (id 5)",)


def test_a_doubled_row_is_told(shop: Shop) -> None:
    shop.publish(shop.rows[:6], shop.rows[5:])
    assert shop.compare() == ("doubled: in the lake more than once: 1 (id 5)",)


def test_a_row_that_nobody_landed_is_told(shop: Shop) -> None:
    shop.publish([*shop.rows, {**shop.rows[0], "id": 99}])
    assert shop.compare() == ("unknown: in the lake and never landed: 1 (id 99)",)


@pytest.mark.parametrize("column", ["customer", "amount", "ts"])
def test_a_changed_value_is_told(shop: Shop, column: str) -> None:
    shop.publish([{**shop.rows[0], column: shop.rows[1][column]}, *shop.rows[1:]])
    assert shop.compare() == ("changed: other values in the lake than landed: 1 (id 0)",)


def test_a_table_that_is_not_there_has_lost_everything(shop: Shop) -> None:
    assert shop.compare() == ("lost: landed and not in the lake: 10 (id 0, 1, 2, 3, 4, …)",)


def test_a_stage_is_no_part_of_the_table_and_is_told(shop: Shop) -> None:
    shop.publish(shop.rows)
    assert no_stage_left(shop.table).problems == ()
    shop.write(shop.table / "_staging/lane=live/batch_id=0/attempt=1", shop.rows)
    assert shop.compare() == ()
    assert no_stage_left(shop.table).problems == ("left: _staging/lane=live/batch_id=0/attempt=1",)


def test_an_object_that_lies_on_a_disk_too_is_told(tmp_path: Path) -> None:
    keys = ["checkpoints/orders/offsets/0", "landing/orders/orders-0000.json"]
    elsewhere, copy = tmp_path / "others" / "0", tmp_path / "tmp" / "orders" / "orders-0000.json"
    assert no_disk_has(keys, [elsewhere]).problems == ()
    assert no_disk_has(keys, [elsewhere, copy]).problems == (f"on a disk: {copy}",)


def test_a_log_that_is_no_object_or_is_not_shown_is_told() -> None:
    keys = ["logs/run_id=1/attempt=1.log", "logs/run_id=2/attempt=1.log"]
    assert logs_are_in(keys, {"run_id=1/attempt=1.log": "said", "run_id=2/attempt=1.log": "said"}).problems == ()
    lost, empty = "run_id=1/attempt=2.log", "run_id=2/attempt=1.log"
    assert logs_are_in(keys, {lost: "said", empty: ""}).problems == (
        f"not in the bucket: {lost}",
        f"not shown: {empty}",
    )


def test_a_checkpoint_with_a_gap_is_told(tmp_path: Path) -> None:
    world = World(tmp_path)
    for number in range(3):
        world.land(number)
        world.run(number)
    checkpoint = Path(world.pipeline.checkpoint)
    assert check_is_clean(checkpoint).problems == ()
    (checkpoint / "offsets" / "1").unlink()
    assert any("gap" in problem for problem in check_is_clean(checkpoint).problems)


def test_a_spark_that_runs_on_is_told(tmp_path: Path) -> None:
    with Tree(tmp_path, tag="microbatch-1") as tree:
        assert len(no_java_left([tree.task, tree.java]).problems) == 1
        assert no_java_left([tree.task]).problems == ()
        assert len(no_process_left([tree.task, tree.java]).problems) == 2


def test_one_claim_that_fails_makes_the_exit_status(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    shop.publish(shop.rows)
    good = compare_rows(shop.rows, lake_rows(shop.table))
    assert verdict([good, good]) == 0
    assert capsys.readouterr().out == "ok    10 rows in the lake, 10 rows landed\n" * 2
    shop.publish(shop.rows[1:])
    bad = compare_rows(shop.rows, lake_rows(shop.table))
    assert verdict([bad, good]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "WRONG 9 rows in the lake, 10 rows landed",
        "      lost: landed and not in the lake: 1 (id 0)",
        "ok    10 rows in the lake, 10 rows landed",
    ]
