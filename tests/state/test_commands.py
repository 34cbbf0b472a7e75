"""Commands leave no state behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_microbatch.cli.main import main
from airflow_provider_microbatch.exceptions import CheckpointError
from airflow_provider_microbatch.execution.stateful import state_before
from airflow_provider_microbatch.sinks import SinkContext
from tests.execution.maintaining import applied, filled
from tests.execution.sleepers import to_the_first
from tests.execution.world import World, run_identity


@pytest.mark.parametrize(
    ("command", "message"), [("export", "does not name its files of state"), ("copy", "keeps state of its batches")]
)
def test_a_checkpoint_whose_state_would_stay_behind_is_neither_exported_nor_copied(
    command: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world = World(tmp_path)
    world.land(1)
    world.run(0)
    (tmp_path / "checkpoint" / "state" / "0" / "0").mkdir(parents=True)

    assert main([command, str(tmp_path / "checkpoint"), str(tmp_path / "there")]) != 0
    assert message in capsys.readouterr().err
    assert not (tmp_path / "there").exists()


@pytest.mark.parametrize(
    "words",
    [["set-offset", "--source", "orders", "--offset", '{"logOffset":0}', "--allow-reread"], ["start-behind"]],
    ids=lambda words: words[0],
)
def test_no_batch_is_counted_that_would_keep_no_state(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The next one would have nothing to go on from, and no run would say why."""
    world = filled(World(tmp_path), 2)
    world.expire_leases()
    (tmp_path / "checkpoint" / "state" / "0" / "0").mkdir(parents=True)
    before = world.files()
    name, *more = words

    assert main([name, world.pipeline.checkpoint, *more]) == 2
    assert "keeps state (stateful=True)" in capsys.readouterr().err
    assert world.files() == before


def test_a_batch_behind_one_that_was_set_by_hand_names_the_way_back(tmp_path: Path) -> None:
    """As a version has left it that did not refuse it."""
    world = filled(World(tmp_path), 2)
    world.expire_leases()
    applied(world, to_the_first)
    planned = world.execution.plan(run_identity(3))
    assert planned is not None
    with pytest.raises(CheckpointError, match=r"live/2 .* was set by hand.*`microbatch rewind \S+ --to 1`"):
        state_before(planned, checkpoint=world.checkpoint, sink=world.pipeline.sink.open(SinkContext()))
