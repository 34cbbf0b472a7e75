"""Data intervals of a stateful pipeline: each begins with empty state, and tells all that it has at its end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import CheckpointError, EngineError, IntervalError
from airflow_provider_microbatch.pipeline import Pipeline
from airflow_provider_microbatch.runtime import streaming
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sources.file import FileSource
from tests.execution.intervals import backfill_run
from tests.state.dying import dying
from tests.state.intervals import IntervalsWorld, minute
from tests.state.stateful import CONF, SessionEngine

pytestmark = [pytest.mark.spark, pytest.mark.slow]


COUNTED = "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows"


class ArchivedWorld(IntervalsWorld):
    """Spark does not find its files again where it would look: it streams a copy."""

    def source(self, name: str) -> FileSource:
        return FileSource(
            str(self._landing(name)),
            format="json",
            schema=self.schema,
            clean_source="archive",
            archive_dir=str(self.root / "archive"),
        )


ONE = {"conf": {"spark.sql.shuffle.partitions": "1"}}
"""Each partition of a join keeps four stores. One of two streams, and those of one, have two partitions."""


def _killed(*given: object, **named: object) -> None:
    raise KeyError("killed")


def _dying_the_second_time(step: Callable[..., Any]) -> Callable[..., Any]:
    steps = iter([step, dying(step)])
    return lambda *given: next(steps)(*given)


def test_each_interval_begins_with_empty_state_and_tells_what_waits_for_the_watermark_at_its_end(
    tmp_path: Path, engine: SessionEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last minutes are not behind any watermark of data: a query of Spark's would tell them when more came. The
    first attempt at an hour dies between its data and its end, and the second one behind the stage of its end."""
    world = IntervalsWorld(tmp_path, "tests.state.transforms:by_minute", engine=engine, mode="append")
    world.land_at(0.5, (1, "00:10:00"), (1, "00:10:00"), (2, "00:50:00"))
    world.land_at(1.5, (1, "00:10:00"), (3, "01:30:00"))
    with monkeypatch.context() as patched:
        patched.setattr("airflow_provider_microbatch.runtime.streaming.plan_end", _killed)
        with pytest.raises(EngineError, match="killed"):
            world.run_hour(1)
    with monkeypatch.context() as patched:
        patched.setattr(streaming, "_run", _dying_the_second_time(streaming._run))
        with pytest.raises(EngineError, match="killed"):
            world.run_hour(1, try_number=2)
    assert world.hours() == []
    world.run_hour(1, try_number=3)
    world.run_hour(0)

    assert world.hours() == [[minute("00:10", 1), minute("00:50", 1)], [minute("00:10", 1), minute("01:30", 1)]]
    assert world.left() == []


@pytest.mark.parametrize("kind", [IntervalsWorld, ArchivedWorld])
def test_what_a_job_keeps_of_its_rows_has_all_digits_of_their_times_whatever_the_pipeline_writes_by(
    tmp_path: Path, engine: SessionEngine, kind: type[IntervalsWorld]
) -> None:
    """Two rows of one millisecond were one, or showed the millisecond alone."""

    class Exact(kind):  # type: ignore[misc, valid-type]
        @property
        def pipeline(self) -> Pipeline:
            named: Pipeline = super().pipeline
            lake = str(self.root / self.lake)
            format = {"timestampFormat": "HH:mm:ss.SSSSSS"}
            return replace(named, sink=FileSink(lake, format="json", options=format))

    conf = {**CONF, "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MILLIS"}
    world = Exact(tmp_path, "tests.state.transforms:once_a_moment", engine=engine, mode="append", conf=conf)
    world.land_at(0.5, (1, "00:10:00.123456"), (1, "00:10:00.123789"), (1, "00:10:00.123456"))
    world.run_hour(0)
    assert world.hours() == [["1 00:10:00.123456", "1 00:10:00.123789"]]


def test_what_has_no_watermark_is_an_aggregate_of_the_interval_alone_and_a_replay_replaces_it(
    tmp_path: Path, engine: SessionEngine
) -> None:
    """Also one that a backfill of an interval that was read asks for, where the pipeline says so."""
    world = IntervalsWorld(tmp_path, "tests.state.transforms:counts", engine=engine, on_overlap="replay")
    world.land_at(0.5, (1, "00:10:00"), (1, "00:20:00"))
    world.land_at(1.5, (1, "01:10:00"))
    world.run_hour(0)
    world.run_hour(1)

    assert world.hours() == [["1 2"], ["1 1"]]
    world.transform = "tests.state.transforms:counts_twice"
    world.run_hour(0, clear_number=1)
    assert world.hours() == [["1 4"], ["1 1"]]
    code, called = world.code()
    world.work(1).run(run=backfill_run(77), engine=engine, code=code, transform=called)
    assert world.hours() == [["1 4"], ["1 2"]]
    assert world.left() == []


