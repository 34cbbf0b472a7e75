"""State of processors of the user's own (``transformWithState``) goes on as that of Spark's operators does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_provider_microbatch.exceptions import CheckpointError, EngineError
from airflow_provider_microbatch.runtime import kept_state as reading
from airflow_provider_microbatch.runtime import streaming
from airflow_provider_microbatch.upkeep.kept_state import kept_state
from tests.state.dying import dying
from tests.state.intervals import IntervalsWorld
from tests.state.stateful import SessionEngine, StatefulWorld

pytestmark = [pytest.mark.spark, pytest.mark.slow]

OF = "tests.state.transforms:"
ONE = {"conf": {"spark.sql.shuffle.partitions": "1"}}
APPENDS = {"mode": "append", **ONE}


def at(id: int, time: str) -> dict[str, object]:
    return {"id": id, "at": f"2026-01-01T00:{time}Z"}


def kept_of(
    world: StatefulWorld, engine: SessionEngine, monkeypatch: pytest.MonkeyPatch, **key: str
) -> dict[str, list[Any]]:
    """What `microbatch state` shows of a key, by variable."""
    with monkeypatch.context() as patched:
        patched.setattr(reading, "own_session", engine.own_session)
        with reading.opened(kept_state(world.checkpoint).state) as stores:
            return {store.name.partition(" ")[2]: reading.as_json(store.rows(key), rows=9) for store in stores}


def test_timers_that_would_never_expire_in_an_interval_are_refused(tmp_path: Path, engine: SessionEngine) -> None:
    world = IntervalsWorld(tmp_path, OF + "reminders", engine=engine, mode="update", **ONE)
    world.land_at(0.5, (1, "00:10:00"))
    with pytest.raises(EngineError, match=r"timeMode 'ProcessingTime'.*Take 'EventTime' or 'None'"):
        world.run_hour(0)


def test_values_lists_maps_and_timers_go_on_from_the_winner_whoever_dies(
    tmp_path: Path, engine: SessionEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first attempt at the second batch dies after Spark's commit, with its files where all find them, as one at
    the first batch does below."""
    world = StatefulWorld(tmp_path, OF + "visits", engine=engine, schema="id long, at timestamp", **APPENDS)
    world.land("0", at(1, "00:10"), at(2, "00:30"))
    world.run(0)
    world.land("1", at(1, "01:00"))
    with monkeypatch.context() as patched:
        patched.setattr(streaming, "leave_state", dying(streaming.leave_state))
        with pytest.raises(EngineError, match="killed"):
            world.run(1)
    world.run(1, try_number=2)
    kept = kept_of(world, engine, monkeypatch, id="1")
    assert {name: len(rows) for name, rows in kept.items()} == {"minutes": 2, "rows": 1, "times": 2, "timers": 1}
    assert kept["rows"][0]["value"] == {"rows": 2}

    world.land("2", at(3, "09:00"))
    world.run(2)
    world.run(3)
    assert world.table()[3] == [
        {"id": 1, "rows": 2, "minutes": 2, "since": "2026-01-01T00:00:10.000Z"},
        {"id": 2, "rows": 1, "minutes": 1, "since": "2026-01-01T00:00:30.000Z"},
    ]
    for columns in tmp_path.glob("checkpoint/state/0/_stateSchema/default/0_*"):
        columns.unlink()
    world.land("4", at(3, "09:00"))
    with pytest.raises(CheckpointError, match=r"such as 0/_stateSchema/default/0_.*: .* takes all batches back"):
        world.run(4)


def test_a_change_between_attempts_at_the_first_batch_is_refused_before_a_batch_stands_on_it(
    tmp_path: Path, engine: SessionEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each writes in a folder of its own, where Spark finds nothing of the other to compare with."""
    world = StatefulWorld(tmp_path, OF + "first_visits", engine=engine, schema="id long, at timestamp", **APPENDS)
    world.land("0", at(1, "00:10"), at(1, "00:20"))
    with monkeypatch.context() as patched:
        patched.setattr(streaming, "leave_state", dying(streaming.leave_state))
        with pytest.raises(EngineError, match="killed"):
            world.run(0)
    world.transform = OF + "visits_at_different_times"
    with pytest.raises(EngineError, match=r"\(1/0/_metadata/schema differs\).* Put them back as they were, or begin a"):
        world.run(0, try_number=2)
    world.transform = OF + "first_visits"
    world.run(0, try_number=3)
    world.land("1", at(1, "00:30"))
    world.run(1)
    assert kept_of(world, engine, monkeypatch, id="1")["rows"][0]["value"] == {"rows": 1}


def test_the_clock_of_timers_and_of_forgetting_is_that_of_the_plan(tmp_path: Path, engine: SessionEngine) -> None:
    world = StatefulWorld(tmp_path, OF + "reminders", engine=engine, **ONE)
    world.land("a", 1)
    world.run(0)
    world.clock += 40_000  # the timer has expired, the rows are still known
    world.land("b", 1)
    world.run(1)
    before = world.table()[1]
    world.clock += 100_000
    world.run(1, clear_number=1)

    assert world.table()[1] == before
    assert [(row["id"], row["rows"]) for row in before] == [(1, 0), (1, 2)]
    world.land("c", 1)
    world.run(2)
    assert [(row["id"], row["rows"]) for row in world.table()[2]] == [(1, 1)], "forgotten, and counted anew"
    world.transform = OF + "reminders_by_text"
    world.land("d", 1)
    with pytest.raises(EngineError, match="Put them back as they were, or begin a checkpoint and a table"):
        world.run(3)


def test_of_an_interval_all_timers_of_event_time_expire_at_its_end(tmp_path: Path, engine: SessionEngine) -> None:
    world = IntervalsWorld(tmp_path, OF + "visits", engine=engine, mode="append", **ONE)
    never = "9999-12-31T23:59:30"
    world.land_at(0.5, (1, "00:10:00"), (1, "00:11:00"), (2, never))
    world.run_hour(0)

    assert world.hours() == [["1 2 2 2023-11-15T00:10:00.000Z", f"2 1 1 {never}.000Z"]]
    assert world.left() == []
