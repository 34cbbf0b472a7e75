"""``microbatch janitor``: it has nothing but the address of a checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from airflow_provider_microbatch.cli.main import main
from tests.execution.world import CODE, World, run_identity
from tests.support.hooks import Diary, lines
from tests.support.inline_engine import InlineEngine


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A batch whose task died with its stage half written."""
    world = World(tmp_path, hooks=(Diary(str(tmp_path / "diary")),))
    world.land(1)
    planned = world.execution.plan(run_identity(0))
    assert planned is not None
    world.execution.open_attempt(key=planned.key, run=run_identity(0), code=CODE, engine=InlineEngine())
    stage = world.stage_folder()
    stage.mkdir(parents=True)
    (stage / "part-0.json").write_text("{}")
    return world


def location(world: World) -> str:
    return str(world.root / "checkpoint")


def test_it_leaves_a_live_attempt_alone_and_says_so(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["janitor", location(world)]) == 0
    assert "alive: live/0 attempt 1 (its lease runs for another" in capsys.readouterr().out
    assert world.stages() == ["live/0 attempt 1"]


def test_it_cleans_up_after_a_dead_one(world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world.expire_leases()
    assert main(["janitor", location(world), "--dry-run"]) == 0
    assert "stage dropped: live/0 attempt 1 (found dead" in capsys.readouterr().out
    assert world.stages() == ["live/0 attempt 1"]
    assert main(["janitor", location(world), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["pipeline"], report["dry_run"]) == ("orders", False)
    assert [action["kind"] for action in report["actions"]] == ["stage dropped", "attempt ended"]
    assert world.stages() == []
    assert lines(tmp_path / "diary") == ["diary failed live/0 1"]
    assert main(["janitor", location(world)]) == 0
    assert capsys.readouterr().out == f"{location(world)}: nothing to do\n"


def test_exit_status_1_tells_that_something_is_left(world: World, tmp_path: Path) -> None:
    world.expire_leases()
    (tmp_path / "diary.fails").write_text("diary failed")
    assert main(["janitor", location(world)]) == 1
    (tmp_path / "diary.fails").unlink()
    assert main(["janitor", location(world)]) == 0


@pytest.mark.parametrize("grace", ["-1", "soon", "inf", "nan"])
def test_a_grace_period_that_is_none_is_refused(world: World, grace: str) -> None:
    with pytest.raises(SystemExit) as refused:
        main(["janitor", location(world), f"--grace={grace}"])
    assert refused.value.code == 2