def test_of_a_copy_it_is_the_same(tmp_path: Path, engine: SessionEngine) -> None:
    world = ArchivedWorld(tmp_path, "tests.state.transforms:by_minute", engine=engine, mode="append")
    world.land_at(0.5, (1, "00:10:00"), (1, "00:10:00"), (2, "00:50:00"))
    world.run_hour(0)

    assert world.hours() == [[minute("00:10", 1), minute("00:50", 1)]]
    assert world.left() == []


def test_rows_that_wait_for_two_operators_are_told_once(tmp_path: Path, engine: SessionEngine) -> None:
    world = IntervalsWorld(tmp_path, "tests.state.transforms:unpaid_by_minute", engine=engine, mode="append", **ONE)
    world.sources = ("orders", "payments")
    world.land_at(0.5, (1, "00:10:00"), (2, "00:20:00"), (3, "00:50:00"))
    world.land_at(0.5, (2, "00:20:30"), source="payments")
    world.run_hour(0)

    assert world.hours() == [[minute("00:10", 1), minute("00:50", 1)]]


def test_what_the_last_moment_of_the_calendar_stands_for_is_told_too(tmp_path: Path, engine: SessionEngine) -> None:
    """A join waits for a minute behind it, and a window of that minute for its end."""
    world = IntervalsWorld(tmp_path, "tests.state.transforms:unpaid_by_minute", engine=engine, mode="append", **ONE)
    world.sources = ("orders", "payments")
    never = "9999-12-31T23:59"
    world.land_at(0.5, (1, "00:10:00"), (2, f"{never}:00"), (3, f"{never}:59.999"))
    world.land_at(0.5, (2, f"{never}:30"), source="payments")
    world.run_hour(0)

    assert world.hours() == [[minute("00:10", 1), f"{never}:00.000Z 1"]]


def test_rows_that_are_late_from_the_first_on_are_no_interval_that_was_made(
    tmp_path: Path, engine: SessionEngine
) -> None:
    """Spark's watermark begins with 1970, and no batch comes that has them."""
    world = IntervalsWorld(tmp_path, "tests.state.transforms:by_minute", engine=engine, mode="append")
    world.land_at(0.5, (1, "00:10:00"), (2, "1970-01-01T00:00:00"), (3, "1969-12-31T23:59:59"))
    with pytest.raises(EngineError, match=r"1970-01-01T00:00:00Z or a time before.*\(2 rows\).*leave such rows out"):
        world.run_hour(0)
    assert world.hours() == []
    world.transform = "tests.state.transforms:by_minute_of_now"
    world.run_hour(0, try_number=2)

    assert world.hours() == [[minute("00:10", 1)]]


@pytest.mark.parametrize("never", ["+294247-01-10T04:00:25.2", "+293221-06-01T00:00:00"])
def test_rows_that_no_watermark_passes_are_no_interval_that_was_made(
    tmp_path: Path, engine: SessionEngine, never: str
) -> None:
    """What drivers of PostgreSQL have for its ``infinity``, and what lies behind the lane's end."""
    world = IntervalsWorld(tmp_path, "tests.state.transforms:paid", engine=engine, mode="append", **ONE)
    world.sources = ("orders", "payments")
    world.land_at(0.5, (1, "00:10:00"), (2, never))
    world.land_at(0.5, (3, "00:20:30"), source="payments")
    with pytest.raises(EngineError, match=r"column 'at'.*the year 293,220 or behind it.*leave such rows out"):
        world.run_hour(0)
    assert world.hours() == []
    world.transform = "tests.state.transforms:paid_by_now"
    world.run_hour(0, try_number=2)

    assert world.hours() == [["1 False"]]


def test_rows_without_a_time_that_would_wait_for_ever_are_no_interval_that_was_made(
    tmp_path: Path, engine: SessionEngine
) -> None:
    """A payment without a time waits for nothing, an order without one waits to be unpaid."""
    world = IntervalsWorld(tmp_path, "tests.state.transforms:paid", engine=engine, mode="append")
    world.sources = ("orders", "payments")
    world.land_at(0.5, (1, "00:10:00"))
    world.land_at(0.5, (1, None), source="payments")
    world.land_at(1.5, (2, "01:10:00"), (3, None))
    world.run_hour(0)
    with pytest.raises(EngineError, match=r"\(LeftOuter\) that found no partner.*\(1\).*leave such rows out"):
        world.run_hour(1)
    assert world.hours() == [["1 False"]]
    world.transform = "tests.state.transforms:paid_by_now"
    world.run_hour(1, try_number=2)

    assert world.hours() == [["1 False"], ["2 False"]]


