"""What templates may ask."""

from __future__ import annotations

from pathlib import Path

from airflow_provider_microbatch.plugins.microbatch import MicroBatchPlugin
from tests.execution.world import World


def test_templates_can_ask_for_the_newest_committed_batch(tmp_path: Path) -> None:
    world = World(tmp_path)
    (latest_batch,) = MicroBatchPlugin.macros
    world.landing()
    assert latest_batch(world.pipeline.checkpoint) is None
    world.land(1, 2)
    world.run(1)
    assert latest_batch(world.pipeline.checkpoint)["rows_out"] == 2
