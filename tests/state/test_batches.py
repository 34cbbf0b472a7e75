"""State goes on from batch to batch, on real Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.checkpoint.replays import Replays
from airflow_provider_microbatch.cli.table import batch_cells
from airflow_provider_microbatch.exceptions import CheckpointError, EngineError
from airflow_provider_microbatch.execution.summary import summarize
from tests.execution.world import Killed, run_identity
from tests.state.stateful import CONF, COUNTS, SessionEngine, StatefulWorld

pytestmark = [pytest.mark.spark, pytest.mark.slow]

START = 1_767_225_600_000  # 2026-01-01T00:00:00Z


def test_counts_go_on_from_the_batch_before(tmp_path: Path, engine: SessionEngine) -> None:
    """Of files whose names have characters of a glob, too: Spark's own source of files reads such a name as one, and
    the others of the batch once more for each."""
    world = StatefulWorld(tmp_path, engine=engine)
    world.land("plain", 1, 1, 2)
    world.run(0)
    for number, name in enumerate(("x2", "x[2]", "other", "{y}", "back\\slash"), 3):
        world.land(name, 1, number)
    world.run(1)
    world.land("z", 1, 2)
    world.run(2)

    assert world.table() == {
        0: [{"id": 1, "count": 2}, {"id": 2, "count": 1}],
        1: [{"id": 1, "count": 7}, *({"id": id, "count": 1} for id in range(3, 8))],
        2: [{"id": 1, "count": 8}, {"id": 2, "count": 2}],
    }
    first, last = (world.checkpoint.commit_log.get(number) for number in (0, 2))
    assert first is not None
    assert last is not None
    assert first.progress["state"]["conf"]["spark.sql.shuffle.partitions"] == "2"
    assert last.progress["state"]["base"] != last.progress["state"]["ids"]
    assert not list((tmp_path / "checkpoint" / "streaming").iterdir())


@pytest.mark.parametrize("interval", ["1", "2"])
def test_how_often_a_query_would_compact_its_log_of_files_is_no_matter(
    tmp_path: Path, engine: SessionEngine, interval: str
) -> None:
    """With 1 the first entry would be one that holds others, with 2 the second."""
    conf = {**CONF, "spark.sql.streaming.fileSource.log.compactInterval": interval}
    world = StatefulWorld(tmp_path, engine=engine, conf=conf)
    for number in range(2):
        world.land(f"{number}", 1)
        world.run(number)

    assert world.table() == {0: [{"id": 1, "count": 1}], 1: [{"id": 1, "count": 2}]}


def test_a_replay_of_the_newest_batch_replaces_output_and_state(tmp_path: Path, engine: SessionEngine) -> None:
    world = StatefulWorld(tmp_path, engine=engine)
    world.land("a", 1)
    world.run(0)
    world.land("b", 1)
    world.run(1)
    world.transform = "tests.state.transforms:counts_twice"
    world.run(1, clear_number=1)
    replayed = world.table()[1]
    world.transform = COUNTS
    world.land("c", 1)
    world.run(2)

    assert replayed == [{"id": 1, "count": 3}]
    assert world.table()[2] == [{"id": 1, "count": 4}]

    asked = world.checkpoint.replays.epochs.latest(BatchKey("live", 1))
    with pytest.raises(CheckpointError, match=r"from which batches 2 to 2 have gone on.*rewind"):
        world.run(1, clear_number=2)
    assert not world.checkpoint.replays.pending(BatchKey("live", 1))
    assert world.checkpoint.replays.epochs.latest(BatchKey("live", 1)) == asked, "nothing was asked for and withdrawn"


def test_rows_come_when_the_watermark_has_passed_and_late_ones_are_counted(
    tmp_path: Path, engine: SessionEngine
) -> None:
    world = StatefulWorld(
        tmp_path, "tests.state.transforms:by_minute", engine=engine, schema="id long, at timestamp", mode="append"
    )
    world.land("a", {"id": 1, "at": "2026-01-01T00:00:10Z"}, {"id": 1, "at": "2026-01-01T00:00:10Z"})
    world.run(0)
    world.land("b", {"id": 2, "at": "2026-01-01T00:10:00Z"})
    world.run(1)
    world.run(2)  # without data: Spark asks for it
    assert world.run(3) is None
    world.land("c", {"id": 3, "at": "2026-01-01T00:00:20Z"})
    world.run(4)

    assert world.table() == {0: [], 1: [], 2: [{"minute": "2026-01-01T00:00:00.000Z", "rows": 1}], 3: []}
    entries = [world.checkpoint.offset_log.get(number) for number in range(4)]
    watermarks = [entry.watermark_ms for entry in entries if entry is not None]
    assert watermarks == [0, START - 20_000, START + 570_000, START + 570_000]
    last = world.checkpoint.commit_log.get(3)
    assert last is not None
    assert last.progress["numRowsDroppedByWatermark"] > 0
    summary = summarize(world.checkpoint, BatchKey("live", 3))
    assert summary.late_rows == last.progress["numRowsDroppedByWatermark"]
    assert [one["operator"] for one in summary.operators] == ["stateStoreSave", "dedupe"]
    assert sum(one["late"] for one in summary.operators) == summary.late_rows
    assert all(one["memory_bytes"] > 0 and one["rows"] > 0 for one in summary.operators)
    assert batch_cells(summary)[5].endswith(" 1 late")


def test_a_row_is_late_behind_the_watermark_of_the_batch_before_as_in_a_query(
    tmp_path: Path, engine: SessionEngine
) -> None:
    """What a batch's own watermark makes final is told in this batch, the batch's own rows with it."""
    world = StatefulWorld(
        tmp_path, "tests.state.transforms:by_minute", engine=engine, schema="id long, at timestamp", mode="append"
    )
    world.land("a", {"id": 1, "at": "2026-01-01T00:10:00Z"})
    world.run(0)
    world.land("b", {"id": 2, "at": "2026-01-01T00:00:00Z"}, {"id": 3, "at": "2026-01-01T00:20:00Z"})
    summary = world.run(1)

    assert world.table()[1] == [{"minute": "2026-01-01T00:00:00.000Z", "rows": 1}]
    assert summary is not None
    assert not summary.late_rows


def test_rows_that_one_operator_lets_go_of_are_not_late_for_the_next(tmp_path: Path, engine: SessionEngine) -> None:
    world = StatefulWorld(
        tmp_path,
        "tests.state.transforms:unpaid_by_minute",
        engine=engine,
        schema="id long, at timestamp",
        mode="append",
    )
    world.sources = ("orders", "payments")
    for number, minute in enumerate(("00:00", "10:00", "30:00")):
        for source in world.sources:
            id = number if source == "orders" else 99
            world.land(f"{number}", {"id": id, "at": f"2026-01-01T00:{minute}Z"}, source=source)
    number = 0
    while world.run(number) is not None:
        number += 1

    rows = [row for rows in world.table().values() for row in rows]
    assert rows == [{"minute": f"2026-01-01T00:{minute}:00.000Z", "rows": 1} for minute in ("00", "10")]


def test_two_streams_are_joined_across_batches_whatever_the_order_of_their_names(
    tmp_path: Path, engine: SessionEngine
) -> None:
    world = StatefulWorld(tmp_path, "tests.state.transforms:joined", engine=engine, mode="append")
    world.sources = ("orders", "payments")
    world.land("a", 1, 2)
    world.run(0)
    world.land("b", 2, source="payments")
    world.run(1)
    world.land("c", 3, source="payments")
    world.land("c", 2, 3)
    summary = world.run(2)

    assert world.table() == {0: [], 1: [{"id": 2}], 2: [{"id": 2}, {"id": 3}]}
    assert summary is not None
    last = world.checkpoint.commit_log.get(2)
    assert last is not None
    assert last.progress["numInputRows"] == {"orders": 2, "payments": 1}


def test_of_attempts_that_all_ran_the_next_batch_goes_on_from_the_published_one(
    tmp_path: Path, engine: SessionEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a first attempt that lost, a second one, and a replay that died before its answer: no record tells of its
    state, the table does."""
    world = StatefulWorld(tmp_path, "tests.state.transforms:counts_twice", engine=engine)
    world.land("a", 1)
    run, (code, called) = run_identity(0), world.code()
    planned = world.execution.plan(run)
    assert planned is not None
    loser = world.execution.open_attempt(key=planned.key, run=run, code=code, engine=engine)
    world.execution.run_attempt(attempt=loser, job=world.execution.job(loser, called), engine=engine, code=code)
    world.transform = COUNTS
    world.run(0, try_number=2)
    world.land("b", 1)
    world.run(1)
    assert world.table() == {0: [{"id": 1, "count": 1}], 1: [{"id": 1, "count": 2}]}

    def killed(*args: object, **kwargs: object) -> None:
        raise Killed

    world.transform = "tests.state.transforms:counts_twice"
    with monkeypatch.context() as patched:
        patched.setattr(Replays, "complete", killed)
        with pytest.raises(Killed):
            world.run(1, clear_number=1)
    world.transform = COUNTS
    world.land("c", 1)
    world.run(2)
    assert [rows[0]["count"] for rows in world.table().values()] == [1, 3, 4]


