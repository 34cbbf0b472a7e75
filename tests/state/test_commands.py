"""Commands leave no state behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_microbatch.cli.main import main
from tests.execution.world import World


@pytest.mark.parametrize("command", ["export", "copy"])
def test_a_checkpoint_with_state_is_neither_exported_nor_copied(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world = World(tmp_path)
    world.land(1)
    world.run(0)
    (tmp_path / "checkpoint" / "state" / "0" / "0").mkdir(parents=True)

    assert main([command, str(tmp_path / "checkpoint"), str(tmp_path / "there")]) != 0
    assert "keeps state of its batches" in capsys.readouterr().err
    assert not (tmp_path / "there").exists()