def test_nor_are_groups_without_a_time(tmp_path: Path, engine: SessionEngine) -> None:
    world = IntervalsWorld(tmp_path, "tests.state.transforms:by_moment", engine=engine, mode="append")
    world.land_at(0.5, (1, "00:10:00"), (2, None))
    with pytest.raises(EngineError, match=r"groups of an aggregation.*\(1\).*leave such rows out"):
        world.run_hour(0)
    assert world.hours() == []


@pytest.mark.parametrize(
    ("transform", "at", "conf", "told"),
    [
        ("paid", None, {COUNTED: "false"}, r"\(LeftOuter\) that found no partner.*\(1\)"),
        ("by_moment", None, {COUNTED.replace("trackTotal", "tracktotal"): "false"}, r"groups of an aggregation.*\(1\)"),
        ("by_minute", "1969-12-31T23:59:59", {"spark.sql.streaming.numRecentProgressUpdates": "1"}, r"\(1 rows\)"),
    ],
    ids=["rows of a join", "groups", "late rows"],
)
def test_what_would_be_lost_is_seen_whichever_figures_the_pipeline_has_spark_keep(
    tmp_path: Path, engine: SessionEngine, transform: str, at: str | None, conf: dict[str, str], told: str
) -> None:
    """Spark's own advice for fast writes is not to count rows of state."""
    called, conf = f"tests.state.transforms:{transform}", {**CONF, **conf}
    world = IntervalsWorld(tmp_path, called, engine=engine, mode="append", conf=conf)
    world.sources = ("orders", "payments") if transform == "paid" else ("orders",)
    world.land_at(0.5, (1, "00:10:00"), (2, at))
    with pytest.raises(EngineError, match=rf"{told}.*leave such rows out"):
        world.run_hour(0)
    assert world.hours() == []


@pytest.mark.parametrize(
    ("transform", "conf", "told"),
    [
        ("paid_whatever_comes", {}, r"left side.*\(LeftOuter\).*columns id, at,.*none of these has a watermark"),
        ("paid_by_another_time", {}, r"left side.*\(LeftOuter\).*columns id, at,.*none of these has a watermark"),
        ("paid_or_paying", {}, r"right side.*\(FullOuter\).*does not bound 'at' from below"),
        ("paid_with_no_watermark", {"spark.sql.streaming.unsupportedOperationCheck": "false"}, r"left side.*none of"),
    ],
    ids=["no watermark of its own", "of another column", "no bound", "none at all"],
)
def test_an_outer_join_that_would_never_tell_rows_of_a_side_is_refused_by_that_side(
    tmp_path: Path, engine: SessionEngine, transform: str, conf: dict[str, str], told: str
) -> None:
    """Spark takes such a query. Of rows that have their partner, and all times, an error said that they have none."""
    called = f"tests.state.outer_joins:{transform}"
    world = IntervalsWorld(tmp_path, called, engine=engine, mode="append", conf={**CONF, **conf})
    world.sources = ("orders", "payments")
    world.land_at(0.5, (1, "00:10:00"))
    world.land_at(0.5, (1, "00:10:30"), source="payments")
    with pytest.raises(EngineError, match=rf"{told}.*Put withWatermark on each side in front of the join"):
        world.run_hour(0)
    assert world.hours() == []
    world.transform = "tests.state.transforms:paid"
    world.run_hour(0, try_number=2)

    assert world.hours() == [["1 True"]]


def test_a_row_that_has_its_partner_waits_for_nothing(tmp_path: Path, engine: SessionEngine) -> None:
    """Spark keeps it, if it has no time in the column of the watermark, and an error said that it had no partner."""
    world = IntervalsWorld(tmp_path, "tests.state.outer_joins:paid_in_time", engine=engine, mode="append")
    world.sources = ("orders", "payments")
    world.land_at(0.5, (1, "00:10:00"), (2, "00:20:00"))
    world.land_at(0.5, (1, "00:10:30"), source="payments")
    world.run_hour(0)

    assert world.hours() == [["1 True", "2 False 2023-11-15T00:20:00.000Z"]]


def test_one_whose_rows_without_a_partner_are_left_out_is_not(tmp_path: Path, engine: SessionEngine) -> None:
    world = IntervalsWorld(tmp_path, "tests.state.outer_joins:paid_alone", engine=engine, mode="append")
    world.sources = ("orders", "payments")
    world.land_at(0.5, (1, "00:10:00"), (2, None))
    world.land_at(0.5, (1, "00:10:30"), source="payments")
    world.run_hour(0)

    assert world.hours() == [["1 True"]]


