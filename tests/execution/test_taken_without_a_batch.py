"""What a data interval has taken, while the logs have no batch of it: no run is green without it, and check tells."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.key import LIVE
from airflow_provider_microbatch.cli.main import main
from airflow_provider_microbatch.exceptions import (
    BatchSetAsideError,
    IntervalError,
    NothingInIntervalError,
    SourceError,
)
from airflow_provider_microbatch.execution import backfill
from airflow_provider_microbatch.execution.intervals import lane_of
from airflow_provider_microbatch.sources.file import FileSource
from airflow_provider_microbatch.sources.file.open import OpenFileSource
from airflow_provider_microbatch.upkeep.source_check import find_without_batch
from tests.execution.intervals import IntervalWorld, hour
from tests.execution.maintaining import applied, planned, rewind
from tests.execution.test_set_aside import broken

EXACTLY = "backfill exactly that interval"
CLEARED = "cleared while plan and schedule are what they were then"
IN_THE_WAY = "A run 'backfill__2023-11-15T01:00:00+00:00' of another interval"
FIRST = "[2023-11-15T00:00:00Z, 2023-11-15T01:00:00Z)"


def check(world: IntervalWorld, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    capsys.readouterr()
    return main(["check", world.pipeline.checkpoint, "--table", "--standing", "0"]), capsys.readouterr().out


@pytest.mark.parametrize("options", [{}, {"on_overlap": "replay"}, {"plan": "interval"}], ids=str)
def test_a_rewound_interval_is_found_and_no_run_of_another_skips_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: dict[str, str]
) -> None:
    world = IntervalWorld(tmp_path, **options)
    world.land_at(0.5, 1)
    world.backfill(hour(0), 1)
    world.land_at(1.5, 2)
    world.backfill(hour(1), 2)
    back = rewind(-1, lane=lane_of(hour(0)))
    [note] = [note for note in planned(world, back).notes if FIRST in note]
    assert note.index(EXACTLY) < note.index(CLEARED) < note.index(IN_THE_WAY)
    applied(world, back)
    status, told = check(world, capsys)
    assert status == 1
    for words in ("left: ", f"{lane_of(hour(0))}/0", FIRST, EXACTLY, CLEARED, IN_THE_WAY):
        assert words in told
    world.land_at(5.5, 3)
    with pytest.raises(IntervalError, match=r"interval-20231115T000000Z-20231115T010000Z/0, which is not in the logs"):
        world.backfill(hour(0, hours=24), 3)
    assert world.ids() == [2]
    world.backfill(hour(0), 4)
    assert check(world, capsys)[0] == 0
    world.backfill(hour(0, hours=24), 5)
    assert world.ids() == [1, 2, 3]


def test_a_batch_that_another_interval_is_about_to_plan_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two overlapping backfills at once: the one has taken its data, and its entry follows."""
    world = IntervalWorld(tmp_path)
    world.land_at(0.5, 1)
    world.backfill(hour(0), 1)
    applied(world, rewind(-1, lane=lane_of(hour(0))))
    world.land_at(5.5, 2)
    waited = list[float]()
    ours, elsewhere = threading.get_ident(), time.sleep

    def sleep(seconds: float) -> None:
        if threading.get_ident() != ours:  # what other tests have left behind sleeps too
            elsewhere(seconds)
            return
        waited.append(seconds)
        world.backfill(hour(0), 2)

    monkeypatch.setattr("time.sleep", sleep)
    world.finish(world.work(hour(0, hours=24), taken_seconds=10), 3)
    assert len(waited) == 1
    assert world.ids() == [1, 2]


def test_of_what_lies_elsewhere_no_log_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = IntervalWorld(tmp_path)
    for number in range(4):
        world.land_at(number + 0.5, number)
        world.backfill(hour(number), number)
    applied(world, rewind(-1, lane=lane_of(hour(0))))
    asked, real = set[str](), backfill.without_batch

    def ask(checkpoint: Checkpoint, lanes: Iterable[str]) -> list[str]:
        asked.update(lanes := list(lanes))
        return real(checkpoint, lanes)

    monkeypatch.setattr(backfill, "without_batch", ask)
    with pytest.raises(IntervalError, match="unless a run plans it right now"):
        world.backfill(hour(0, hours=2), 9)
    assert asked == {lane_of(hour(0))}


@pytest.mark.parametrize("options", [{}, {"on_overlap": "replay"}, {"plan": "interval"}], ids=str)
@pytest.mark.parametrize("first", [0, 1])
def test_two_intervals_that_overlap_and_have_lost_their_batches_do_not_wait_for_each_other(
    tmp_path: Path, options: dict[str, str], first: int
) -> None:
    """Each has taken data of the other: nobody but its own run reads it."""
    world, intervals = IntervalWorld(tmp_path, **options), [hour(0), hour(0, hours=24)]
    world.land_at(0.5, 1)
    world.backfill(intervals[0], 1)
    world.land_at(0.6, 2)
    world.land_at(5.5, 3)
    world.backfill(intervals[1], 2)
    rows = world.rows()
    for interval in intervals:
        applied(world, rewind(-1, lane=lane_of(interval)))
    world.backfill(intervals[first], 3)
    world.backfill(intervals[1 - first], 4)
    assert world.rows() == rows


