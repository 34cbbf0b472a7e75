"""`microbatch state`: what is kept, by Spark's own reader, in a process of its own, and in one that has a Spark."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_microbatch.exceptions import CheckpointError
from airflow_provider_microbatch.runtime import kept_state as reading
from airflow_provider_microbatch.upkeep.kept_state import kept_state
from tests.execution.typed_commands import said
from tests.execution.world import World
from tests.state.stateful import SessionEngine, StatefulWorld

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def asked(world: StatefulWorld, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "airflow_provider_microbatch.cli.main", "state", str(world.root / "checkpoint")]
    return subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)


def stores(world: StatefulWorld, *arguments: str) -> list[dict[str, Any]]:
    ended = asked(world, "--json", *arguments)
    assert ended.returncode == 0, ended.stderr
    found: list[dict[str, Any]] = json.loads(ended.stdout)["stores"]
    return found


def test_rows_and_the_oldest_event_of_each_operator_are_those_of_the_winner(
    tmp_path: Path, engine: SessionEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = StatefulWorld(
        tmp_path, "tests.state.transforms:by_minute", engine=engine, schema="id long, at timestamp", mode="append"
    )
    world.land("a", {"id": 1, "at": "2026-01-01T00:00:10Z"}, {"id": 2, "at": "2026-01-01T00:00:20Z"})
    world.run(0)
    world.run(0, clear_number=1)  # a second attempt has state of its own
    world.land("b", {"id": 3, "at": "2026-01-01T00:00:40Z"})
    world.run(1)

    windows, dedup = stores(world, "--key", "id=3")
    assert (dedup["name"], dedup["rows"], dedup["oldestEvent"]) == ("dedupe", 3, "2026-01-01 00:00:10")
    assert [row["key"]["id"] for row in dedup["found"]] == [3]
    assert (windows["name"], windows["rows"]) == ("stateStoreSave", 1)
    assert "found" not in windows

    monkeypatch.setattr(reading, "own_session", engine.own_session)
    status, told = said(["state", str(tmp_path / "checkpoint"), "--batch", "0"])
    assert "operator 1 dedupe: 2 rows, oldest event 2026-01-01 00:00:10" in told
    assert status == 0
    status, told = said(["state", str(tmp_path / "checkpoint"), "--key", "nobody=1"])
    assert status == 2
    assert "Columns of keys are" in told


def test_a_checkpoint_without_state_is_named_before_a_spark_is_started(tmp_path: Path) -> None:
    world = World(tmp_path)
    with pytest.raises(CheckpointError, match="no batch committed"):
        kept_state(world.checkpoint)
    world.land(1)
    world.run(0)
    with pytest.raises(CheckpointError, match=r"live/0 of .* has kept no state: its pipeline is not stateful"):
        kept_state(world.checkpoint)
    with pytest.raises(CheckpointError, match="live/7 is not committed"):
        kept_state(world.checkpoint, 7)