def test_a_processor_that_fails_at_the_end_is_told_of_its_watermark(tmp_path: Path, engine: SessionEngine) -> None:
    """Python has no datetime of its year."""
    world = IntervalsWorld(tmp_path, "tests.state.transforms:visits_until_now", engine=engine, mode="append")
    world.land_at(0.5, (1, "00:10:00"))
    with pytest.raises(EngineError, match=r"(?s)out of range.*the year 293,222.*expiredTimerInfo.getExpiryTimeInMs"):
        world.run_hour(0)
    assert world.hours() == []


def test_rows_of_before_the_end_and_of_the_end_are_one_batch(tmp_path: Path, engine: SessionEngine) -> None:
    """Pairs are told when they are found, orders without a payment at the end."""
    world = IntervalsWorld(tmp_path, "tests.state.transforms:paid", engine=engine, mode="append", **ONE)
    world.sources = ("orders", "payments")
    world.land_at(0.5, (1, "00:10:00"), (2, "00:20:00"))
    world.land_at(0.5, (2, "00:20:30"), source="payments")
    world.run_hour(0)

    assert world.hours() == [["1 False", "2 True"]]
    commit = world.checkpoint.lane(world.work(0).key.lane).commit_of(0)
    assert commit is not None
    assert commit.progress["numOutputRows"] == 2
    assert commit.progress["numInputRows"] == {"orders": 2, "payments": 1}
    assert not commit.requires_another_batch


def test_an_interval_is_not_read_beside_batches_that_keep_state(tmp_path: Path, engine: SessionEngine) -> None:
    """As a run of Airflow's backfill would; the rows would be counted by themselves."""
    world = IntervalsWorld(tmp_path, "tests.state.transforms:counts", engine=engine, plan="live")
    world.land_at(0.5, (1, "00:10:00"))
    refused = r"keeps state from batch to batch.*reads what is new.*plan='interval'"
    with pytest.raises(IntervalError, match=refused):
        world.run_hour(0)
    with pytest.raises(IntervalError, match=refused):
        world.work(0).should_fire()
    assert world.checkpoint.lanes() == ["live"]
    world.run(1)

    assert world.table() == {0: [{"id": 1, "count": 1}]}


def test_a_partition_that_is_run_again_asks_for_no_batch_from_which_others_have_gone_on(
    tmp_path: Path, engine: SessionEngine
) -> None:
    """A request that no attempt can answer would hold retention for ever."""
    world = IntervalsWorld(tmp_path, "tests.state.transforms:counts", engine=engine, plan="live")
    run = backfill_run(0, partition="2023-11-15T00:00:00+00:00")
    code, called = world.code()
    for number in range(2):
        world.land(f"{number}", {"id": 1})
        world.execution.run(
            run=run if number == 0 else backfill_run(number), engine=engine, code=code, transform=called
        )  # fmt: skip
    again = backfill_run(7, partition="2023-11-15T00:00:00+00:00")

    with pytest.raises(CheckpointError, match=r"from which batches 1 to 1 have gone on.*rewind"):
        world.work(0).run(run=again, engine=engine, code=code, transform=called)
    assert not world.checkpoint.replays.epochs.all(BatchKey("live", 0)), "nothing was asked for, and withdrawn"


def test_batches_that_keep_state_are_not_followed_by_intervals_nor_intervals_by_them(
    tmp_path: Path, engine: SessionEngine
) -> None:
    for first, then in (("live", "interval"), ("interval", "live")):
        (tmp_path / first).mkdir()
        world = IntervalsWorld(tmp_path / first, "tests.state.transforms:counts", engine=engine, plan=first)
        world.land_at(0.5, (1, "00:10:00"))
        world.land_at(1.5, (1, "01:10:00"))
        _run(world, first, 0)
        before = sorted(str(path) for path in (tmp_path / first).rglob("*"))
        world.options["plan"] = then
        with pytest.raises((CheckpointError, IntervalError), match="a checkpoint and a table of its own"):
            _run(world, then, 1)
        assert sorted(str(path) for path in (tmp_path / first).rglob("*")) == before


def _run(world: IntervalsWorld, plan: str, number: int) -> None:
    if plan == "live":
        world.run(number)
    else:
        world.run_hour(number)


def test_what_a_killed_attempt_has_left_goes_with_the_commit_and_that_of_other_intervals_stays(
    tmp_path: Path, engine: SessionEngine
) -> None:
    world = IntervalsWorld(tmp_path, "tests.state.transforms:counts", engine=engine)
    world.land_at(0.5, (1, "00:10:00"))
    lanes = [world.work(number).key.lane for number in (0, 1)]
    for lane in lanes:
        (tmp_path / "checkpoint" / "streaming" / f"{lane}.0-0" / "state" / "0").mkdir(parents=True)
    world.run_hour(0)

    assert {Path(path).name for path in world.left()} == {f"{lanes[1]}.0-0", "state", "0"}
