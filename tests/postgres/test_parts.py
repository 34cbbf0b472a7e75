"""A table and a part of it, each of which a pipeline writes to: they have rows in common."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_microbatch.exceptions import ForeignBatchError
from airflow_provider_microbatch.sinks import OpenSink
from tests.postgres import database
from tests.postgres.stages import write_lines
from tests.postgres.test_lost_rows import run
from tests.sinks.stages import batch_of, expect

WHOLE = {"checkpoint": "one", "pipeline": "all"}
PART = {"checkpoint": "another", "pipeline": "late"}


def stage(sink: OpenSink, epoch: int, whose: dict[str, str]) -> None:
    """A row that belongs into the part if it is of the part's pipeline."""
    cells = [("1500" if whose is PART else "5",)]
    write_lines(sink, epoch, {"id": "bigint"}, cells, batch=batch_of(**whose))


@pytest.fixture
def sinks(tmp_path: Path) -> tuple[OpenSink, OpenSink]:
    """Of a table, and of a partition of one of its partitions."""
    whole, many, late = (database.table_in(tmp_path, name) for name in ("Orders", "Many", "Late"))
    run(f'CREATE TABLE {whole} (id bigint, "_batch_lane" text, "_batch_id" bigint) PARTITION BY RANGE (id)')
    run(f"CREATE TABLE {database.table_in(tmp_path, 'few')} PARTITION OF {whole} FOR VALUES FROM (0) TO (1000)")
    run(f"CREATE TABLE {many} PARTITION OF {whole} FOR VALUES FROM (1000) TO (2000) PARTITION BY RANGE (id)")
    run(f"CREATE TABLE {late} PARTITION OF {many} DEFAULT")
    return database.sink_in(tmp_path), database.sink_in(tmp_path, table="Late")


def ids(folder: Path) -> list[int]:
    return [id for (id,) in database.rows(database.table_in(folder), "id")]


@pytest.mark.parametrize("part_is_first", [False, True])
def test_the_second_pipeline_gets_an_error_that_names_the_first(
    sinks: tuple[OpenSink, OpenSink], tmp_path: Path, part_is_first: bool
) -> None:
    """A replay of either took out what the other has of the same number."""
    (first, of_first), (second, of_second) = sorted(
        zip(sinks, (WHOLE, PART), strict=True), key=lambda one: (one[1] is PART) is not part_is_first
    )
    stage(first, 1, of_first)
    first.publish(expect(**of_first), 1)
    there = r"\.Late, which is a part of .*\.Orders" if part_is_first else r"\.Orders, of which .*\.Late is a part"
    told = rf"batch live/7 of pipeline '{of_first['pipeline']}' is in .*{there}: .* Nothing was published"
    with pytest.raises(ForeignBatchError, match=told):
        second.contains(expect(**of_second))
    stage(second, 1, of_second)
    with pytest.raises(ForeignBatchError, match=told):
        second.publish(expect(**of_second), 1)
    assert ids(tmp_path) == [1500 if part_is_first else 5]
    assert first.contains(expect(**of_first)) is not None


def test_a_replay_does_not_take_out_what_a_table_had_that_is_a_part_since(
    sinks: tuple[OpenSink, OpenSink], tmp_path: Path
) -> None:
    many, late = database.table_in(tmp_path, "Many"), database.table_in(tmp_path, "Late")
    run(f"ALTER TABLE {many} DETACH PARTITION {late}")
    for sink, whose in zip(sinks, (WHOLE, PART), strict=True):
        stage(sink, 1, whose)
        sink.publish(expect(**whose), 1)
        stage(sink, 2, whose)
    run(f"ALTER TABLE {many} ATTACH PARTITION {late} DEFAULT")
    whole, part = sinks
    for ask in (
        lambda: whole.replace(expect(**WHOLE), 2),
        lambda: whole.withdraw(expect(**WHOLE), 1),
        lambda: part.replace(expect(**PART), 2),
    ):
        with pytest.raises(ForeignBatchError, match=r"is a part.* Nothing was published or taken out"):
            ask()
    assert ids(tmp_path) == [5, 1500]
    run(f'UPDATE {late} SET "_batch_lane" = NULL, "_batch_id" = NULL')
    run(f"DELETE FROM {database.table_in(tmp_path, 'microbatch_batches')} WHERE table_name = 'Late'")
    whole.replace(expect(**WHOLE), 2)
    assert ids(tmp_path) == [5, 1500]


def test_a_pipeline_that_went_from_a_part_to_the_whole_finds_its_own(
    sinks: tuple[OpenSink, OpenSink],
) -> None:
    whole, part = sinks
    stage(part, 1, PART)
    part.publish(expect(**PART), 1)
    assert whole.contains(expect(**PART)) is None
