"""Tables of Spark's catalog with partition columns of their own, on a real metastore: what is done to a batch, what a
crash between any two steps leaves, and what readers find by partition. The whole contract of sinks is in
test_partition_steps.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.sinks import Sink
from airflow_provider_microbatch.sinks.table import TableSink
from airflow_provider_microbatch.sinks.table.metastore import Metastore
from airflow_provider_microbatch.sinks.table.partition_values import values_of
from airflow_provider_microbatch.sinks.table.statement_steps import StatementSteps
from airflow_provider_microbatch.sinks.table.statements import ConnectStatements
from tests.contract.test_sink import (  # noqa: F401
    Kind,
    test_a_batch_that_is_withdrawn_is_out_and_can_come_back,
)
from tests.sinks.stages import EXPECTED, KEY, batch_of, expect
from tests.tables.partition_lives import Killed, Life, die_unseen, dies, sink_in
from tests.tables.shop import LANDS
from tests.tables.spark_shop import Make
from tests.tables.stages import write_partitions, write_stage_table

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore:The 'warn' method is deprecated")]


@pytest.fixture
def kind(server: ConnectStatements, name: str) -> Kind:
    return Kind(make=lambda folder: sink_in(folder, server, name), write_stage=write_partitions)


@pytest.fixture
def sink(kind: Kind, tmp_path: Path) -> Sink:
    return kind.make(tmp_path)


@pytest.mark.parametrize("at", [1, 2])
def test_a_replay_that_died_beside_its_exchange_is_seen_whole_or_not_at_all(
    server: ConnectStatements, sink: TableSink, name: str, at: int
) -> None:
    def epochs() -> list[int]:
        (found,) = server.run([f"SELECT epoch FROM {name} ORDER BY epoch"])
        return [row["epoch"] for row in found]

    assert dies(Life(sink, epochs), "replace", at=at)


def test_what_a_dead_attempt_has_left_unseen_is_no_batch_of_the_next_plan(
    server: ConnectStatements, sink: TableSink, name: str
) -> None:
    """Its files are in their place, and the metastore does not name them: a rewind has nothing to take out."""
    write_partitions(sink, 1)
    die_unseen(sink)
    assert sink.contains(EXPECTED) is None
    assert sink.withdraw(EXPECTED, 1) is False
    planned_again = batch_of(digest="d2")
    write_partitions(sink, 2, batch=planned_again)
    assert sink.publish(expect(digest="d2"), 2).identity == planned_again
    assert server.run([f"SELECT DISTINCT epoch FROM {name}"]) == [[{"epoch": 2}]]


def test_several_partitions_are_added_in_one_call_or_none_is(
    server: ConnectStatements, sink: TableSink, name: str
) -> None:
    write_stage_table(sink, 1, below=("of=a",))
    sink.publish(EXPECTED, 1)
    root = Path(sink.catalog.files(sink.as_table).root)
    (root / "in the way").write_text("a file")
    store = Metastore(server, "sales", StatementSteps(server, root / "_statements"))
    places = {"b": root / "b", "c": root / "c", "d": root / "in the way" / "d"}
    with pytest.raises(SinkError):
        store.add_partitions(
            name.partition(".")[2], KEY, {values_of(f"of={one}", ["of"]): path for one, path in places.items()}
        )
    assert [row["partition"] for row in server.run([f"SHOW PARTITIONS {name}"])[0]] == ["lane=live/batch_id=7/of=a"]


def test_readers_query_by_partition_and_a_replay_leaves_partitions_that_it_has_no_row_of(shop: Make) -> None:
    columns, by = "id long, Land string, day date, n int", ("Land", "day", "n")
    made = shop("append", format="parquet", schema=columns, partition_by=by)
    made.world.land(1, 2, 3, 4, 5, 6)
    made.run(0, function="in_lands")
    made.world.land(7)
    made.run(1, function="in_lands")
    assert made.ids_where("day = DATE'2026-01-02'") == [2]
    assert made.ids_where("Land = 'a=b/c %'") == [1, 7]
    assert [row["Land"] for row in made.rows() or []] == [LANDS[number % len(LANDS)] for number in range(7)]
    assert made.ids_where("Land IS NULL AND batch_id = 0") == [3]
    assert made.ids_where("Land = 'a' OR n = -1") == [4, 6]
    assert made.ids() == [1, 2, 3, 4, 5, 6, 7]
    partitions = made.partitions()
    assert len(partitions) == 7
    made.run(0, function="none_of_them", clear_number=1)
    assert made.ids() == [7]
    assert len(made.partitions()) == 1
    assert len(made.world.janitor(grace_seconds=0).of("replaced output removed")) == 1
    made.run(0, function="in_lands", clear_number=2)
    assert made.ids() == [1, 2, 3, 4, 5, 6, 7]
    assert made.partitions() == partitions
    moved = f"{made.name} PARTITION (lane = 'live', batch_id = 0, Land = 'a', day = DATE'2026-01-04', n = 1)"
    made.server.run([f"ALTER TABLE {moved} SET LOCATION 'file://{made.world.root}/compacted'"])
    with pytest.raises(SinkError, match=r"leads to .*/compacted, .*nothing was replaced") as refused:
        made.run(0, function="in_lands", clear_number=3)
    made.server.run([str(refused.value).rpartition("partition back: ")[2].partition("\n")[0]])
    made.run(0, function="in_lands", clear_number=3, try_number=2)
    assert made.ids() == [1, 2, 3, 4, 5, 6, 7]
    assert made.tables() == []


def test_what_no_partition_can_be_named_by_is_refused_before_anything_is_made(shop: Make) -> None:
    for columns, by, said in (
        ("id long, at timestamp", "at", "'at' is of type timestamp"),
        ("id long, price decimal(9,2)", "price", r"type decimal\(9,2\)"),
        ("id long", "day", "not all of these are in the schema 'id long'"),
    ):
        made = shop("append", schema=columns, partition_by=(by,))
        with pytest.raises(SinkError, match=said):
            made.world.run(0)
        assert made.ids() is None
        assert made.world.checkpoint.offset_log.ids() == []


def test_a_whole_table_by_partitions_is_replaced_in_one_call(shop: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    made = shop("create_or_replace", format="parquet", schema=None, partition_by=("day",))
    made.run(0, function="by_day")
    assert made.ids_where("day = DATE'2026-01-02'") == [2]
    made.world.land(3, 4)

    def rename(*_: object) -> None:
        raise Killed

    monkeypatch.setattr(Metastore, "rename", rename)
    made.run(1, function="by_day")
    assert made.ids() == [3, 4]
    assert made.ids_where("day = DATE'2026-01-04'") == [4]
    assert len(made.world.janitor(grace_seconds=0).of("replaced output removed")) == 1
    assert made.ids() == [3, 4]


def test_a_table_whose_partitions_the_metastore_names_is_replaced_with_them(shop: Make) -> None:
    """By two renames: another location would leave its partitions where they were."""
    made = shop("replace", format="parquet", schema=None, partition_by=("day",))
    made.server.run(
        [
            f"CREATE TABLE {made.name} (id BIGINT, day DATE) USING parquet PARTITIONED BY (day)",
            f"INSERT INTO {made.name} VALUES (9L, DATE'2026-01-02')",
        ]
    )
    made.run(0, function="by_day")
    assert made.ids() == [1, 2]
    assert len(made.tables()) == 1, "the one that was replaced"