def test_state_survives_snapshots_and_its_files_do_not_grow_with_history(tmp_path: Path, engine: SessionEngine) -> None:
    world = StatefulWorld(tmp_path, engine=engine, min_batches_to_retain=2)
    for number in range(13):
        world.land(f"{number:03}", 1, number)
        world.run(number)

    counted = {row["id"]: row["count"] for rows in world.table().values() for row in rows}
    assert counted == {1: 14, 0: 1, **dict.fromkeys(range(2, 13), 1)}
    files = [path.name for path in (tmp_path / "checkpoint" / "state" / "0" / "0").iterdir() if path.is_file()]
    assert sorted({int(name.split("_")[0]) for name in files if name[0].isdecimal()}) == [10, 11, 12, 13]


def test_a_result_that_is_no_stream_is_refused(tmp_path: Path, engine: SessionEngine) -> None:
    world = StatefulWorld(tmp_path, "tests.state.transforms:no_stream", engine=engine)
    world.land("a", 1)

    with pytest.raises(EngineError, match="returned a frame that is no stream"):
        world.run(0)


def test_state_goes_on_in_as_many_partitions_one_output_mode_and_a_stateful_pipeline_alone(
    tmp_path: Path, engine: SessionEngine
) -> None:
    world = StatefulWorld(tmp_path, engine=engine)
    world.land("a", 1)
    world.run(0)
    world.land("b", 1)
    before = dict(world.options)
    for number, (changed, refused) in enumerate(
        (
            ({"conf": {"spark.sql.shuffle.partitions": "4"}}, r"lies in 2 partitions.*Put 2 back"),
            ({"output_mode": "append"}, r"was made with 'update'.*Put 'update' back"),
            ({"stateful": False, "output_mode": "append"}, "stateful=True"),
        ),
        start=1,
    ):
        world.options = {**before, **changed}
        with pytest.raises(CheckpointError, match=refused):
            world.run(1, try_number=number)
    world.options = before
    world.run(1, try_number=4)

    assert world.table() == {0: [{"id": 1, "count": 1}], 1: [{"id": 1, "count": 2}]}
