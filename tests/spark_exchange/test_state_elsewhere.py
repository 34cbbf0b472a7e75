"""State is kept by each Spark beside the locked one, batch by batch, and goes to a query of that Spark's and back. The
newest one shows it of each kind of state, as the locked one does in ``test_state_exchange``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_microbatch.exceptions import EngineError
from airflow_provider_microbatch.runtime.streaming import state_settings
from tests.environments import spark_versions
from tests.spark_exchange.handed import Handed, Spark, as_text, other_spark
from tests.state.intervals import IntervalsWorld, minute
from tests.state.stateful import StatefulWorld

pytestmark = [pytest.mark.spark, pytest.mark.exchange, pytest.mark.slow]


VERSIONS = spark_versions()[::-1]

of_the_newest = pytest.mark.parametrize("spark", VERSIONS[:1], indirect=True)


@pytest.fixture(scope="module", params=VERSIONS)
def spark(request: pytest.FixtureRequest) -> Iterator[Spark]:
    with other_spark(request.param) as found:
        yield found


def test_an_aggregate_goes_on_and_from_hand_to_hand(tmp_path: Path, spark: Spark) -> None:
    handed = Handed(tmp_path, spark, "counts", state_settings())
    handed.begin()
    for _ in range(2):
        handed.land((1, "00:00"), (2, "00:00"))
        handed.run()
    handed.export_it()
    handed.land((1, "00:00"), (3, "00:00"))
    assert as_text(handed.stream()) == as_text([{"id": 1, "count": 3}, {"id": 3, "count": 1}])
    handed.import_it()
    handed.land((1, "00:00"), (2, "00:00"))
    assert as_text(handed.run()) == as_text([{"id": 1, "count": 4}, {"id": 2, "count": 3}])


@of_the_newest
def test_deduplication_and_windows_go_on_and_from_hand_to_hand(tmp_path: Path, spark: Spark) -> None:
    handed = Handed(tmp_path, spark, "by_minute", state_settings())
    handed.begin()
    handed.land((1, "00:10"), (1, "00:10"))
    handed.run()
    handed.land((1, "00:10"), (2, "00:20"))
    handed.run()
    handed.export_it()
    handed.land((2, "00:20"), (3, "00:30"))
    handed.stream()
    handed.import_it()
    handed.land((3, "00:30"), (4, "10:00"))
    handed.run()

    rows = handed.query_rows + handed.our_rows
    assert [row["rows"] for row in rows] == [3]


@of_the_newest
def test_a_join_goes_on_and_from_hand_to_hand(tmp_path: Path, spark: Spark) -> None:
    handed = Handed(tmp_path, spark, "joined", state_settings())
    handed.begin()
    handed.land((1, "00:00"), (2, "00:00"))
    handed.run()
    handed.land((1, "00:00"), (3, "00:00"), source="payments")
    handed.run()
    assert [row["id"] for row in handed.our_rows] == [1]
    handed.export_it()
    handed.land((2, "00:00"), source="payments")
    handed.land((3, "00:00"), (4, "00:00"))
    assert sorted(row["id"] for row in handed.stream()) == [2, 3]
    handed.import_it()
    handed.land((4, "00:00"), source="payments")
    assert [row["id"] for row in handed.run()] == [4]


def test_a_processor_goes_on_and_from_hand_to_hand(tmp_path: Path, spark: Spark) -> None:
    """Its values, lists, maps and timers do, in the form that each of these Sparks has."""
    handed = Handed(tmp_path, spark, "visits_in_pandas", state_settings(), partitions=1)
    handed.begin()
    handed.land((1, "00:10"), (2, "00:30"))
    handed.run()
    handed.export_it()
    handed.land((1, "00:20"), (4, "00:50"))
    handed.stream()
    handed.import_it()
    handed.land((2, "01:00"), (9, "09:00"))
    handed.run()

    rows = as_text(handed.query_rows + handed.our_rows)
    handed.at = tmp_path / "all"
    assert rows == as_text(handed.stream())
    assert [json.loads(row)["id"] for row in rows] == [1, 2, 4]


@of_the_newest
def test_an_interval_tells_all_at_its_end(tmp_path: Path, spark: Spark) -> None:
    world = IntervalsWorld(tmp_path, "tests.state.transforms:by_minute", engine=spark.engine, mode="append")
    world.land_at(0.5, (1, "00:10:00"), (1, "00:10:00"), (2, "00:50:00"))
    world.run_hour(0)

    assert world.hours() == [[minute("00:10", 1), minute("00:50", 1)]]
    assert world.left() == []


@pytest.mark.parametrize("spark", ["4.0.4"], indirect=True)
def test_rows_that_an_outer_join_may_be_yet_to_tell_are_named_where_spark_does_not_show_them(
    tmp_path: Path, spark: Spark
) -> None:
    """Its reader of state failed, and the error was its own."""
    world = IntervalsWorld(tmp_path, "tests.state.transforms:paid", engine=spark.engine, mode="append")
    world.sources = ("orders", "payments")
    world.land_at(0.5, (1, "00:10:00"), (2, None))
    world.land_at(0.5, (1, "00:10:30"), source="payments")
    with pytest.raises(EngineError, match=r"may have found no partner \(Spark 4.0 .*\(1\).*leave such rows out"):
        world.run_hour(0)
    assert world.hours() == []


@of_the_newest
def test_a_transform_that_keeps_other_state_is_refused_with_the_way_on(tmp_path: Path, spark: Spark) -> None:
    world = StatefulWorld(tmp_path, "tests.state.transforms:counts", engine=spark.engine)
    world.land("a", 1)
    world.run(0)
    world.land("b", 1)
    for number, other in enumerate(("counts_by_text", "once")):
        world.transform = f"tests.state.transforms:{other}"
        with pytest.raises(EngineError, match="Put them back as they were, or begin a checkpoint and a table"):
            world.run(1, try_number=1 + number)


@pytest.mark.parametrize("spark", ["4.2.0"], indirect=True)
def test_what_a_processor_forgets_is_gone_from_its_state(tmp_path: Path, spark: Spark) -> None:
    """It looks for what has expired since the batch before."""
    one = {"spark.sql.shuffle.partitions": "1"}
    world = StatefulWorld(tmp_path, "tests.state.transforms:reminders", engine=spark.engine, conf=one)
    rows = []
    for number in range(3):
        world.land(str(number), number)
        world.run(number)
        world.clock += 200_000
        entry = world.checkpoint.commit_log.get(number)
        assert entry is not None
        rows.append([operator["numRowsTotal"] for operator in entry.progress["stateOperators"]])
    assert rows == [[1], [1], [1]]