def took_late_data(tmp_path: Path) -> IntervalWorld:
    """Hour 2 has taken a late file of hour 1, and has no batch of it any more."""
    world = IntervalWorld(tmp_path, plan="interval", lookback=3 * 3600)
    world.land_at(1.5, 1)
    world.backfill(hour(1), 1)
    world.land_at(1.6, 2)
    world.land_at(2.5, 3)
    world.backfill(hour(2), 2)
    assert world.ids() == [1, 2, 3]
    applied(world, rewind(-1, lane=lane_of(hour(2))))
    return world


@pytest.mark.parametrize("now", [{"plan": "live"}, {"lookback": None}, {"lookback": 60}], ids=str)
def test_late_data_was_taken_whatever_the_lookback_is_by_now(tmp_path: Path, now: dict[str, Any]) -> None:
    world = took_late_data(tmp_path)
    world.options = {**world.options, "lookback": None, **now}
    world.land_at(0.5, 9)
    with pytest.raises(IntervalError, match=rf"{lane_of(hour(2))}/0, which is not in the logs"):
        world.backfill(hour(0, hours=2), 3)


def test_an_interval_goes_on_beside_one_that_has_taken_its_late_data(tmp_path: Path) -> None:
    world = took_late_data(tmp_path)
    applied(world, rewind(-1, lane=lane_of(hour(1))))
    world.backfill(hour(1), 3)
    world.backfill(hour(2), 4)
    assert world.ids() == [1, 2, 3]


def test_an_interval_that_has_taken_none_of_the_data_is_in_nobodys_way(tmp_path: Path) -> None:
    """Beside it a live batch has data of the interval, and is not in the logs any more."""
    world = IntervalWorld(tmp_path, min_batches_to_retain=2)
    world.land_at(0.5, 1)
    world.run(1)
    world.land_at(5.5, 2)
    world.backfill(hour(0, hours=24), 2)
    applied(world, rewind(-1, lane=lane_of(hour(0, hours=24))))
    for number in (3, 4, 5):
        world.land_at(30, number)
        world.run(number)
    assert world.checkpoint.lane(LIVE).offset_log.get(0) is None
    world.land_at(0.6, 6)
    world.backfill(hour(0), 6)
    assert world.rows()[f"{lane_of(hour(0))}/0"] == [6]


def test_check_reads_the_log_of_a_source_once_however_often_it_was_defined_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = IntervalWorld(tmp_path)
    for number in range(3):
        world.sources = {"orders": FileSource(str(world.landing("orders")), schema="id long", max_files=number + 1)}
        world.land_at(number + 0.5, number)
        world.backfill(hour(number), number)
    applied(world, rewind(-1, lane=lane_of(hour(0))))
    asked, real = [], OpenFileSource.taken_by

    def ask(self: OpenFileSource) -> set[str]:
        asked.append(self)
        return real(self)

    monkeypatch.setattr(OpenFileSource, "taken_by", ask)
    assert len(find_without_batch(world.checkpoint)) == 1
    assert len(asked) == 1


def test_another_source_that_refuses_leaves_what_the_first_has_taken_to_a_finding(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world = IntervalWorld(tmp_path, sources=("orders", "refunds"))
    world.land_at(0.5, 1)
    path = world.land_at(0.5, 2, source="refunds")
    refused = path.rename(path.with_name("a:b.json"))
    with pytest.raises(SourceError, match="a:b"):
        world.backfill(hour(0), 1)
    refused.rename(path)
    world.run(2)
    assert world.ids() == [2]
    status, told = check(world, capsys)
    assert status == 1
    assert "data of source 'orders'" in told
    assert FIRST in told
    with pytest.raises(IntervalError, match="which is not in the logs"):
        world.backfill(hour(0, hours=24), 3)
    world.backfill(hour(0), 4)
    assert world.ids() == [1, 2]
    assert check(world, capsys)[0] == 0


def test_what_another_interval_has_taken_is_in_the_way_of_no_run_beside_it(tmp_path: Path) -> None:
    world = IntervalWorld(tmp_path)
    world.land_at(0.5, 1)
    world.backfill(hour(0), 1)
    applied(world, rewind(-1, lane=lane_of(hour(0))))
    world.land_at(1.5, 2)
    world.backfill(hour(1), 2)
    with pytest.raises(NothingInIntervalError):
        world.backfill(hour(2), 3)
    assert world.ids() == [2]


def test_a_batch_of_an_interval_that_was_set_aside_names_what_runs_it_once_its_run_is_gone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world = IntervalWorld(tmp_path, on_failure="set_aside", set_aside_after=1)
    world.land_at(0.5, 1)
    with pytest.raises(BatchSetAsideError, match="and a backfill of ") as aside:
        world.backfill(hour(0), 1, broken())
    assert FIRST in str(aside.value)
    status, told = check(world, capsys)
    assert status == 1
    assert f"and a backfill of exactly {FIRST} run it" in told
    applied(world, rewind(-1, lane=lane_of(hour(0))))
    world.backfill(hour(0), 2)
    assert world.ids() == [1]
    assert check(world, capsys)[0] == 0
